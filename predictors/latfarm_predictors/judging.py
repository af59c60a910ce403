"""What a comparison of predictions with repeated measurements shows, and what noise hides of it.

A prediction is compared with the mean of several passes of the same network. That mean is not the
network's own latency: with independent noise of standard deviation sigma it is off by sigma/sqrt(k)
for k passes. So even a perfect predictor, which always names the network's own latency, is not
always within a tolerance of the mean. How often it is follows from the passes themselves:

- Two single passes differ by sqrt(2) sigma. So with normal noise the share of networks for which a
  perfect predictor is within `tol` of the mean of k passes is P(|a - b| <= sqrt(2 k) tol), over
  pairs of passes a and b: sqrt(2) tol against one pass, 2 tol against the mean of two.
- Split an even number of passes into two halves with the means a and b. If noise is symmetric,
  a - b has exactly the distribution of twice the error of the mean of all, whatever its shape:
  an error that changes its sign is as likely as before. So the share is P(|a - b| <= 2 tol). This
  is used wherever it can be, because the noise of shared hosts has longer tails than normal noise,
  and pairs of single passes would make it look larger than it is.

Passes that follow each other at once share what disturbs them, and make the noise look smaller.
They must be spread over the time in which the predictor's own measurements were taken. Noise that
is rare, large and one-sided makes the share too high (docs/judging.md has figures).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.optional_libraries import library

TOLERANCES = (0.05, 0.10)
"""The relative errors within which predictions are counted, as in nn-Meter's tables."""
_EDGE = 1e-12
"""Rounding must not move a case such as 1.1 / 1.0 over the boundary of a tolerance."""
_MOST_HALVED = 8
"""Largest number of passes that are split into halves; 8 passes have 35 splits."""
_RESAMPLES = 4000
"""How often the networks are drawn again for a paired error."""


@dataclass(frozen=True, slots=True)
class RepeatedLatency:
    """The latency that a prediction of a network is compared with.

    Attributes:
        mean_ms: mean latency of its passes.
        standard_error_ms: standard error of this mean; None for a single pass.
        passes: number of passes.
    """

    mean_ms: float
    standard_error_ms: float | None
    passes: int

    @staticmethod
    def of(passes_ms: Sequence[float]) -> RepeatedLatency:
        """The mean of at least one pass, in milliseconds.

        Raises:
            ValueError: there is no pass.
        """
        if not passes_ms:
            raise ValueError("a network without a pass has no latency to compare with")
        count = len(passes_ms)
        error = stdev(passes_ms) / sqrt(count) if count > 1 else None
        return RepeatedLatency(fmean(passes_ms), error, count)


@dataclass(frozen=True, slots=True)
class ShareEstimate:
    """A share of networks, with the binomial interval that so few networks leave.

    Attributes:
        share: the share, 0 to 1.
        count: number of networks.
        low: lower end of the 95 % interval of Clopper and Pearson.
        high: its upper end.
    """

    share: float
    count: int
    low: float
    high: float

    @staticmethod
    def of(share: float, count: int) -> ShareEstimate:
        """A share among `count` networks, of which there is at least one."""
        return ShareEstimate(share, count, *binomial_interval(share, count))

    def to_json(self) -> dict[str, float | int]:
        """The share as plain JSON types."""
        return asdict(self)


def binomial_interval(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) for a share among `count` networks.

    The share may be a mean over several looks at the same networks, so it need not be a whole
    number of networks. More looks do not make more networks.

    Raises:
        ValueError: there are no networks, or the share is not between 0 and 1.
    """
    if count < 1 or not 0.0 <= share <= 1.0:
        raise ValueError(f"{share} is no share of {count} networks")
    betaincinv = library("scipy.special").betaincinv
    hits = share * count
    tail = (1.0 - level) / 2.0
    low = float(betaincinv(hits, count - hits + 1.0, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1.0, count - hits, 1.0 - tail)) if hits < count else 1.0
    return low, high


def hits(
    predicted_ms: npt.ArrayLike, measured_ms: npt.ArrayLike, tolerance: float
) -> npt.NDArray[np.bool_]:
    """Whether each prediction is within a relative tolerance of its measurement, shape (n,)."""
    relative = np.asarray(predicted_ms, dtype=np.float64) / np.asarray(measured_ms, np.float64)
    return np.asarray(np.abs(relative - 1.0) <= tolerance + _EDGE)


def share_within(
    predicted_ms: npt.ArrayLike, measured_ms: npt.ArrayLike, tolerance: float
) -> ShareEstimate:
    """The share of predictions within a relative tolerance; there must be at least one."""
    found = hits(predicted_ms, measured_ms, tolerance)
    return ShareEstimate.of(float(found.mean()), len(found))


def perfect_share(
    passes_ms: Iterable[Sequence[float]], tolerance: float, averaged: int | None = None
) -> ShareEstimate | None:
    """The share of networks for which a perfect predictor is within a tolerance of the mean.

    Every network counts the same, however many passes it has. Networks with a single pass tell
    nothing about noise and are left out.

    Args:
        passes_ms: the latencies of each network's passes.
        tolerance: relative error that counts as a hit, for example 0.1.
        averaged: number of passes in the mean that predictions are compared with; None: all
            passes of the network.

    Returns:
        None if no network has two passes.
    """
    shares = [_perfect(each, tolerance, averaged) for each in passes_ms if len(each) > 1]
    return ShareEstimate.of(min(fmean(shares), 1.0), len(shares)) if shares else None


def _perfect(passes_ms: Sequence[float], tolerance: float, averaged: int | None) -> float:
    """The probability, told from one network's passes, that a perfect predictor is a hit."""
    count = len(passes_ms)
    used = count if averaged is None else averaged
    if used == count and count % 2 == 0 and count <= _MOST_HALVED:
        differences, reach = _halves(passes_ms), 2.0 * tolerance
    else:
        differences = [abs(a - b) for a, b in combinations(passes_ms, 2)]
        reach = sqrt(2.0 * used) * tolerance
    limit_ms = (reach + _EDGE) * fmean(passes_ms)
    return fmean(float(each <= limit_ms) for each in differences)


def _halves(passes_ms: Sequence[float]) -> list[float]:
    """The difference of the means of both halves, for each way to split the passes in half."""
    total, half = sum(passes_ms), len(passes_ms) // 2
    # Of two complementary halves, the one with the first pass stands for both.
    return [
        abs(2.0 * (passes_ms[0] + sum(others)) - total) / half
        for others in combinations(passes_ms[1:], half - 1)
    ]


@dataclass(frozen=True, slots=True)
class PerfectPredictor:
    """What a predictor without any error scores against the same passes.

    Attributes:
        within5: share within 5 %.
        within10: share within 10 %.
        median_difference: median over the networks of the mean relative difference between two
            single passes.
        passes: smallest number of passes of a network.
    """

    within5: ShareEstimate
    within10: ShareEstimate
    median_difference: float
    passes: int

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON types."""
        return asdict(self)


def perfect_predictor(passes_ms: Iterable[Sequence[float]]) -> PerfectPredictor | None:
    """The scores of a perfect predictor; None if no network has two passes."""
    repeated = [each for each in passes_ms if len(each) > 1]
    five, ten = (perfect_share(repeated, tolerance) for tolerance in TOLERANCES)
    if five is None or ten is None:
        return None
    apart = [fmean(abs(a - b) for a, b in combinations(p, 2)) / fmean(p) for p in repeated]
    return PerfectPredictor(five, ten, median(apart), min(len(each) for each in repeated))


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The lead of one predictor over another on the same networks.

    Attributes:
        difference: share of hits of the first predictor less that of the second.
        low: lower end of the 95 % interval of the difference.
        high: its upper end.
        count: number of networks.
    """

    difference: float
    low: float
    high: float
    count: int

    @property
    def ahead(self) -> bool:
        """Whether the first predictor is ahead by more than the paired error."""
        return self.low > 0.0

    def to_json(self) -> dict[str, float | int | bool]:
        """The difference as plain JSON types, with the verdict."""
        return asdict(self) | {"ahead": self.ahead}


def paired_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, *, seed: int = 0, level: float = 0.95
) -> PairedDifference:
    """The difference of two predictors' shares of hits, by the bootstrap over networks.

    Networks are drawn again with both predictors' hits (Efron 1979), because a network that is
    hard for one of them is mostly hard for the other as well: two separate intervals would be
    too wide.

    Args:
        first: whether the first predictor hits each network, shape (n,).
        second: the same of the second predictor.
        seed: random seed of the draws.
        level: probability that the interval holds the difference.

    Raises:
        ValueError: shapes differ, or there are no networks.
    """
    ours, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1 or not len(ours):
        raise ValueError(f"shapes {ours.shape} and {theirs.shape} are no pairs")
    ahead = ours - theirs
    draws = np.random.default_rng(seed).integers(len(ahead), size=(_RESAMPLES, len(ahead)))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(ahead[draws].mean(axis=1), (tail, 1.0 - tail))
    return PairedDifference(float(ahead.mean()), float(low), float(high), len(ahead))
