"""Perfect predictors, binomial intervals and paired errors, on noise whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.judging import (
    PairedDifference,
    RepeatedLatency,
    ShareEstimate,
    binomial_interval,
    hits,
    paired_difference,
    perfect_predictor,
    perfect_share,
    share_within,
)

NETWORKS = 20_000
"""Number of drawn networks; it leaves a share a standard deviation of at most 0.4 points."""
FAR = 0.015
"""About four standard deviations of the difference of two such shares."""


def measured(passes: int, noise: str, seed: int = 0) -> tuple[list[list[float]], list[float]]:
    """Passes of networks whose own latencies are known, and these latencies, in milliseconds."""
    rng = np.random.default_rng(seed)
    own_ms = np.exp(rng.normal(2.0, 1.0, NETWORKS))
    shape = (NETWORKS, passes)
    if noise == "normal":
        relative = rng.normal(0.0, 0.06, shape)
    else:  # half of the networks are on a loud host, and all have long tails
        relative = 0.04 * rng.standard_t(3, shape) * rng.choice((0.5, 1.5), (NETWORKS, 1))
    return (own_ms[:, None] * (1.0 + relative)).tolist(), own_ms.tolist()


@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("noise", ["normal", "tails"])
def test_the_passes_tell_what_a_predictor_without_error_scores(passes: int, noise: str) -> None:
    times, own_ms = measured(passes, noise)
    means = [RepeatedLatency.of(each).mean_ms for each in times]
    for tolerance in (0.05, 0.10):
        truly = share_within(own_ms, means, tolerance)
        told = perfect_share(times, tolerance)
        assert told is not None
        assert told.share == pytest.approx(truly.share, abs=FAR)


@pytest.mark.parametrize("passes", [2, 4])
def test_one_sided_noise_is_told_within_three_points(passes: int) -> None:
    """Interference only makes a pass slower, so that the noise is not symmetric."""
    rng = np.random.default_rng(5)
    times = 10.0 * (1.0 + rng.exponential(0.06, (NETWORKS, passes)))
    own_ms = [10.0 * 1.06] * NETWORKS
    for tolerance in (0.05, 0.10):
        told = perfect_share(times.tolist(), tolerance)
        assert told is not None
        truly = share_within(own_ms, times.mean(axis=1), tolerance)
        assert told.share == pytest.approx(truly.share, abs=0.03)


@pytest.mark.parametrize("passes", [1, 3])
def test_single_passes_and_odd_numbers_go_by_pairs_of_normal_noise(passes: int) -> None:
    times, own_ms = measured(max(passes, 2), "normal", seed=1)
    means = [float(np.mean(each[:passes])) for each in times]
    truly = share_within(own_ms, means, 0.05)
    told = perfect_share(times, 0.05, averaged=passes)
    assert told is not None
    assert told.share == pytest.approx(truly.share, abs=FAR)


def test_two_passes_that_agree_within_a_tolerance_tell_half_of_it() -> None:
    """What used to be printed as the ceiling within 10 % is the share within 5 %."""
    times, own_ms = measured(2, "normal", seed=2)
    agree = float(np.mean([abs(a - b) <= 0.10 * (a + b) / 2 for a, b in times]))
    means = [RepeatedLatency.of(each).mean_ms for each in times]
    assert agree == pytest.approx(share_within(own_ms, means, 0.05).share, abs=FAR)
    assert agree < share_within(own_ms, means, 0.10).share - 0.1


def test_a_perfect_predictor_is_reported_with_its_interval_and_the_noise() -> None:
    times = [[1.0, 1.0], [1.0, 1.12], [2.0, 2.6, 2.6, 2.0], [5.0]]
    found = perfect_predictor(times)
    assert found is not None
    # 12 % apart: within 10 %, but not within 5 %; of the three splits one agrees exactly.
    assert found.within10.share == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert found.within5.share == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert (found.passes, found.within5.count) == (2, 3)
    assert found.median_difference == pytest.approx(0.12 / 1.06)
    assert found.to_json()["within10"]["count"] == 3
    assert perfect_predictor([[1.0], [2.0]]) is None
    assert perfect_share([[1.0]], 0.1) is None


def test_the_mean_of_passes_has_a_standard_error() -> None:
    assert RepeatedLatency.of([3.0]) == RepeatedLatency(3.0, None, 1)
    found = RepeatedLatency.of([1.0, 2.0, 3.0, 4.0])
    assert found.mean_ms == 2.5
    assert found.standard_error_ms == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
    with pytest.raises(ValueError, match="without a pass"):
        RepeatedLatency.of([])


def test_the_standard_error_shrinks_with_the_root_of_the_passes() -> None:
    times, own_ms = measured(4, "normal", seed=3)
    found = [RepeatedLatency.of(each) for each in times]
    errors = [(f.mean_ms - own) / own for f, own in zip(found, own_ms, strict=True)]
    told = [
        (f.standard_error_ms or 0.0) ** 2 / own**2 for f, own in zip(found, own_ms, strict=True)
    ]
    assert np.mean(told) ** 0.5 == pytest.approx(float(np.std(errors)), rel=0.03)


def test_binomial_intervals_by_the_book() -> None:
    # The interval of Clopper and Pearson for 24 of 30, for 30 of 30 and for none of 30.
    assert binomial_interval(0.8, 30) == pytest.approx((0.6143, 0.9229), abs=1e-4)
    assert binomial_interval(1.0, 30) == pytest.approx((0.8843, 1.0), abs=1e-4)
    assert binomial_interval(0.0, 30) == pytest.approx((0.0, 0.1157), abs=1e-4)
    low, high = binomial_interval(0.777, 30)  # a mean over several looks, not a whole number
    assert low < 0.777 < high
    found = ShareEstimate.of(106 / 117, 117)  # 90.6 % of 117 networks
    assert (round(100 * found.low), round(100 * found.high)) == (84, 95)
    with pytest.raises(ValueError, match="no share"):
        binomial_interval(0.5, 0)
    with pytest.raises(ValueError, match="no share"):
        binomial_interval(1.2, 10)


def test_binomial_intervals_hold() -> None:
    counted = np.random.default_rng(0).binomial(117, 0.9, 3000)
    inside = [
        low <= 0.9 <= high for low, high in (binomial_interval(n / 117, 117) for n in counted)
    ]
    assert 0.94 <= np.mean(inside) <= 0.99


def test_hits_count_the_boundary() -> None:
    assert hits([1.1, 0.9, 1.1001, 0.8999], [1.0] * 4, 0.1).tolist() == [True, True, False, False]
    assert share_within([1.0, 2.0], [1.0, 1.0], 0.05).share == 0.5


def test_paired_errors_hold_and_are_narrower_than_separate_ones() -> None:
    rng = np.random.default_rng(4)
    held = []
    for trial in range(120):
        # Both predictors miss the hard networks; the second misses 8 % of the others as well.
        hard = rng.random(120) < 0.2
        ours, theirs = ~hard, ~hard & (rng.random(120) >= 0.08)
        found = paired_difference(ours, theirs, seed=trial)
        held.append(found.low <= 0.8 * 0.08 <= found.high)
        low, high = binomial_interval(float(ours.mean()), 120)
        assert found.high - found.low < high - low
    assert np.mean(held) >= 0.9


def test_ahead_means_by_more_than_the_paired_error() -> None:
    same = np.array([True] * 50 + [False] * 10)
    assert paired_difference(same, same) == PairedDifference(0.0, 0.0, 0.0, 60)
    assert not paired_difference(same, same).ahead
    better = same | np.array([False] * 58 + [True] * 2)
    assert not paired_difference(better, same).ahead, "two networks of sixty may be chance"
    far = np.ones(60, dtype=bool)
    assert paired_difference(far, same).ahead
    assert not paired_difference(same, far).ahead
    assert paired_difference(far, same).to_json()["ahead"] is True
    with pytest.raises(ValueError, match="no pairs"):
        paired_difference([True], [True, False])
