"""The CUSUM of a sentinel: how rarely it cries wolf, and how soon it sees one."""

from __future__ import annotations

from math import exp, log
from random import Random
from statistics import median

import pytest
from latfarm_controller.farm.supervision.drift import (
    CLIP,
    LEAST,
    MOST,
    SHIFT,
    Cusum,
    DriftAlarm,
    SentinelLevel,
)

LEVEL_MS = 10.0


def stable(random: Random, spread: float) -> float:
    return LEVEL_MS * exp(random.gauss(0, spread))


@pytest.mark.parametrize("spread", [0.003, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_thousand_stable_sentinels_raise_no_alarm(spread: float, seed: int) -> None:
    random, cusum = Random(seed), Cusum()
    assert all(cusum.add(stable(random, spread)) is None for _ in range(10_000))


def sentinels_to_alarm(seed: int, spread: float, shift: float) -> int:
    random, cusum = Random(seed), Cusum()
    for _ in range(MOST):
        assert cusum.add(stable(random, spread)) is None
    for count in range(1, 500):
        drift = cusum.add((1 + shift) * stable(random, spread))
        if drift is not None:
            assert (drift.shift > 0) == (shift > 0)
            return count
    return 500


@pytest.mark.parametrize("shift", [0.03, -0.03])
@pytest.mark.parametrize(
    ("spread", "usual", "most"), [(0.003, 8, 8), (0.01, 6, 12), (0.02, 20, 60)]
)
def test_a_shift_of_three_per_cent_is_found_within(
    spread: float, usual: int, most: int, shift: float
) -> None:
    found = sorted(sentinels_to_alarm(seed, spread, shift) for seed in range(60))
    assert median(found) <= usual
    assert found[int(0.95 * len(found))] <= most


def test_the_alarm_says_since_when_and_how_much() -> None:
    random, cusum = Random(3), Cusum()
    for _ in range(40):
        assert cusum.add(stable(random, 0.005)) is None
    assert cusum.level is not None
    drifts: list[DriftAlarm] = []
    while not drifts:
        drift = cusum.add(1.08 * stable(random, 0.005))
        drifts += [drift] if drift else []
    assert 39 <= drifts[0].since <= 41
    assert drifts[0].shift == pytest.approx(0.08, abs=0.02)
    assert "8." in drifts[0].tell() or "7." in drifts[0].tell()
    assert "slower than its reference of" in drifts[0].tell()


def test_one_outlier_alone_is_no_drift() -> None:
    random, cusum = Random(5), Cusum()
    for _ in range(30):
        cusum.add(stable(random, 0.01))
    assert cusum.add(10 * LEVEL_MS) is None
    assert all(cusum.add(stable(random, 0.01)) is None for _ in range(100))


def test_a_slow_creep_is_not_learned_as_the_normal() -> None:
    random, cusum = Random(7), Cusum()
    for _ in range(20):
        cusum.add(stable(random, 0.005))
    creep = (cusum.add((1 + 0.001 * step) * stable(random, 0.005)) for step in range(1, 100))
    drift = next(found for found in creep if found)
    assert drift.shift < 0.1


def test_nothing_is_judged_before_enough_is_known_and_a_restart_forgets_the_sums() -> None:
    cusum = Cusum()
    for number in range(LEAST - 1):
        assert cusum.add(LEVEL_MS) is None
        assert cusum.level is None, number
    cusum.add(LEVEL_MS)
    assert cusum.level is not None
    assert cusum.level.mean == pytest.approx(log(LEVEL_MS))
    while cusum.add(1.05 * LEVEL_MS) is None:
        pass
    cusum.restart()
    assert cusum.add(LEVEL_MS) is None


def test_a_noisy_board_is_judged_later_than_a_steady_one() -> None:
    armed = []
    for spread in (0.003, 0.01, 0.03):
        random, cusum = Random(1), Cusum()
        count = 0
        while cusum.level is None:
            cusum.add(stable(random, spread))
            count += 1
        armed.append(count)
    assert armed[0] == LEAST
    assert armed == sorted(armed)
    assert armed[-1] > 3 * LEAST


def sentinels_to_detect(level: SentinelLevel) -> float:
    """Mean number of sentinels until a lasting shift of 3 % is found."""
    gain = min(CLIP, SHIFT / level.spread) - level.allowance
    return level.limit / gain if gain > 0 else float("inf")


def test_the_threshold_grows_with_the_noise() -> None:
    limits = [SentinelLevel(0.0, spread, MOST).limit for spread in (0.004, 0.01, 0.02, 0.04)]
    assert limits == sorted(limits)
    waits = [sentinels_to_detect(SentinelLevel(0.0, spread, MOST)) for spread in (0.01, 0.02, 0.04)]
    assert waits == sorted(waits)
