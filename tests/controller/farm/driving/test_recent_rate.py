"""How many measurements come each second."""

from __future__ import annotations

import pytest
from latfarm_controller.farm.driving.recent_rate import SPAN_S, RecentRate


def test_nothing_is_known_at_first() -> None:
    rate = RecentRate()
    assert rate.per_s(0.0) == 0.0
    rate.note(5, 0.0)
    assert rate.per_s(0.0) == 0.0


def test_it_is_that_of_the_last_minute() -> None:
    rate = RecentRate()
    for second in range(200):
        rate.note(2 * second, float(second))
    assert rate.per_s(199.0) == pytest.approx(2.0)
    assert rate.per_s(199.0 + SPAN_S / 2) < 2.0, "time without an answer counts"
    for second in range(200, 300):
        rate.note(400 + 5 * (second - 200), float(second))
    assert rate.per_s(299.0) == pytest.approx(5.0)


def test_many_answers_at_once_take_little_memory() -> None:
    rate = RecentRate()
    for number in range(100_000):
        rate.note(number, number / 1000)
    assert rate.per_s(100.0) == pytest.approx(1000.0, rel=0.02)
    assert len(rate._points) <= 2 * SPAN_S + 3


def test_a_run_that_begins_anew_is_no_fall() -> None:
    rate = RecentRate()
    rate.note(50, 0.0)
    rate.note(100, 10.0)
    rate.note(0, 11.0)
    rate.note(10, 12.0)
    assert rate.per_s(12.0) == pytest.approx(10.0)
