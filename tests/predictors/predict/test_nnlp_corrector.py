"""A graph network answers only on a platform where it wins with a family left out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.errors import BundleError, PlatformUnknownError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.config import CORRECTION, SMALL, NNLPConfig
from latfarm_predictors.gnn.labelled import Labelled, scales
from latfarm_predictors.gnn.nnlp import NNLP, PlatformHead
from latfarm_predictors.gnn.parameters import first_values
from latfarm_predictors.gnn.scaling import Scaling
from latfarm_predictors.gnn.shipping import SUM_GP, ShippingDecision
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.answer import SUM
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.nnlp_corrector import NNLP_CORRECTED, NNLP_METHOD, NNLPCorrector
from latfarm_predictors.predict.nnlp_trial import STAGE, NNLPTrial, tried_nnlp
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.sum_corrector import SummedNetworks
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard, random_kernels

from tests.predictors.predict.test_sum_corrector import (
    EACH,
    FAMILIES,
    branched,
    networks,
    one_by_one,
    predictor,
)

__all__ = ["networks", "predictor"]
TINY = replace(SMALL, hidden=4, head_hidden=4)
TINY_CORRECTION = replace(CORRECTION, hidden=4, head_hidden=4)


def untrained(rows: Sequence[Labelled], config: NNLPConfig) -> NNLP:
    """A model that tells the typical latency of its rows, or, of kernels, the sum of their times.

    It takes the place of a training, for which torch is needed.
    """
    heads = scales(rows)
    scaling = Scaling.of([row.graph for row in rows], log_sizes=config.log_sizes)
    drawn = first_values(config, scaling.columns, heads)
    parameters = {name: np.zeros_like(value) for name, value in drawn.items()}
    return NNLP(config, scaling, parameters, {n: PlatformHead(s) for n, s in heads.items()})


TRIAL = NNLPTrial(untrained, (TINY, TINY_CORRECTION), seeds=(0, 1))


def always(count: int) -> Array:
    """Latencies in ms of a board on which all networks take about the same time."""
    return np.asarray(3.0 * np.exp(0.01 * np.random.default_rng(3).standard_normal(count)))


@pytest.fixture(scope="module")
def winner(
    networks: SummedNetworks, predictor: PlatformPredictor
) -> tuple[NNLPCorrector, ShippingDecision]:
    told = replace(networks, latency_ms=always(len(networks.sums)))
    found, decision = tried_nnlp(told, predictor.platform, SUM, TRIAL, lambda *_: None)
    assert found is not None
    return found, decision


def test_it_is_shipped_where_it_wins(
    winner: tuple[NNLPCorrector, ShippingDecision], networks: SummedNetworks
) -> None:
    corrector, decision = winner
    assert decision.ship
    assert decision.method == corrector.method == NNLP_METHOD
    latency, sigma = corrector.predict(networks.sums)
    assert latency == pytest.approx(np.full(len(latency), 3.0), rel=0.05)
    assert (sigma == 1.0).all()
    assert len(corrector.calibration.own) == FAMILIES * EACH


def test_it_is_refused_with_the_reason_where_it_does_not(
    networks: SummedNetworks, predictor: PlatformPredictor
) -> None:
    steps: list[tuple[str, int, int]] = []
    told = replace(networks, latency_ms=one_by_one(networks.sums))
    for incumbent in (SUM, SUM_GP):
        found, decision = tried_nnlp(
            told, predictor.platform, incumbent, TRIAL, lambda *step: steps.append(step)
        )
        assert found is None
        assert not decision.ship
        # the better of both: this board has no other time than the sum of kernels
        assert decision.method == NNLP_CORRECTED
        assert decision.sentence.startswith("not shipped: ")
    trainings = FAMILIES * 2 * 2
    assert steps[: trainings + 1] == [
        *((STAGE, done, trainings + 1) for done in range(trainings)),
        (STAGE, trainings + 1, trainings + 1),
    ]


def test_with_few_networks_nothing_is_trained(
    networks: SummedNetworks, predictor: PlatformPredictor
) -> None:
    found, decision = tried_nnlp(
        networks.take(range(20)), predictor.platform, SUM, TRIAL, lambda *_: None
    )
    assert found is None
    assert decision.reason == ("20 networks of 3 known families were measured; 40 of 3 are needed.")


def test_a_bundle_answers_with_it_and_names_it(
    predictor: PlatformPredictor,
    winner: tuple[NNLPCorrector, ShippingDecision],
    networks: SummedNetworks,
    tmp_path: Path,
) -> None:
    corrector, decision = winner
    path = tmp_path / "bundle.zip"
    save_bundle(replace(predictor, corrector=corrector, shipping=decision), path)
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("bundle.json"))["version"] == 11
    loaded = load_bundle(path)
    answers = loaded.predict_many([each.graph for each in networks.sums])
    expected, _ = corrector.predict(networks.sums)
    assert {answer.method for answer in answers} == {NNLP_METHOD}
    assert [answer.latency_ms for answer in answers] == pytest.approx(list(expected), rel=1e-6)
    truth = always(len(answers))
    inside = [
        a.interval_ms[0] <= t <= a.interval_ms[1] for a, t in zip(answers, truth, strict=True)
    ]
    assert np.mean(inside) >= 0.85
    assert all(answer.calibrated for answer in answers)
    assert loaded.shipping == decision
    assert loaded.explain()["corrector"]["method"] == NNLP_METHOD


def test_a_damaged_part_is_refused(
    predictor: PlatformPredictor,
    winner: tuple[NNLPCorrector, ShippingDecision],
    tmp_path: Path,
) -> None:
    corrector, _ = winner
    state = corrector.state()
    bias = next(name for name in state.arrays if name.endswith(".bias"))
    changes = {
        bias: state.arrays[bias][:-1],
        "left_out_scores": -state.arrays["left_out_scores"],
        "scaling.node_mean": state.arrays["scaling.node_mean"][:-1],
    }
    for name, array in changes.items():
        damaged = replace(state, arrays={**state.arrays, name: array})
        with pytest.raises(ValueError, match=r"shape|scores|broadcast"):
            NNLPCorrector.from_state(damaged)

    class Damaged(NNLPCorrector):
        def state(self) -> ModelState:
            own = super().state()
            return replace(own, arrays={**own.arrays, bias: own.arrays[bias][:-1]})

    damaged_part = Damaged.__new__(Damaged)
    vars(damaged_part).update(vars(corrector))
    save_bundle(replace(predictor, corrector=damaged_part), tmp_path / "damaged.zip")
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "damaged.zip")
    with pytest.raises(PlatformUnknownError):
        NNLPCorrector(corrector._model, "another platform", np.zeros(9))


def test_decisions_keep_those_before_them() -> None:
    first = ShippingDecision(False, "No.", 0.0, -0.1, 0.1, ("a",))
    second = ShippingDecision(True, "Yes.", 0.2, 0.1, 0.3, (), NNLP_METHOD, first)
    assert first.method == SUM_GP
    assert [each.method for each in second.all] == [SUM_GP, NNLP_METHOD]
    told = json.loads(json.dumps(second.to_json()))
    assert ShippingDecision.from_json(told) == second
    del told["before"], told["method"]
    assert ShippingDecision.from_json(told) == replace(second, before=None, method=SUM_GP)


def test_a_training_that_asks_for_it_decides_and_says_so() -> None:
    board, rng = SyntheticBoard(), np.random.default_rng(0)
    samples = [
        replace(board.network_sample(branched(family, number), rng), family=f"family{family}")
        for family in range(5)
        for number in range(8)
    ]
    kernels = [board.kernel_sample(each, rng) for each in random_kernels(rng, {"conv": 30})]
    constant = always(len(samples))
    told = [
        replace(sample, latency_ms=float(latency))
        for sample, latency in zip(samples, constant, strict=True)
    ]
    fitted = fit_predictor(
        PlatformSamples("p", RULES, kernels, told, call_overhead_ms=board.call_ms),
        baselines=False,
        nnlp=replace(TRIAL, configs=(TINY,)),
    )
    assert fitted.shipping is not None
    assert [each.method for each in fitted.shipping.all] == [SUM_GP, NNLP_METHOD]
    answer = fitted.predict(branched(5, 1))
    winner = next((each for each in fitted.shipping.all[::-1] if each.ship), None)
    assert answer.method == (SUM if winner is None else winner.method)
