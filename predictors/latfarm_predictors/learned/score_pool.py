"""The scores that calibrate intervals of networks: a platform's own, and those of other platforms.

A score is how far a network's latency was from its prediction, divided by the deviation that was
predicted (`NetworkCorrection.scores`). The conformal quantile of n own scores holds with the stated
probability in the mean over boards. The coverage of one board is distributed as Beta(n + 1 - l, l)
around it, where l is the number of scores above the quantile and the quantile itself (Vovk 2012,
"Conditional validity of inductive conformal predictors"): with 20 networks and 90 %, its standard
deviation is 6 points.

The scores of other platforms make this narrower, because scores have no unit: a platform's noise
and the quality of its models are in the predicted deviations already. What may still differ is the
platform's scale, the typical size of its scores. So all scores are divided by the scale of their
platform and then pooled, as in the CDF pooling of Dunn, Wasserman and Ramdas (2022,
"Distribution-free prediction sets for two-layer hierarchical models") and in the calibration pools
of Pitot (Huang et al. 2025, interference-aware runtime prediction with conformal matrix
completion). A scale that 20 scores tell is itself 16 % off, which would lose what pooling gains.
Therefore it is shrunk towards the scale of all platforms, the more, the less the scales differ
(empirical Bayes, with the moment estimate of DerSimonian and Laird 1986). What remains unknown of
it widens the interval.

Pooling assumes that the scores of platforms differ in scale alone. Where a platform's scores have
visibly another distribution, or too few other platforms are known, its own scores are used alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.intervals import least_scores, normal_quantile, widened_quantile

SCORES_VERSION = 2
"""Version of what a score is; scores of different versions are never pooled. In version 2 the
deviation of a network depends on how long the network takes (`network_size.py`)."""
LEAST_PLATFORMS = 2
"""Least number of other platforms whose scores are pooled."""
LEAST_OWN = 5
"""Least number of own scores with which others are pooled: fewer do not tell the scale."""
LEAST_OF_OTHER = 9
"""Least number of scores of another platform for it to be pooled."""
_USUAL_SPREAD = 0.15
"""Standard deviation of the logarithm of scales that is assumed before any platform is known."""
_USUAL_WEIGHT = 3.0
"""The assumption above counts as much as this many platforms."""
_UNLIKE = 1.63
"""Own scores have another distribution if the statistic of Kolmogorov and Smirnov is above this
many times its standard deviation; equal distributions exceed it in one case of a hundred."""
_DOUBTS = 41
"""Number of equally likely values by which the doubt about a scale is represented."""
_GRID = 4000
"""Number of points at which densities of coverage are summed."""
_LEAST = 1e-9
"""Least score, so that logarithms stay finite."""


@dataclass(frozen=True, slots=True)
class CoverageGuarantee:
    """What an interval promises for one board.

    Attributes:
        coverage: the coverage that was asked for.
        expected: the expected share of networks inside their interval.
        low: the board's own share is below this in 5 % of cases.
        high: it is above this in 5 % of cases.
        networks: number of the platform's own calibration networks.
        pooled_networks: number of calibration networks of other platforms that count as well.
        platforms: names of these platforms.
        basis: "own" if the platform's own networks calibrate alone, "pooled" if others help, and
            "none" if there are too few networks for any promise; then the shares are NaN.
    """

    coverage: float
    expected: float
    low: float
    high: float
    networks: int
    pooled_networks: int = 0
    platforms: tuple[str, ...] = ()
    basis: str = "own"

    def to_json(self) -> dict[str, Any]:
        """The guarantee as plain JSON types; unknown shares are None."""
        shares = {
            name: value if math.isfinite(value) else None
            for name, value in (("expected", self.expected), ("low", self.low), ("high", self.high))
        }
        return {**asdict(self), **shares, "platforms": list(self.platforms)}

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence."""
        networks = f"{self.networks} calibration networks"
        if self.basis == "none":
            return f"{networks} are too few for a promise about {self.coverage:.0%} intervals"
        if self.basis == "pooled":
            networks += f" and {self.pooled_networks} of {len(self.platforms)} other platforms"
        return (
            f"by {networks}, {self.coverage:.0%} intervals hold {self.expected:.1%} of networks "
            f"like these; on this board between {self.low:.1%} and {self.high:.1%} (5 to 95 %)"
        )


@dataclass(frozen=True)
class ScorePool:
    """The scores that calibrate one platform's intervals.

    Attributes:
        own: the platform's own scores, shape (n,).
        others: scores of other platforms, by the platform's name.
    """

    own: Array
    others: Mapping[str, Array] = field(default_factory=dict)

    def without(self, place: int) -> ScorePool:
        """The pool without one of the platform's own scores."""
        return ScorePool(np.delete(self.own, place), self.others)

    @property
    def pooled(self) -> bool:
        """Whether the scores of other platforms are used."""
        return self._scales is not None

    def factor(self, coverage: float) -> tuple[float, bool]:
        """Factor on the sigma of a network, and whether there are enough scores for the promise.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        if self._scales is None or self._rank(coverage) is None:
            return widened_quantile(self.own, coverage)
        return self._pooled_factor(coverage), True

    def guarantee(self, coverage: float) -> CoverageGuarantee:
        """What intervals of this coverage promise for the board.

        Raises:
            ValueError: the coverage is not strictly between 0 and 1.
        """
        count = len(self.own)
        if self._scales is None or self._rank(coverage) is None:
            above = count + 1 - math.ceil(round((count + 1) * coverage, 9))
            if count < least_scores(coverage):
                nan = math.nan
                return CoverageGuarantee(coverage, nan, nan, nan, count, basis="none")
            low, high = _beta_mixture(np.array([count + 1.0 - above]), np.array([float(above)]))
            return CoverageGuarantee(coverage, 1.0 - above / (count + 1.0), low, high, count)
        scales = self._scales
        reach = self._pooled_factor(coverage)
        bounds = np.log(reach) - scales.own - scales.doubts
        total = len(scales.normalised)
        held = np.searchsorted(scales.normalised, np.exp(bounds), side="right").astype(np.float64)
        # With a uniform prior, the true share is distributed as Beta(held + 1, others + 1).
        low, high = _beta_mixture(held + 1.0, total - held + 1.0)
        return CoverageGuarantee(
            coverage=coverage,
            expected=float(np.mean(held / total)),
            low=low,
            high=high,
            networks=count,
            pooled_networks=total - count,
            platforms=tuple(sorted(self._used)),
            basis="pooled",
        )

    def _rank(self, coverage: float) -> float | None:
        """The share of pooled scores that must lie below the quantile; None: there are too few."""
        normal_quantile(coverage)
        total = sum(len(scores) for scores in self._used.values()) + len(self.own)
        level = math.ceil(round((total + 1) * coverage, 9)) / total if total else 2.0
        return level if level <= 1.0 else None

    def _pooled_factor(self, coverage: float) -> float:
        """The smallest factor whose coverage, in the mean over the doubts, is that of the rank."""
        scales, level = self._scales, self._rank(coverage)
        assert scales is not None
        assert level is not None
        spread = np.sort((scales.normalised[:, None] * np.exp(scales.doubts)[None, :]).ravel())
        place = min(math.ceil(round(level * len(spread), 6)), len(spread)) - 1
        return float(spread[place]) * math.exp(scales.own)

    @cached_property
    def _used(self) -> dict[str, Array]:
        """The other platforms that have enough scores."""
        return {
            name: scores
            for name, scores in sorted(self.others.items())
            if len(scores) >= LEAST_OF_OTHER
        }

    @cached_property
    def _scales(self) -> _Scales | None:
        """The scales of all platforms; None if the own scores have to be used alone."""
        if len(self.own) < LEAST_OWN or len(self._used) < LEAST_PLATFORMS:
            return None
        found = _Scales.of([self.own, *self._used.values()])
        return None if found.unlike else found


@dataclass(frozen=True)
class _Scales:
    """The scales of platforms, and all scores divided by them. The first platform is one's own.

    Attributes:
        own: logarithm of the own platform's scale.
        doubts: equally likely differences of the true logarithm from it, shape (d,).
        normalised: scores of all platforms divided by their scales, sorted, shape (n,).
        unlike: whether the own scores have another distribution than the others.
    """

    own: float
    doubts: Array
    normalised: Array
    unlike: bool

    @staticmethod
    def of(platforms: list[Array]) -> _Scales:
        """The scales of platforms, each with its scores."""
        told = np.array([_log_scale(scores) for scores in platforms])
        middle, error = told[:, 0], told[:, 1]
        between = _between(middle, error)
        weight = 1.0 / (error**2 + between)
        common = float((weight * middle).sum() / weight.sum())
        keep = between / (between + error**2)
        shrunk = common + keep * (middle - common)
        # What is not known of the own scale: the rest of its own error, and the common scale's.
        variance = float(keep[0] * error[0] ** 2 + (1.0 - keep[0]) ** 2 / weight.sum())
        levels = (np.arange(_DOUBTS) + 0.5) / _DOUBTS
        normal = np.array([NormalDist().inv_cdf(float(level)) for level in levels])
        parts = [s / math.exp(scale) for s, scale in zip(platforms, shrunk, strict=True)]
        return _Scales(
            own=float(shrunk[0]),
            doubts=normal * math.sqrt(variance),
            normalised=np.sort(np.concatenate(parts)),
            unlike=_unlike(
                platforms[0] / math.exp(middle[0]),
                np.concatenate(
                    [s / math.exp(m) for s, m in zip(platforms[1:], middle[1:], strict=True)]
                ),
            ),
        )


def _log_scale(scores: Array) -> tuple[float, float]:
    """The logarithm of the mean score, and its standard error."""
    mean = max(float(scores.mean()), _LEAST)
    # Scores of a normal distribution have this relative deviation; a few scores may show less.
    relative = max(float(scores.std(ddof=1)) / mean, math.sqrt(math.pi / 2.0 - 1.0))
    return math.log(mean), relative / math.sqrt(len(scores))


def _between(middle: Array, error: Array) -> float:
    """The variance of scales between platforms, with a weak prior on `_USUAL_SPREAD`."""
    weight = 1.0 / error**2
    common = float((weight * middle).sum() / weight.sum())
    excess = float((weight * (middle - common) ** 2).sum()) - (len(middle) - 1)
    moment = max(excess / float(weight.sum() - (weight**2).sum() / weight.sum()), 0.0)
    count = len(middle) - 1.0
    return (count * moment + _USUAL_WEIGHT * _USUAL_SPREAD**2) / (count + _USUAL_WEIGHT)


def _unlike(own: Array, others: Array) -> bool:
    """Whether two samples have different distributions (Kolmogorov and Smirnov)."""
    points = np.sort(np.concatenate([own, others]))
    gaps = np.abs(
        np.searchsorted(np.sort(own), points, side="right") / len(own)
        - np.searchsorted(np.sort(others), points, side="right") / len(others)
    )
    deviation = math.sqrt(1.0 / len(own) + 1.0 / len(others))
    return bool(gaps.max() > _UNLIKE * deviation)


def _beta_mixture(above: Array, below: Array) -> tuple[float, float]:
    """The 5 % and the 95 % quantile of an equal mixture of beta distributions.

    Args:
        above: first parameter of each, shape (d,), at least 1.
        below: second parameter of each, shape (d,), at least 1.
    """
    share = (np.arange(_GRID) + 0.5) / _GRID
    logs = (above[:, None] - 1.0) * np.log(share) + (below[:, None] - 1.0) * np.log1p(-share)
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    mass = np.cumsum((density / density.sum(axis=1, keepdims=True)).mean(axis=0))
    low, high = np.searchsorted(mass, [0.05, 0.95])
    return float(share[min(low, _GRID - 1)]), float(share[min(high, _GRID - 1)])
