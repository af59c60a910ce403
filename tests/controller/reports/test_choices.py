"""What latencies of a few candidates settle."""

from __future__ import annotations

import json

import pytest
from latfarm_controller.reports.choices import Candidate, choices

WIDE, NARROW = "p4-tensorrt8.6-gpu-fp32", "p4-tensorrt8.6-gpu-int8"
OTHER = "t4-tensorrt8.6-gpu-int8"


def candidate(model: str, platform: str, latency_ms: float) -> Candidate:
    return Candidate(model, platform, latency_ms, "measured")


def test_the_fastest_platform_and_model_come_first() -> None:
    found = choices(
        [
            candidate("resnet18", NARROW, 2.0),
            candidate("regnetx", NARROW, 3.0),
            candidate("resnet18", OTHER, 1.0),
        ]
    )
    assert [(each.name, each.times_best) for each in found.platforms["resnet18"]] == [
        (OTHER, 1.0),
        (NARROW, 2.0),
    ]
    assert list(found.platforms) == ["resnet18"]
    assert [each.name for each in found.models[NARROW]] == ["resnet18", "regnetx"]
    assert found.models[NARROW][1].times_best == pytest.approx(1.5)
    assert list(found.models) == [NARROW]


@pytest.mark.parametrize(("narrow_ms", "worth_it"), [(5.0, True), (9.7, False), (12.0, False)])
def test_a_narrow_type_must_save_enough(narrow_ms: float, worth_it: bool) -> None:
    found = choices([candidate("vit", NARROW, narrow_ms), candidate("vit", WIDE, 10.0)])
    (gain,) = found.types
    assert (gain.wide, gain.narrow, gain.worth_it) == (WIDE, NARROW, worth_it)
    assert gain.saved == pytest.approx(1.0 - narrow_ms / 10.0)


def test_platforms_that_differ_in_more_than_their_type_are_not_compared() -> None:
    told = [candidate("vit", name, 1.0) for name in (WIDE, OTHER, "odd", "p4-tensorrt8.6-fp16-2t")]
    assert choices(told).types == []


def test_unsupported_ops_have_a_cost() -> None:
    ops = ("swish_1 (HardSwish): not on this platform",)
    found = choices([Candidate("mobilenet", WIDE, 4.0, "predicted", ops, 1.0)])
    (cost,) = found.unsupported
    assert (cost.ops, cost.latency_ms, cost.share) == (ops, 1.0, 0.25)
    assert json.loads(json.dumps(found.to_json()))["unsupported"][0]["share"] == 0.25
