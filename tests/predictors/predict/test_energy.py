"""Predicted energies of a synthetic board."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.errors import NoEnergyError, NotEnoughDataError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.measurement import Measurement, Outcome, Settings, request_id
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.energy import EnergyUnit, KernelEnergySample, NetworkEnergySample
from latfarm_predictors.predict.energy_fitting import EnergySamples, fit_energy_predictor
from latfarm_predictors.predict.predictor import EnergyPredictor, PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.testing.synthetic import (
    RULES,
    SyntheticBoard,
    random_kernels,
    random_network,
)

BOARD = SyntheticBoard()
STATIC_W, MAC_PJ, BYTE_PJ = 1.7, 25.0, 400.0
CALL_MJ = 0.02
COUNTS = {"conv": 40, "dwconv": 14, "fc": 10, "pool": 10, "eltwise": 14, "concat": 8}
NOISE = 0.02


def kernel_mj(work: Workload) -> float:
    """Energy of a kernel in mJ: leakage while it runs, its arithmetic, its memory traffic."""
    moved = work.input_bytes + work.output_bytes + work.weight_bytes
    static_mj = STATIC_W * BOARD.kernel_true_ms(work)
    return static_mj + (MAC_PJ * work.macs + BYTE_PJ * moved) * 1e-9


def network_mj(graph: Graph) -> float:
    return CALL_MJ + sum(kernel_mj(workload(kernel)) for kernel in split(graph, RULES))


@pytest.fixture(scope="module")
def fitted() -> EnergyPredictor:
    rng = np.random.default_rng(7)
    kernels = []
    for kernel in random_kernels(rng, COUNTS):
        work = workload(kernel)
        measured_mj = (kernel_mj(work) + CALL_MJ) * float(np.exp(NOISE * rng.standard_normal()))
        latency_ms = BOARD.kernel_true_ms(work) + BOARD.call_ms
        kernels.append(KernelEnergySample(kernel, measured_mj, NOISE * measured_mj, latency_ms))
    networks = []
    for index in range(12):
        graph = random_network(rng, f"cal{index}")
        measured_mj = network_mj(graph) * float(np.exp(NOISE * rng.standard_normal()))
        networks.append(NetworkEnergySample(graph, measured_mj, NOISE * measured_mj))
    return fit_energy_predictor(
        EnergySamples(
            "synthetic-1t",
            RULES,
            kernels,
            networks,
            call_overhead_mj=CALL_MJ,
            call_overhead_ms=BOARD.call_ms,
            rail="ina3221:VDD_IN",
            idle_mw=1234.5,
        )
    )


@pytest.fixture(scope="module")
def both(predictor: PlatformPredictor, fitted: EnergyPredictor) -> PlatformPredictor:
    """A predictor of latencies and energies."""
    return replace(predictor, energy=fitted)


def test_unseen_networks_are_within_a_few_percent(both: PlatformPredictor) -> None:
    rng = np.random.default_rng(99)
    graphs = [random_network(rng, f"new{i}") for i in range(12)]
    answers = both.predict_energies(graphs)
    errors = [a.energy_mj / network_mj(g) - 1 for a, g in zip(answers, graphs, strict=True)]
    assert np.median(np.abs(errors)) < 0.03
    assert max(map(abs, errors)) < 0.12
    inside = [
        a.interval_mj[0] <= network_mj(g) <= a.interval_mj[1]
        for a, g in zip(answers, graphs, strict=True)
    ]
    assert sum(inside) >= 9, "of 12, at 90 %"
    assert all(a.calibrated for a in answers)


def test_an_answer_in_millijoules(both: PlatformPredictor) -> None:
    graph = random_network(np.random.default_rng(3), "one", depth=3)
    answer, latency = both.predict_energy(graph, 0.8), both.predict(graph)
    assert (answer.network, answer.platform, answer.coverage) == ("one", "synthetic-1t", 0.8)
    assert (answer.rail, answer.idle_mw) == ("ina3221:VDD_IN", 1234.5)
    assert [k.nodes for k in answer.kernels] == [k.nodes for k in latency.kernels]
    total_mj = sum(kernel.energy_mj for kernel in answer.kernels) + CALL_MJ
    assert answer.energy_mj == pytest.approx(total_mj, rel=0.15)
    for kernel in answer.kernels:
        assert kernel.interval_mj[0] <= kernel.energy_mj <= kernel.interval_mj[1]
    json.dumps(answer.to_json(), allow_nan=False)


def test_a_bundle_carries_both(both: PlatformPredictor, tmp_path: Path) -> None:
    graphs = [random_network(np.random.default_rng(5), f"net{i}") for i in range(3)]
    name = save_bundle(both, tmp_path / "both.zip")
    loaded = load_bundle(tmp_path / "both.zip")
    assert loaded.bundle == name
    ours, theirs = both.predict_energies(graphs), loaded.predict_energies(graphs)
    assert theirs == [replace(answer, bundle=name) for answer in ours]
    assert [a.latency_ms for a in loaded.predict_many(graphs)] == [
        a.latency_ms for a in both.predict_many(graphs)
    ]
    told = loaded.explain()["energy"]
    assert told["rail"] == "ina3221:VDD_IN"
    assert told["kernels"] == both.explain()["energy"]["kernels"]
    assert told["call_overhead_mj"] == pytest.approx(CALL_MJ)


def test_a_bundle_without_energies_says_how_to_get_them(
    predictor: PlatformPredictor, tmp_path: Path
) -> None:
    save_bundle(predictor, tmp_path / "old.zip")
    loaded = load_bundle(tmp_path / "old.zip")
    assert loaded.energy is None
    assert "energy" not in loaded.explain()
    graph = random_network(np.random.default_rng(5), "net")
    assert loaded.predict(graph).latency_ms > 0
    with pytest.raises(NoEnergyError, match=r"synthetic-1t@.* no energies.*characterize.*--energy"):
        loaded.predict_energy(graph)


def test_a_state_without_the_part_of_energies_can_be_read(
    both: PlatformPredictor, predictor: PlatformPredictor
) -> None:
    """Energies are a part of their own; without it the state is that of an older version."""
    state = state_of(both)
    assert state.values == state_of(predictor).values
    assert set(state.parts) - set(state_of(predictor).parts) == {"energy"}
    parts = {name: part for name, part in state.parts.items() if name != "energy"}
    plain = ModelState(state.kind, state.values, state.arrays, state.texts, parts)
    graph = random_network(np.random.default_rng(5), "net")
    again = predictor_of(plain)
    assert again.predict(graph).latency_ms == both.predict(graph).latency_ms


def test_only_the_unit_differs(fitted: EnergyPredictor) -> None:
    """Ten times the energy is ten times the answer, with the same relative interval."""
    graph = random_network(np.random.default_rng(8), "net")
    stronger = EnergyPredictor(fitted.inner, EnergyUnit(10 * fitted.unit.reference_mw))
    (weak,) = fitted.predict_many([graph], 0.9, "")
    (strong,) = stronger.predict_many([graph], 0.9, "")
    assert strong.energy_mj == pytest.approx(10 * weak.energy_mj)
    assert strong.interval_mj[1] == pytest.approx(10 * weak.interval_mj[1])


def test_too_few_energies_make_no_predictor(fitted: EnergyPredictor) -> None:
    rng = np.random.default_rng(0)
    (kernel,) = random_kernels(rng, {"conv": 1})
    for samples in (
        [],
        [KernelEnergySample(kernel, 1.0, 0.1, 1.0)],
        [KernelEnergySample(kernel, float("nan"), 0.1, 1.0)] * 20,
    ):
        with pytest.raises(NotEnoughDataError):
            fit_energy_predictor(
                EnergySamples("p", RULES, samples, [], call_overhead_mj=None, call_overhead_ms=0.01)
            )


def test_a_request_without_energy_keeps_its_name() -> None:
    """The names are those of an older version, so that stored campaigns find their measurements."""
    plain = request_id("g", "p", "kernel", Settings(), 0)
    assert plain == "5c6eb20fd3fbb0dce573460af93c1472"
    asked = request_id("g", "p", "kernel", Settings(energy_ms=1000.0), 0)
    assert asked not in (plain, request_id("g", "p", "kernel", Settings(energy_ms=500.0), 0))


def test_a_measurement_keeps_its_energy_or_its_reason() -> None:
    bare = Measurement("r", "g", "p", "kernel", Outcome.OK, latency_ms=1.0)
    told = replace(
        bare,
        energy_mj=2.0,
        energy_gross_mj=3.0,
        energy_spread_mj=0.1,
        idle_mw=500.0,
        energy_source="rapl:package-0",
        conditions={"energy": "ok"},
    )
    story = "ENERGY_UNAVAILABLE: the board has no rail"
    silent = replace(bare, conditions={"energy": story})
    for measurement in (bare, told, silent):
        assert Measurement.from_json(measurement.to_json()) == measurement
    assert [m.energy_story for m in (bare, told, silent)] == ["", "", story]
