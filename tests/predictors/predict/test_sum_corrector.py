"""A process on sums of kernels answers only where it wins with a family left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.errors import BundleError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.kernel_graph import KernelSum, critical_path_ms
from latfarm_predictors.gnn.network_gp import NetworkGP
from latfarm_predictors.gnn.shipping import SUM_GP
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import workloads_of
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.predict.answer import SUM
from latfarm_predictors.predict.kernel_estimates import estimate
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.sum_corrector import (
    SumCorrector,
    SummedNetworks,
    chosen_corrector,
)
from latfarm_predictors.sample import load_sample

FAMILIES, EACH = 6, 8


def branched(family: int, number: int) -> Graph:
    """A network of pairs of branches; the smaller one waits for nobody on some boards."""
    rng = np.random.default_rng(100 * family + number)
    builder = GraphBuilder(f"family{family}-{number}")
    x = builder.conv(builder.input((1, 3, 32, 32)), 16 + 4 * family, 3)
    for _ in range(2 + family % 3):
        wide = builder.conv(x, int(rng.integers(24, 64)), 3)
        narrow = builder.conv(x, int(rng.integers(4, 64)), 3)
        x = builder.relu(builder.concat([wide, narrow]))
    return builder.build([x])


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    return load_sample()


@pytest.fixture(scope="module")
def networks(predictor: PlatformPredictor) -> SummedNetworks:
    """Networks without a latency yet."""
    sums, figures, families = [], [], []
    for family in range(FAMILIES):
        for number in range(EACH):
            graph = branched(family, number)
            parts = find_parts(graph, predictor.rules)
            found = estimate(predictor.models, predictor.measured, workloads_of(graph, parts))
            fixed_ms = predictor.fixed_ms(boundary_mb(graph))
            sums.append(KernelSum(graph, parts, found.latency_ms, fixed_ms))
            figures.append(predictor.figures(graph))
            families.append(f"family{family}")
    return SummedNetworks(sums, figures, np.ones(len(sums)), families)


def at_once(sums: Sequence[KernelSum]) -> Array:
    """Latencies in ms on a board that computes branches beside each other."""
    rng = np.random.default_rng(1)
    told = [critical_path_ms(each) + each.fixed_ms for each in sums]
    return np.array(told) * np.exp(0.01 * rng.standard_normal(len(sums)))


def one_by_one(sums: Sequence[KernelSum]) -> Array:
    """Latencies in ms on a board that computes one kernel after the other."""
    rng = np.random.default_rng(2)
    told = np.array([each.sum_ms for each in sums])
    return np.asarray(told * np.exp(0.01 * rng.standard_normal(len(sums))))


@pytest.fixture(scope="module")
def winner(networks: SummedNetworks) -> SumCorrector:
    found, decision = chosen_corrector(replace(networks, latency_ms=at_once(networks.sums)), 0)
    assert decision is not None
    assert decision.ship, decision.reason
    assert decision.gain > 0.0
    assert found is not None
    return found


def test_it_is_shipped_where_times_of_kernels_do_not_add_up(
    winner: SumCorrector, networks: SummedNetworks
) -> None:
    predicted, sigma = winner.predict(networks.sums)
    errors = np.abs(predicted / at_once(networks.sums) - 1.0)
    assert float(errors.mean()) < 0.05
    assert (sigma > 0.0).all()
    assert len(winner.calibration.own) == FAMILIES * EACH


def test_it_is_not_shipped_where_they_do(networks: SummedNetworks) -> None:
    told = replace(networks, latency_ms=one_by_one(networks.sums))
    found, decision = chosen_corrector(told, 0)
    assert found is None
    assert decision is not None
    assert not decision.ship
    assert decision.sentence.startswith("not shipped: ")


def test_nothing_is_compared_with_few_networks_or_families(networks: SummedNetworks) -> None:
    assert chosen_corrector(networks.take(range(20)), 0) == (None, None)
    unknown = replace(networks, families=[""] * len(networks.families))
    assert chosen_corrector(unknown, 0) == (None, None)
    two = replace(networks, families=["a", "b"] * (len(networks.families) // 2))
    assert chosen_corrector(two, 0) == (None, None)


def test_a_bundle_answers_with_it_by_numpy_alone(
    predictor: PlatformPredictor,
    winner: SumCorrector,
    networks: SummedNetworks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_bundle(replace(predictor, corrector=winner), tmp_path / "bundle.zip")

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} was needed for an answer")

    monkeypatch.setattr("latfarm_predictors.gnn.network_gp.library", refuse)
    loaded = load_bundle(tmp_path / "bundle.zip")
    graphs = [each.graph for each in networks.sums]
    answers = loaded.predict_many(graphs)
    expected, _ = winner.predict(networks.sums)
    assert {answer.method for answer in answers} == {SUM_GP}
    assert [answer.latency_ms for answer in answers] == pytest.approx(list(expected), rel=1e-9)
    truth = at_once(networks.sums)
    inside = [
        a.interval_ms[0] <= t <= a.interval_ms[1] for a, t in zip(answers, truth, strict=True)
    ]
    assert np.mean(inside) >= 0.9
    assert all(answer.calibrated for answer in answers)
    assert answers[0].to_json()["method"] == SUM_GP
    assert predictor.predict(graphs[0]).method == SUM


def test_a_state_whose_sizes_do_not_agree_is_refused(
    predictor: PlatformPredictor, winner: SumCorrector, tmp_path: Path
) -> None:
    state = winner.state().parts["process"]
    for name in ("inverse", "lengths", "columns", "weights"):
        arrays = {**state.arrays, name: state.arrays[name][:-1]}
        with pytest.raises(ValueError, match="is not of shape"):
            NetworkGP.from_state(replace(state, arrays=arrays))
    beyond = {**state.arrays, "columns": state.arrays["columns"] + 100}
    with pytest.raises(ValueError, match="names other features"):
        NetworkGP.from_state(replace(state, arrays=beyond))

    class Damaged(SumCorrector):
        def state(self) -> Any:
            own = super().state()
            arrays = {**state.arrays, "weights": state.arrays["weights"][1:]}
            return replace(own, parts={"process": replace(state, arrays=arrays)})

    damaged = Damaged(NetworkGP.from_state(state))
    save_bundle(replace(predictor, corrector=damaged), tmp_path / "damaged.zip")
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "damaged.zip")
