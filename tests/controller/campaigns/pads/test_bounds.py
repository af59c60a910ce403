"""The interval of a kernel between pads, from the times of models with pads."""

from __future__ import annotations

import pytest
from latfarm_controller.campaigns.pads.bounds import (
    Model,
    TimeEstimate,
    interval,
    needed,
    readings,
)
from latfarm_controller.campaigns.pads.models import Pad


def test_the_bounds_are_those_of_the_paper() -> None:
    small, large = Pad((1, 8, 7, 7), "float32"), Pad((1, 64, 14, 14), "float32")
    sums = needed([small], [large], "paper")
    models: dict[Model, TimeEstimate] = {
        (small, "base"): TimeEstimate(1.0, 0.0),
        (large, "base"): TimeEstimate(3.0, 0.0),
        (small, "fork"): TimeEstimate(1.4, 0.0),
        (large, "fork"): TimeEstimate(4.0, 0.0),
        (small, "twin"): TimeEstimate(1.8, 0.0),
    }
    found = interval(TimeEstimate(10.0, 0.0), sums, models, 0.95)
    assert (found.lower_ms, found.upper_ms, found.middle_ms) == (7.0, 9.0, 8.0)
    assert needed([small], [small], "paper") == ({(small, "base"): 1},)
    # Pads at outputs cost 0.4 and 1.0, one at an input 0.4: pads and call cost 1.0 - 0.4 + 1.0.
    exact = interval(TimeEstimate(10.0, 0.0), needed([small], [large], "split"), models, 0.95)
    assert exact.lower_ms == pytest.approx(8.4)
    assert exact.half_ms == pytest.approx(0.0)
    two = interval(TimeEstimate(10.0, 0.0), needed([small] * 2, [large], "paper"), models, 0.95)
    assert two.middle_ms == pytest.approx(8.0)
    noisy = interval(
        TimeEstimate(10.0, 0.03),
        needed([small], [small], "paper"),
        {(small, "base"): TimeEstimate(1.0, 0.01)},
        0.95,
    )
    assert noisy.half_ms == pytest.approx(1.96 * 0.2, rel=1e-3)


def test_the_spread_of_a_model_is_drawn_towards_that_of_all_models() -> None:
    found = readings({"a": [1.0, 1.0, 1.0], "b": [10.0, 11.0, 12.0], "c": [5.0], "d": []})
    assert set(found) == {"a", "b", "c"}
    assert found["a"].latency_ms == 1.0
    assert found["a"].variance > 0
    assert found["b"].latency_ms == 11.0
    assert found["c"].variance > found["a"].variance * 25
