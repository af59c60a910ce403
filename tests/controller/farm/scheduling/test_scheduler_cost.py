"""A decision of the scheduler costs the same with many boards as with few."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from benchmarks.scheduler import Farm


def calls_of_a_measurement(boards: int, retries: float) -> float:
    """How many Python functions the scheduler calls for one measurement."""
    farm = Farm(boards, retries)
    farm.measure(boards)
    before, calls = farm.delivered, 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "/scheduling/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        farm.measure(200)
    finally:
        sys.setprofile(None)
    return calls / (farm.delivered - before)


@pytest.mark.parametrize("retries", [0.0, 0.05])
def test_a_decision_does_not_look_at_all_boards(retries: float) -> None:
    few, many = (calls_of_a_measurement(boards, retries) for boards in (8, 256))
    assert many <= 1.3 * few
