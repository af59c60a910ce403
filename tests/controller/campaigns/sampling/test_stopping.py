"""When kernels that were kept back show that a target is reached."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from random import Random

import pytest
from latfarm_controller.campaigns.sampling.stopping import FALSE_STOPS, JudgedShare

TARGET = 0.9
LOOKS = range(10, 121, 5)
SURVEYS = 2000


def stopped(true_share: float, stops: Callable[[JudgedShare], bool]) -> float:
    """The share of surveys that stop at one of their looks, where kernels are hit by chance."""
    random = Random(7)
    found = 0
    for _ in range(SURVEYS):
        hits = list(accumulate(random.random() < true_share for _ in range(LOOKS[-1])))
        found += any(stops(JudgedShare(hits[look - 1], look)) for look in LOOKS)
    return found / SURVEYS


def shows(judged: JudgedShare) -> bool:
    return judged.shows(TARGET)


def test_few_surveys_stop_that_are_ten_points_short_however_often_they_look() -> None:
    assert stopped(0.8, shows) <= FALSE_STOPS
    assert stopped(0.8, lambda judged: judged.share >= TARGET) > 0.2  # the bare share


def test_surveys_that_are_good_enough_stop() -> None:
    assert stopped(0.96, shows) > 0.9
    assert stopped(0.99, shows) > 0.99


@pytest.mark.parametrize(("misses", "least"), [(0, 26), (1, 33), (2, 40)])
def test_how_many_kernels_show_a_target_of_nine_of_ten(misses: int, least: int) -> None:
    assert JudgedShare(least - misses, least).shows(TARGET)
    assert not JudgedShare(least - 1 - misses, least - 1).shows(TARGET)


def test_the_share_itself_must_reach_the_target() -> None:
    assert JudgedShare(900, 1000).shows(TARGET)
    assert not JudgedShare(899, 1000).shows(TARGET)


def test_targets_at_the_ends() -> None:
    assert JudgedShare(29, 29).shows(1.0)
    assert not JudgedShare(28, 28).shows(1.0)
    assert not JudgedShare(999, 1000).shows(1.0)
    assert JudgedShare(20, 200).shows(0.01)
    assert not JudgedShare(0, 200).shows(0.01)
