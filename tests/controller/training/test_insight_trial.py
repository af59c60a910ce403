"""The trial of kernel times: on each board the way wins that tells what its networks take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.kernels import survey as kernel_stage
from latfarm_controller.campaigns.networks import campaign as network_stage
from latfarm_controller.campaigns.profiles import profiled_draw
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform
from latfarm_controller.training.insight_trial import (
    LEAST_NETWORKS,
    InsightTrial,
    choose_way,
    gather_ways,
    judge,
    told_basis,
    try_insights,
)
from latfarm_controller.training.training import read_inputs
from latfarm_controller.training.training_set import Basis
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

PLATFORM = "sim-trial"
RULES = FusionRules({("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"})
FAMILIES = {name: zoo.families()[name] for name in ("squeezenet", "vgg11")}
TRUTH = SimulatedPlatform(rules=RULES, overhead_ms=0.02)
MOVED_MS_PER_MB = 2.0
"""What a model of a single kernel pays for moving its tensors, on boards where that costs."""

Layers = Callable[[Graph], list[ProfiledLayer]]


@dataclass
class TrialBoard:
    """How a board answers: what its profiles show, and what kernels pay when they run alone."""

    recorded: str
    layers: Layers
    moves: bool = False
    padded: bool = False
    answers: list[tuple[Measurement, Graph]] = field(default_factory=list)

    def measure(self, graph: Graph, purpose: str) -> float:
        latency_ms = TRUTH.exact_ms(graph)
        if self.moves and purpose == kernel_stage.PURPOSE:
            latency_ms += MOVED_MS_PER_MB * boundary_mb(graph)
        layers = self.layers(graph)
        name = f"{purpose}-{len(self.answers)}"
        found = Measurement(
            name,
            hash_of(graph),
            PLATFORM,
            purpose,
            Outcome.OK,
            latency_ms=latency_ms,
            mad_ms=0.005 * latency_ms,
            fingerprint="f0",
            layers=tuple(layers),
        )
        self.answers.append((found, graph))
        return latency_ms

    def outcome(self, kernels: list[Kernel]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "rules": RULES.to_json(),
            "call_overhead_ms": TRUTH.overhead_ms,
            "insight": {"asked": "auto", "chosen": self.recorded, "reason": "a threshold"},
        }
        if self.padded:
            times = {}
            for kernel in kernels:
                own_ms = TRUTH.exact_ms(kernel.graph) - TRUTH.overhead_ms
                limits = {"lower_ms": own_ms, "upper_ms": own_ms, "noise_ms": 0.01 * own_ms}
                times[hash_of(kernel.graph)] = {"insight": "padded", **limits}
            found["padding"] = {"times": times}
        return found


def true_layers(graph: Graph) -> list[ProfiledLayer]:
    _, kernels = TRUTH._split(graph)
    return [ProfiledLayer("+".join(k.node_names), k.main.op, TRUTH._kernel_ms(k)) for k in kernels]


def lying_layers(graph: Graph) -> list[ProfiledLayer]:
    """A profile that shows a random share of each layer as a change of layout."""
    found = []
    for layer in true_layers(graph):
        share = Random(f"{hash_of(graph)} {layer.name}").uniform(0.05, 0.9)
        whole = layer.latency_ms
        found.append(ProfiledLayer(f"{layer.name}:layout", "Reorder", share * whole))
        found.append(ProfiledLayer(layer.name, layer.op, (1 - share) * whole))
    return found


def no_layers(graph: Graph) -> list[ProfiledLayer]:
    del graph
    return []


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = DuckDBStore(tmp_path / "latfarm.duckdb")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Kernel], list[Graph], list[Graph]]:
    """Kernels, networks to profile, and networks that judge."""
    kernels = KernelPrior(FAMILIES, seed=1, max_macs=400_000_000).draw(50, RULES)
    networks = list(islice(KernelPrior(FAMILIES, seed=2).networks(macs=(3e7, 1.5e9)), 12))
    return kernels, networks[:4], networks[4:]


def tried(
    store: Store, board: TrialBoard, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> InsightTrial:
    kernels, profiled, judges = drawn
    for kernel in kernels:
        board.measure(kernel.graph, kernel_stage.PURPOSE)
    for graph in profiled:
        board.measure(graph, profiled_draw.PURPOSE)
    for graph in judges:
        board.measure(graph, network_stage.PURPOSE)
    store.add_measurements("c1", board.answers)
    outcome = board.outcome(kernels)
    store.put_campaign(
        CampaignRecord("c1", "c1", "characterize", PLATFORM, state="done", outcome=outcome)
    )
    data, trial = try_insights(store, PLATFORM, "c1")
    assert bool(data.places) == (trial.chosen.inside and board.layers is not no_layers)
    return trial


def test_a_true_profile_wins_where_a_threshold_preferred_kernels_alone(
    store: Store, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> None:
    trial = tried(store, TrialBoard("single", true_layers, moves=True), drawn)
    assert trial.chosen.kernels == "profile"
    assert trial.errors[str(trial.chosen)] < 0.5 * trial.errors["single"]
    assert trial.networks == 8


@pytest.mark.slow
def test_kernels_alone_win_where_the_profile_lies(
    store: Store, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> None:
    trial = tried(store, TrialBoard("profile", lying_layers), drawn)
    assert trial.chosen.kernels == "single"
    assert trial.errors[str(trial.chosen)] < 0.7 * trial.errors["profile"]


def test_pads_win_where_moving_tensors_costs_and_nothing_is_profiled(
    store: Store, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> None:
    board = TrialBoard("single", no_layers, moves=True, padded=True)
    trial = tried(store, board, drawn)
    assert trial.chosen.kernels == "padded"
    assert trial.to_json()["errors"]["padded"] < 0.5 * trial.errors[str(Basis("single", True))]


@pytest.mark.slow
def test_the_recorded_way_stays_where_all_ways_tell_the_same(
    store: Store, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> None:
    trial = tried(store, TrialBoard("profile", true_layers), drawn)
    assert trial.chosen == Basis("profile", inside=True)
    assert trial.reason == "no other way predicts networks clearly better"


def test_no_trial_without_judges_or_where_somebody_chose(
    store: Store, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> None:
    kernels, profiled, judges = drawn
    few = kernels, profiled, judges[: LEAST_NETWORKS - 1]
    trial = tried(store, TrialBoard("single", true_layers, moves=True), few)
    assert trial.chosen == Basis("single", inside=True)
    assert trial.reason == f"{LEAST_NETWORKS - 1} networks are too few to judge"
    record = store.get_campaign("c1")
    assert record is not None
    outcome = {**record.outcome, "insight": {"asked": "single", "chosen": "single"}}
    store.put_campaign(
        CampaignRecord("c1", "c1", "characterize", PLATFORM, state="done", outcome=outcome)
    )
    assert try_insights(store, PLATFORM, "c1")[1].reason == "single was asked for"


def test_what_adds_to_a_bundle_keeps_its_basis(
    store: Store, drawn: tuple[list[Kernel], list[Graph], list[Graph]]
) -> None:
    assert (
        tried(store, TrialBoard("single", true_layers, moves=True), drawn).chosen.kernels
        != "single"
    )
    kept = Basis("single", inside=False)
    data, trial = choose_way(gather_ways(store, PLATFORM, "c1", kept=kept))
    assert (trial.chosen, trial.reason) == (kept, "as the bundle that it adds to")
    assert not data.places
    assert {sample.insight for sample in data.kernels} == {"single"}


def test_the_noise_of_a_host_is_told_once_however_many_ways_are_tried(
    store: Store,
    drawn: tuple[list[Kernel], list[Graph], list[Graph]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = TrialBoard("single", true_layers, moves=True)
    tried(store, board, drawn)
    again = [
        (replace(m, request_id=f"{m.request_id}-again", latency_ms=1.5 * (m.latency_ms or 0.0)), g)
        for m, g in board.answers
        if m.purpose == kernel_stage.PURPOSE
    ]
    store.add_measurements("c1", again)
    assert not caplog.text
    inputs = read_inputs(store, PLATFORM, "c1")
    assert len(inputs.ways.tried) > 1
    assert caplog.text.count("nothing that is unstable here can be trusted") == 1


def test_another_way_must_be_clearly_better() -> None:
    own, other = Basis("single", inside=True), Basis("profile", inside=True)
    usual = np.full(20, 0.1)
    rng = np.random.default_rng(0)
    for gain, chosen in ((0.001, own), (0.03, other)):
        noisy = usual - gain + 0.001 * rng.standard_normal(20)
        assert judge(own, {own: usual, other: noisy}).chosen == chosen
    lucky = usual.copy()
    lucky[0] = 0.0  # one network alone decides nothing
    assert judge(own, {own: usual, other: lucky}).chosen == own
    assert judge(own, {own: usual}).chosen == own
    assert judge(own, {other: usual}).chosen == own


def test_a_bundle_tells_its_basis() -> None:
    trial = InsightTrial(Basis("single", inside=False), "won", 20, {"single": 0.1})
    told = {"campaign": "c1", "insight": {"trial": trial.to_json()}}
    assert told_basis(told, "c1") == trial.chosen
    assert told_basis(told, "c2") is None
    assert told_basis({"campaign": "c1", "insight": {}}, "c1") is None
