"""Which insight a characterisation chooses, how it records it, and how training uses it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels.padding_profile import own_share
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.pads.models import padded
from latfarm_controller.campaigns.profiles.insight import choose, insight_story, untold_share
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import drive
from latfarm_controller.training.fit_bundle import provenance
from latfarm_controller.training.training_set import TrainingSet, collect
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

from benchmarks.platforms import simulated_boards

NPU = BoardProfile.from_json(simulated_boards.profile("npu", noise=0.0))
RULES = FusionRules(pairs=dict.fromkeys(NPU.fused_pairs, "fused"), multi_inbound=2)
CONFIG: dict[str, Any] = {
    "budget": 24,
    "calibration": 3,
    "most_macs": 2e8,
    "rules": RULES.to_json(),
    "fusion": {"pairs": [], "sizes": ["small"]},
}


def measure(request: MeasurementRequest) -> Measurement:
    """Measure on an NPU with slow transfers and no noise; profiles do not show the transfers."""
    data = request.graph.to_json()
    layers = exact_layers(data, NPU) if request.profile else []
    latency_ms = exact_latency_ms(data, NPU)
    return Measurement(
        request.request_id,
        hash_of(request.graph),
        request.platform,
        request.purpose,
        Outcome.OK,
        latency_ms=latency_ms,
        mad_ms=0.0,
        cold_ms=latency_ms * 1.1 if request.settings.cold_runs else None,
        board_ms=20.0,
        settings=request.settings,
        layers=tuple(ProfiledLayer(row.name, row.op, row.latency_ms) for row in layers),
    )


def measure_with_transfers(request: MeasurementRequest) -> Measurement:
    """Measure on the same board, but profiles count transfers in the first and last layers."""
    found = measure(request)
    if not found.layers:
        return found
    graph, layers = request.graph, list(found.layers)
    for place, names in ((0, graph.inputs), (-1, graph.outputs)):
        moved_ms = sum(graph.type_of(t).size_bytes for t in names) / NPU.io_bytes_per_ms
        layers[place] = replace(layers[place], latency_ms=layers[place].latency_ms + moved_ms)
    return replace(found, layers=tuple(layers))


def characterised(
    tmp_path: Path, answer: Any = measure, **config: Any
) -> tuple[dict[str, Any], TrainingSet]:
    campaign = make_campaign("characterize", "sim-npu", {**CONFIG, **config})
    answers: list[tuple[Measurement, Graph]] = []

    def kept(request: MeasurementRequest) -> Measurement:
        answers.append((answer(request), request.graph))
        return answers[-1][0]

    drive(campaign, kept)
    outcome = dict(campaign.outcome())
    store = DuckDBStore(tmp_path / "latfarm.duckdb")
    try:
        store.add_measurements("c1", answers)
        store.put_campaign(
            CampaignRecord("c1", "c1", "characterize", "sim-npu", state="done", outcome=outcome)
        )
        return outcome, collect(store, "sim-npu", "c1")
    finally:
        store.close()


def error(data: TrainingSet) -> float:
    """The median relative error of the samples' latencies."""
    errors = []
    for sample in data.kernels:
        graph = sample.kernel.graph.to_json()
        exact_ms = sum(layer.latency_ms for layer in exact_layers(graph, NPU))
        own_ms = data.call_overhead_ms if sample.insight == "single" else 0.0
        errors.append(abs((sample.latency_ms - own_ms) / exact_ms - 1))
    return median(errors)


@pytest.mark.slow
def test_a_profile_that_explains_the_call_is_chosen(tmp_path: Path) -> None:
    config = {**CONFIG, "fusion": {"pairs": [["conv", "relu"], ["relu", "conv"]]}}
    outcome, data = characterised(tmp_path, **config, insight="auto")
    told = outcome["insight"]
    assert (told["asked"], told["chosen"]) == ("auto", "profile")
    assert told["reason"] == "the profile accounts for the call"
    assert told["counts"] == {"profile": 24}
    assert "padding" not in outcome
    # Some kernels were profiled between pads too, and took the same time.
    assert 22 <= outcome["within_pads"]["measurements"] <= 24
    assert abs(outcome["within_pads"]["difference"]) < 0.05
    assert not outcome["within_pads"]["used"]
    assert outcome["within_pads"]["times"] == {}
    assert error(data) < 0.01
    assert data.insight["chosen"] == "profile"


@pytest.mark.slow
def test_kernels_are_profiled_between_pads_where_that_differs(tmp_path: Path) -> None:
    pairs = [["conv", "relu"], ["relu", "conv"], ["max_pool", "relu"]]
    outcome, data = characterised(
        # Only a few heads: their few kernels would share the time of moving the image.
        tmp_path,
        measure_with_transfers,
        fusion={"pairs": pairs, "sizes": ["small"]},
        heads=3,
    )
    assert outcome["insight"]["chosen"] == "profile"
    found = outcome["within_pads"]
    assert found["used"]
    assert found["difference"] > 1.0
    assert 22 <= found["measurements"] <= 24
    # Kernels that no pad isolates are scaled: no kernel keeps its time alone.
    assert len(found["times"]) == 24
    assert found["scaled"] <= 2
    assert error(data) < 0.06
    assert {sample.insight for sample in data.kernels} == {"profile"}


def test_a_layer_that_covers_kernel_and_pad_gives_no_share() -> None:
    b = GraphBuilder("lum")
    model = padded(Kernel(b.build([b.max_pool(b.input((1, 8, 14, 14)), 3)])))
    own = next(iter(model.own))
    pad = next(node.name for node in model.graph.nodes if node.name not in model.own)

    def taken(*names: str) -> Measurement:
        layers = tuple(ProfiledLayer(name, "", 1.0) for name in names)
        return Measurement("r", "g", "p", "padding", Outcome.OK, latency_ms=1.0, layers=layers)

    assert own_share(model, taken(pad, own, pad, pad)) == 0.25
    assert own_share(model, taken(pad, f"{own}+{pad}")) is None
    assert own_share(model, taken(pad, "reorder")) == 0.0
    assert own_share(model, taken()) is None


@pytest.mark.slow
def test_without_a_profile_kernels_are_measured_between_pads(tmp_path: Path) -> None:
    config = {"fusion": {"pairs": [], "profile": False}}
    outcome, data = characterised(tmp_path, **config)
    told = outcome["insight"]
    assert told["chosen"] == "padded"
    assert re.fullmatch(
        r"no profile was asked for, and moving tensors costs [89]\d% of a call", told["reason"]
    )
    assert told["counts"]["padded"] >= 22
    assert set(told["kernels"].values()) <= {"padded", "single"}
    assert len(told["kernels"]) == 24
    assert error(data) < 0.03
    # The time that a kernel takes longer alone is that of moving its data.
    assert data.transfer_ms_per_mb == pytest.approx(1e6 / NPU.io_bytes_per_ms, rel=0.05)
    # Caches were flushed for kernels alone only: the extra time is added to padded ones.
    assert all(s.cold_ms is not None and s.cold_ms > s.latency_ms for s in data.kernels)
    found = provenance(data, 0, 0.0)["insight"]
    assert found["chosen"] == "padded"
    assert found["kernels"] == told["counts"]
    # Every padded kernel and every padding-only model is measured twice. No pad makes the token ids
    # that some kernels of language models read.
    padding = outcome["padding"]
    padded = 24 - padding["rejected"].get("cannot be padded", 0)
    assert padded >= 22
    assert padding["measurements"] == 2 * (padded + padding["padding_only_models"])
    assert padding["padding_only_models"] < 2 * 24


def test_single_layers_are_chosen_when_asked_for(tmp_path: Path) -> None:
    outcome, data = characterised(tmp_path, insight="single")
    assert outcome["insight"]["counts"] == {"single": 24}
    assert outcome["insight"]["reason"] == "asked for"
    assert {sample.insight for sample in data.kernels} == {"single"}
    assert data.transfer_ms_per_mb == 0.0
    assert error(data) > 1.0


def profiled(shown: float) -> list[tuple[Graph, Measurement]]:
    rows = []
    for side in (8, 16, 32):
        b = GraphBuilder("g")
        graph = b.build([b.relu(b.input((1, 4, side, side)))])
        layers = (ProfiledLayer("relu", "Relu", shown),)
        found = Measurement(
            "r", hash_of(graph), "p", "fusion", Outcome.OK, latency_ms=1.1, layers=layers
        )
        rows.append((graph, found))
    return rows


@pytest.mark.parametrize(
    ("asked", "profile", "shown", "chosen", "reason"),
    [
        ("auto", "yes", 1.0, "profile", "the profile accounts for the call"),
        ("auto", "yes", 0.9, "profile", "the profile accounts for the call"),
        ("auto", "yes", 2.0, "padded", "the profile leaves 100% of a call open"),
        ("auto", "unavailable", 1.0, "padded", "the runtime has no profile"),
        ("auto", "opaque", 1.0, "padded", "the profile hides single layers"),
        ("profile", "yes", 2.0, "profile", "asked for"),
        ("profile", "unavailable", 1.0, "padded", "the runtime has no profile"),
        ("single", "yes", 1.0, "single", "asked for"),
        ("padded", "yes", 1.0, "padded", "asked for"),
    ],
)
def test_the_best_insight_of_a_platform_is_chosen(
    asked: Any, profile: str, shown: float, chosen: str, reason: str
) -> None:
    found = choose(asked, profile, profiled(shown), 0.1)
    assert (found.asked, found.chosen, found.reason) == (asked, chosen, reason)


@pytest.mark.parametrize(
    ("asked", "profile", "boundary", "chosen"),
    [
        ("auto", "opaque", 0.5, "padded"),
        ("auto", "opaque", 0.1, "single"),
        ("auto", "opaque", -0.1, "single"),
        ("profile", "unavailable", 0.1, "single"),
        ("auto", "yes", 0.5, "profile"),
        ("padded", "opaque", 0.1, "padded"),
    ],
)
def test_pads_are_for_boards_where_moving_tensors_costs_much(
    asked: Any, profile: str, boundary: float, chosen: str
) -> None:
    found = choose(asked, profile, profiled(1.0), 0.1, boundary)
    assert found.chosen == chosen
    told = f"moving tensors costs {max(boundary, 0):.0%} of a call"
    assert found.reason.endswith(told) == (
        (asked, profile) not in {("padded", "opaque"), ("auto", "yes")}
    )


def test_a_share_needs_models_with_layers() -> None:
    rows = profiled(1.0)
    assert untold_share(rows, 0.1) == pytest.approx(0.0, abs=1e-9)
    assert untold_share(rows[:2], 0.1) is None
    assert untold_share([(g, replace(m, layers=())) for g, m in rows], 0.1) is None


def test_a_story_counts_each_kernel_by_the_best_it_rests_on() -> None:
    from latfarm_predictors.samples import KernelSample

    kernels = [Kernel(graph) for graph, _ in profiled(1.0)]
    samples = [
        KernelSample(kernels[0], 1.0, insight="profile"),
        KernelSample(kernels[0], 1.0, insight="single"),
        KernelSample(kernels[1], 1.0, insight="single"),
    ]
    assert insight_story({}, samples) == {"kernels": {"profile": 1, "single": 1}}
