"""Tries NNLP on a platform: it is shipped only where it wins with a family left out.

Each family of measured networks is left out in turn, and graph networks are trained on the others,
with three random seeds each. `gnn.shipping.decide` compares their errors on the family that was
left out with those of what the bundle would ship otherwise. Training needs torch; answers do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.config import CORRECTION, SMALL, NNLPConfig
from latfarm_predictors.gnn.family_scores import scores_of_new_families
from latfarm_predictors.gnn.labelled import Labelled
from latfarm_predictors.gnn.nnlp import NNLP
from latfarm_predictors.gnn.shipping import LEAST_FAMILIES, SUM_GP, ShippingDecision, decide
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.predict.nnlp_corrector import NNLPCorrector, encode_for, method_of
from latfarm_predictors.predict.sum_corrector import LEAST_COMPARED, SumCorrector, SummedNetworks

SEEDS = (0, 1, 2)
"""Random seeds of the trainings; the model of the first one is shipped."""
Train = Callable[[Sequence[Labelled], NNLPConfig], NNLP]
"""Trains a graph network; `gnn.learning.fit.fit` does."""
OnStep = Callable[[str, int, int], None]
"""Called with a stage, the steps done, and all steps of that stage."""
STAGE = "graph networks"
"""Name of the stage that is reported."""


@dataclass(frozen=True)
class NNLPTrial:
    """How NNLP is tried.

    Attributes:
        train: trains one graph network.
        configs: the networks that are tried; the one that gains most is shipped, if it wins.
        seeds: random seeds of the trainings.
    """

    train: Train
    configs: tuple[NNLPConfig, ...] = (SMALL, CORRECTION)
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class _Tried:
    """What one graph network did with each family left out.

    Attributes:
        config: its options.
        decision: whether it wins.
        scores: |error of the logarithm| of each network by the first seed, widened for a family
            that was not measured (`gnn.family_scores`), shape (n,).
    """

    config: NNLPConfig
    decision: ShippingDecision
    scores: Array


def tried_nnlp(
    networks: SummedNetworks,
    platform: str,
    incumbent: str,
    trial: NNLPTrial,
    on_step: OnStep,
) -> tuple[NNLPCorrector | None, ShippingDecision]:
    """The graph network, if it wins with a family left out, and the decision.

    Args:
        networks: the measured networks, whose kernels have times by predictors that did not see
            them. Those of unknown families are left out.
        platform: the platform.
        incumbent: method of what the bundle ships otherwise: `sum-gp`, or else the corrected sum.
        trial: how it is tried.
        on_step: is told each training.

    Raises:
        NoTorchError: torch is not installed.
    """
    own = networks.take([row for row, family in enumerate(networks.families) if family])
    families = list(dict.fromkeys(own.families))
    if len(families) < LEAST_FAMILIES or len(own.families) < LEAST_COMPARED:
        return None, _refused(
            method_of(trial.configs[0]),
            f"{len(own.families)} networks of {len(families)} known families were measured; "
            f"{LEAST_COMPARED} of {LEAST_FAMILIES} are needed.",
        )
    steps = _Steps(on_step, len(families) * len(trial.configs) * len(trial.seeds) + 1)
    try:
        baseline = _incumbent_errors(own, incumbent, trial.seeds[0])
        tried = [_try(own, platform, config, trial, baseline, steps) for config in trial.configs]
        winners = [each for each in tried if each.decision.ship]
        best = max(winners or tried, key=lambda each: each.decision.gain)
        if not winners:
            steps.end()
            return None, best.decision
        config = replace(best.config, seed=trial.seeds[0])
        model = trial.train(_rows(own, platform, config), config)
    except NotEnoughDataError as error:
        return None, _refused(method_of(trial.configs[0]), f"Too little was measured: {error}.")
    steps.end()
    return NNLPCorrector(model, platform, best.scores), best.decision


def _refused(method: str, reason: str) -> ShippingDecision:
    """A decision without a comparison."""
    return ShippingDecision(False, reason, 0.0, 0.0, 0.0, (), method)


class _Steps:
    """Counts trainings for whoever looks on."""

    def __init__(self, on_step: OnStep, total: int) -> None:
        self._on_step, self._total, self._done = on_step, total, 0

    def next(self) -> None:
        """Tell that the next training begins."""
        self._on_step(STAGE, self._done, self._total)
        self._done += 1

    def end(self) -> None:
        """Tell that all is done."""
        self._on_step(STAGE, self._total, self._total)


def _try(
    networks: SummedNetworks,
    platform: str,
    config: NNLPConfig,
    trial: NNLPTrial,
    incumbent: dict[str, Array],
    steps: _Steps,
) -> _Tried:
    """Train a graph network without each family in turn, and compare it with the incumbent."""
    rows = _rows(networks, platform, config)
    errors: dict[str, list[Array]] = {}
    scores: dict[str, Array] = {}
    for family in incumbent:
        learned = [r for r, name in zip(rows, networks.families, strict=True) if name != family]
        judged = [r for r, name in zip(rows, networks.families, strict=True) if name == family]
        latency = np.array([row.latency_ms for row in judged])
        for seed in trial.seeds:
            steps.next()
            model = trial.train(learned, replace(config, seed=seed))
            ratio = model.predict([row.graph for row in judged], platform) / latency
            errors.setdefault(family, []).append(np.asarray(np.abs(ratio - 1.0)))
            if seed == trial.seeds[0]:
                scores[family] = np.abs(np.log(ratio))
    decision = replace(decide(errors, incumbent, seed=trial.seeds[0]), method=method_of(config))
    return _Tried(config, decision, scores_of_new_families(scores))


def _rows(networks: SummedNetworks, platform: str, config: NNLPConfig) -> list[Labelled]:
    """The networks as a graph network with these options learns from them."""
    return [
        Labelled(encode_for(config, each), platform, float(latency), hash_of(each.graph))
        for each, latency in zip(networks.sums, networks.latency_ms, strict=True)
    ]


def _incumbent_errors(networks: SummedNetworks, incumbent: str, seed: int) -> dict[str, Array]:
    """Absolute relative errors of what is shipped otherwise, with each family left out in turn."""
    errors: dict[str, Array] = {}
    for family in dict.fromkeys(networks.families):
        left = [row for row, name in enumerate(networks.families) if name == family]
        rest = [row for row, name in enumerate(networks.families) if name != family]
        judged, learned = networks.take(left), networks.take(rest)
        if incumbent == SUM_GP:
            predicted = SumCorrector.fit(learned, seed).predict(judged.sums)[0]
        else:
            correction = NetworkCorrection()
            correction.learn(learned.figures, learned.latency_ms)
            predicted = correction.predict(judged.figures)[0]
        errors[family] = np.asarray(np.abs(predicted / judged.latency_ms - 1.0))
    return errors
