"""A Gaussian process that corrects the sum of kernels, shipped only where it wins.

`chosen_corrector` leaves each family of measured networks out in turn, and compares the process
with the correction that every bundle has (`learned.network_correction`). `gnn.shipping.decide`
says whether it wins. Where it does, a bundle holds it, and it answers in the place of the
correction; the answer names it (`SUM_GP`). Where it does not, the bundle only tells so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.family_scores import scores_of_new_families
from latfarm_predictors.gnn.kernel_graph import KernelSum
from latfarm_predictors.gnn.network_gp import NetworkGP
from latfarm_predictors.gnn.shipping import LEAST_FAMILIES, SUM_GP, ShippingDecision, decide
from latfarm_predictors.gnn.sum_features import TRENDS, sum_features
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import NetworkFigures
from latfarm_predictors.learned.score_pool import ScorePool
from latfarm_predictors.models.base import ModelState

LEAST_COMPARED = 40
"""With fewer measured networks of known families nothing is compared. A Gaussian process on fewer
networks is no match for the simple corrections, and its intervals hold too little (docs/gnn.md)."""
KIND = "sum-corrector"
"""Kind of its state."""


@dataclass(frozen=True)
class SummedNetworks:
    """Measured networks as the predictors of kernels see them; n of each.

    Attributes:
        sums: their kernels with predicted times.
        figures: what the correction of every bundle reads of them.
        latency_ms: measured, shape (n,).
        families: what is left out together; "" is not known.
    """

    sums: Sequence[KernelSum]
    figures: Sequence[NetworkFigures]
    latency_ms: Array
    families: Sequence[str]

    @cached_property
    def features(self) -> Array:
        """What `sum_features` tells of them, shape (n, 11)."""
        return sum_features(self.sums)

    def take(self, rows: Sequence[int]) -> SummedNetworks:
        """Some of the networks, whose features are not computed again."""
        taken = SummedNetworks(
            [self.sums[row] for row in rows],
            [self.figures[row] for row in rows],
            self.latency_ms[list(rows)],
            [self.families[row] for row in rows],
        )
        taken.__dict__["features"] = self.features[list(rows)]
        return taken


class SumCorrector:
    """The process that corrects sums. Thread-safe once it is fitted; it needs numpy alone then.

    Args:
        process: a fitted process.
        scores: scores of all its networks by processes without their family, in ascending order,
            which calibrate intervals; None: those that the process has of its own.
    """

    def __init__(self, process: NetworkGP, scores: Array | None = None) -> None:
        self._process = process
        if scores is not None:
            process.scores = scores

    @staticmethod
    def fit(networks: SummedNetworks, seed: int, scores: Array | None = None) -> SumCorrector:
        """The process whose trend has the least errors with a family left out.

        Args:
            networks: the measured networks.
            seed: random seed of the fit.
            scores: see the class.

        Raises:
            NotEnoughDataError: there are too few networks.
        """
        base = _sums(networks.sums)
        processes = [NetworkGP(trend=columns, seed=seed) for columns in TRENDS]
        for each in processes:
            each.fit(networks.features, networks.latency_ms, base, networks.families)
        return SumCorrector(min(processes, key=lambda each: each.left_out_error), scores)

    @property
    def method(self) -> str:
        """Name of what predicts, for answers."""
        return SUM_GP

    @property
    def calibration(self) -> ScorePool:
        """Scores of networks whose family was left out, which calibrate intervals."""
        return ScorePool(self._process.scores)

    def predict(self, networks: Sequence[KernelSum]) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of each network, each of shape (n,)."""
        return self._process.predict(sum_features(networks), _sums(networks))

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        return ModelState(KIND, parts={"process": self._process.state()})

    @staticmethod
    def from_state(state: ModelState) -> SumCorrector:
        """The corrector whose state this is."""
        return SumCorrector(NetworkGP.from_state(state.parts["process"]))


def chosen_corrector(
    networks: SummedNetworks, seed: int
) -> tuple[SumCorrector | None, ShippingDecision | None]:
    """The corrector, if it wins with a family left out, and the decision.

    Without families, or with too few of them or of networks, nothing is decided: both are None.

    Args:
        networks: the measured networks, whose kernels have times by predictors that did not see
            them.
        seed: random seed of the fits.
    """
    known = [row for row, family in enumerate(networks.families) if family]
    own = networks.take(known)
    families = list(dict.fromkeys(own.families))
    if len(families) < LEAST_FAMILIES or len(known) < LEAST_COMPARED:
        return None, None
    candidate: dict[str, list[Array]] = {}
    incumbent: dict[str, Array] = {}
    scores: dict[str, Array] = {}
    for family in families:
        left = [row for row, name in enumerate(own.families) if name == family]
        rest = [row for row, name in enumerate(own.families) if name != family]
        judged, learned = own.take(left), own.take(rest)
        try:
            process = SumCorrector.fit(learned, seed)
        except NotEnoughDataError:
            return None, None
        correction = NetworkCorrection()
        correction.learn(learned.figures, learned.latency_ms)
        predicted_ms, sigma = process.predict(judged.sums)
        candidate[family] = [_errors(predicted_ms, judged.latency_ms)]
        scores[family] = sum_scores(predicted_ms, sigma, judged.latency_ms)
        incumbent[family] = _errors(correction.predict(judged.figures)[0], judged.latency_ms)
    decision = decide(candidate, incumbent, seed=seed)
    if not decision.ship:
        return None, decision
    return SumCorrector.fit(own, seed, scores_of_new_families(scores)), decision


def sum_scores(predicted_ms: Array, sigma: Array, latency_ms: Array) -> Array:
    """|error of the logarithm| / sigma of n networks that a process did not see, shape (n,)."""
    return np.asarray(np.abs(np.log(latency_ms / predicted_ms)) / sigma)


def _errors(predicted_ms: Array, latency_ms: Array) -> Array:
    return np.asarray(np.abs(predicted_ms / latency_ms - 1.0))


def _sums(networks: Sequence[KernelSum]) -> Array:
    return np.array([each.sum_ms for each in networks])
