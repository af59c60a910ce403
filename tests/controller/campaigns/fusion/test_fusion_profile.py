"""Which pairs a runtime's own profile settles, which it cannot, and how the benchmark says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, ProfiledLayer

from benchmarks.fusion_rows import details, failed_row, keep, line, plain_op, row_of

PAIRS = [("conv", "relu"), ("relu", "conv"), ("conv", "concat"), ("conv", "add")]
RULES = FusionRules(pairs={("Conv", "Relu"): "fused"}, multi_inbound=0, multi_outbound=0)
Layers = Callable[[MeasurementRequest], tuple[str, ...]]


def as_mnn(request: MeasurementRequest) -> tuple[str, ...]:
    """Layers as MNN shows them: rasters do concatenations, activations fuse with convolutions."""
    ops = [node.op for node in request.graph.nodes]
    kinds = ["Raster" if op == "Concat" else op for op in ops]
    if ops[:2] == ["Conv", "Relu"]:
        kinds = kinds[:1]
    return ("Reorder", *kinds, "Raster")


def detected(layers: Layers, **config: object) -> FusionCampaign:
    def answer(request: MeasurementRequest) -> Measurement:
        found = SimulatedPlatform(rules=RULES).measure(request)
        shown = layers(request) if request.profile else ()
        return replace(
            found, layers=tuple(ProfiledLayer(f"{i}", op, 0.1) for i, op in enumerate(shown))
        )

    options = {"pairs": PAIRS, "blind": True, **config}
    campaign = FusionCampaign("sim", FusionOptions.model_validate(options))
    drive(campaign, answer)
    return campaign


class Measured:
    """A board that a campaign was driven on."""

    def __init__(self) -> None:
        self.name = "local-mnn"
        self.slowdowns = [1.0, 1.2]
        self.failed: dict[str, int] = {}


@pytest.fixture(scope="module")
def mnn() -> FusionCampaign:
    return detected(as_mnn)


def test_the_profile_settles_pairs_or_says_why_not(mnn: FusionCampaign) -> None:
    found = {r.rule: r for r in mnn.results()}
    assert {rule: r.graph_fused for rule, r in found.items()} == {
        ("Conv", "Relu"): True,
        ("Relu", "Conv"): False,
        ("Conv", "Concat"): None,
        ("Conv", "Add"): False,
    }
    assert found["Conv", "Concat"].untold == "the profile shows no layer of concat"
    assert found["Conv", "Relu"].untold == ""
    assert found["Conv", "Concat"].judged == ""
    told = next(p for p in mnn.outcome()["pairs"] if p["pair"] == ["Conv", "Concat"])
    assert told["graph_untold"] == found["Conv", "Concat"].untold


def test_a_pair_in_two_layers_is_one_kernel_if_one_of_them_takes_almost_no_time() -> None:
    def answer(request: MeasurementRequest) -> Measurement:
        ops = [node.op for node in request.graph.nodes]
        found = SimulatedPlatform(rules=RULES).measure(request)
        alone = {"Add": 0.02, "Relu": 0.7}
        times = [0.02, 0.002] if ops == ["Add", "Relu"] else [alone.get(op, 0.1) for op in ops]
        layers = [
            ProfiledLayer(f"{i}", op, t) for i, (op, t) in enumerate(zip(ops, times, strict=True))
        ]
        return replace(found, layers=tuple(layers) if request.profile else ())

    options = {"pairs": [("add", "relu"), ("relu", "conv")], "blind": True}
    campaign = FusionCampaign("sim", FusionOptions.model_validate(options))
    drive(campaign, answer)
    found = {r.rule: r for r in campaign.results()}
    sums = found["Add", "Relu"]
    assert (sums.graph_fused, sums.used, sums.source) == (False, True, "layer times")
    other = found["Relu", "Conv"]
    assert (other.graph_fused, other.used, other.source) == (False, False, "profile")
    assert campaign.rules().fuses("Add", "Relu")


def test_two_convolutions_that_save_a_transfer_are_two_kernels() -> None:
    """Vela counts moving inputs and outputs as a lone op's time: connected, both take less."""

    def answer(request: MeasurementRequest) -> Measurement:
        ops = [node.op for node in request.graph.nodes]
        found = SimulatedPlatform(rules=RULES).measure(request)
        times = [0.02, 0.02] if ops == ["Conv", "Conv"] else [0.1] * len(ops)
        layers = [
            ProfiledLayer(f"{i}", op, t) for i, (op, t) in enumerate(zip(ops, times, strict=True))
        ]
        return replace(found, layers=tuple(layers) if request.profile else ())

    options = {"pairs": [("conv", "conv")], "blind": True}
    campaign = FusionCampaign("sim", FusionOptions.model_validate(options))
    drive(campaign, answer)
    (pair,) = campaign.results()
    assert (pair.graph_fused, pair.used, pair.source) == (False, False, "profile")


def test_pairs_without_a_truth_are_named_in_the_row(mnn: FusionCampaign) -> None:
    row = row_of(mnn, Measured(), 90.0, (1.5, 2.5))
    assert row["ours"]["pairs"] == 3
    assert row["untruthed"] == {"the profile shows no layer of concat": ["Conv+Concat"]}
    assert "  no truth: the profile shows no layer of concat: Conv+Concat" in details(row)
    assert row["conditions"]["load_average"] == [1.5, 2.5]
    assert row["conditions"]["minutes"] == 1.5
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize(
    ("shown", "profiler", "why"),
    [
        ((), "unavailable", "the runtime shows no layers"),
        (("Conv+MaxPool+Conv",), "opaque", "one layer covers the whole model"),
    ],
)
def test_a_runtime_that_shows_no_layers_says_so_for_each_pair(
    shown: tuple[str, ...], profiler: str, why: str
) -> None:
    campaign = detected(lambda _: shown, pairs=PAIRS[:2])
    assert campaign.profile == profiler
    assert {r.untold for r in campaign.results()} == {why}
    row = row_of(campaign, Measured(), 60.0, (1.0, 1.0))
    assert row["ours"]["precision"] is None
    assert list(row["untruthed"]) == [why]
    assert f"{profiler:>12}" in line(row)


def test_a_platform_that_fails_has_a_row_that_says_why(tmp_path: Path) -> None:
    row = failed_row("local-none", "no platform none here")
    assert details(row) == ["  no truth: no platform none here"]
    assert line(row).split()[:3] == ["local-none", "none", "-"]
    path = tmp_path / "fusion.json"
    keep([row, failed_row("other", "x")], path)
    keep([row | {"rounds": 7}], path)
    kept = json.loads(path.read_text())["platforms"]
    assert [(r["platform"], r["rounds"]) for r in kept] == [("local-none", 7), ("other", 0)]


def test_ops_without_what_rules_add_to_their_names() -> None:
    assert [plain_op(op) for op in ("Mul", "Mul:const", "Mul:gate")] == ["Mul"] * 3
