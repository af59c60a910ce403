"""What a characterisation will cost."""

from __future__ import annotations

from itertools import repeat

import pytest
from latfarm_controller.campaigns.budget.forecast import PURPOSES, forecast, longest_ms
from latfarm_controller.campaigns.budget.shares import REPEATS_SHARE, SENTINEL_EVERY, shares_of
from latfarm_controller.campaigns.sentinels import interleave
from latfarm_predictors.measurement import Measurement, Outcome, Settings

EACH = Settings(sessions=2, warmup_ms=100.0, max_ms=200.0)
SETTINGS = dict.fromkeys(PURPOSES.values(), EACH)


def told(purpose: str, board_ms: float) -> Measurement:
    return Measurement("r", "g", "p", purpose, Outcome.OK, board_ms=board_ms)


def test_all_stages_together_are_the_budget() -> None:
    for budget in (40, 100, 500, 3000):
        found = forecast(shares_of(budget, 20, 2), [], SETTINGS)
        assert found.asked == found.measurements == budget
        assert [stage.stage for stage in found.stages] == list(PURPOSES)


def test_without_earlier_measurements_the_settings_tell_the_longest_time() -> None:
    found = forecast(shares_of(500, 20, 2), [], SETTINGS)
    assert longest_ms(EACH) == 600.0
    assert found.minutes == pytest.approx(500 * 600.0 / 60_000)
    assert not found.known
    assert "at most about" in found.sentence


def test_earlier_measurements_tell_the_time_of_their_kind() -> None:
    earlier = [told("kernel", 60.0)] * 9 + [told("network", 6000.0)] * 4
    found = forecast(shares_of(500, 20, 2), earlier, SETTINGS)
    by_stage = {stage.stage: stage for stage in found.stages}
    kernels = by_stage["kernels"]
    assert kernels.known
    assert kernels.minutes == pytest.approx(kernels.measurements * 60.0 / 60_000)
    assert not by_stage["calibration networks"].known, "four are too few"


def test_a_limit_of_time_says_how_much_it_leaves_out() -> None:
    found = forecast(shares_of(500, 20, 2), [], SETTINGS, 2.5)
    assert found.minutes == 2.5
    assert found.measurements == 250
    assert "leaves out some 250 of 500" in found.sentence
    assert forecast(shares_of(500, 20, 2), [], SETTINGS, 99.0).measurements == 500


@pytest.mark.parametrize("budget", [60, 100, 223, 500, 3000])
def test_sentinels_are_told_as_many_as_a_survey_in_parts_asks(budget: int) -> None:
    """A survey within a budget asks parts of at most 50 kernels, each between two sentinels."""
    shares = shares_of(budget, 20, 2)
    fixed = shares.fusion + shares.profiled + shares.probes + shares.kept
    count = shares.kernels(budget - fixed)
    sizes = [len(range(begin, min(begin + 50, count))) for begin in range(0, count, 50)]
    sizes.append(int(REPEATS_SHARE * count))
    mixed = [interleave(range(size), repeat("mark"), SENTINEL_EVERY) for size in sizes]
    marks = sum(item == "mark" for part in mixed for item in part)
    by_stage = {stage.stage: stage for stage in forecast(shares, [], SETTINGS).stages}
    assert by_stage["sentinels"].measurements == marks
    assert by_stage["kernels"].measurements == budget - fixed - marks
