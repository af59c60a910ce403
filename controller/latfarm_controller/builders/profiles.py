"""How the values of a tensor are distributed, and arithmetic with such distributions.

A value profile describes the values of one tensor. It holds one distribution for each index of the
axes along which values differ systematically; mostly these are the channels. A distribution is
stored as its values at fixed quantiles, which are those of a standard normal variable. A function
of one tensor is applied to the stored values exactly, so that x * sigmoid(x) is not mistaken for a
product of independent values. Sums of many terms are assumed to be normal. This is the mean-field
view of networks with random weights (Poole et al. 2016), but per channel, because after some layers
the mean of a channel matters more than its variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DEVIATIONS = 4.0
"""The quantiles reach this many standard deviations to each side of the mean."""
# QUANTILES are places on the axis of a standard normal variable; MASS is the probability of each.
QUANTILES: Floats = np.linspace(-DEVIATIONS, DEVIATIONS, 33)
MASS: Floats = np.exp(-(QUANTILES**2) / 2) / np.exp(-(QUANTILES**2) / 2).sum()

# The product of two independent standard normal variables at the same quantiles, approximately.
_PRODUCT: Floats = 0.6 * np.sign(QUANTILES) * np.abs(QUANTILES) ** 1.9

CONSTANT = 0
"""The `base` of the profile of a constant, whose values do not vary."""
MOST_ROWS = 4096
"""The largest number of distributions in a profile.

More are allowed only after a reshape that spreads channels over features.
"""
_MOST_FEATURES = 32_768  # the largest number of distributions after such a reshape
# `span` multiplies an end of a range by this factor, unless it is a bound of the values.
_MARGIN = 1.1

_bases = count(1)


@dataclass(frozen=True, eq=False)
class ValueProfile:
    """The distributions of the values of a tensor.

    `points` has the axes of the tensor and, as the last axis, the values at the quantiles, which
    has size 1 for a constant. An axis of the tensor along which all indices have the same
    distribution also has size 1. Profiles with the same `base` are functions of the same random
    values. `simplex` is set if the values sum to 1 along the last axis of the tensor.
    """

    points: Floats
    base: int
    simplex: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each tensor axis in the profile: the full size, or 1."""
        return self.points.shape[:-1]

    @property
    def mean(self) -> Floats:
        """The mean of each distribution."""
        if self.points.shape[-1] == 1:
            return self.points[..., 0]
        found: Floats = self.points @ MASS
        return found

    @property
    def variance(self) -> Floats:
        """The variance of each distribution."""
        if self.points.shape[-1] == 1:
            return np.zeros(self.shape)
        found: Floats = np.square(self.points - self.mean[..., None]) @ MASS
        return found

    def map(self, function: Callable[[Floats], Floats]) -> ValueProfile:
        """Return the profile after a function is applied to every value."""
        return ValueProfile(function(self.points), self.base)

    def moved(self, function: Callable[[Floats], Floats]) -> ValueProfile:
        """Return the profile of the same values at other places, as `elsewhere` does."""
        return elsewhere(function(self.points), self.base)


def unrelated(points: Floats) -> ValueProfile:
    """Return a profile whose values are independent of those of all other profiles."""
    return ValueProfile(points, next(_bases))


def elsewhere(points: Floats, base: int) -> ValueProfile:
    """Return the profile of moved values; its `base` is new, but a constant stays constant."""
    return ValueProfile(points, CONSTANT) if base == CONSTANT else unrelated(points)


def constant(data: NDArray[np.generic]) -> ValueProfile:
    """Return the profile of known values; if there are too many, `limited` merges axes."""
    return limited(ValueProfile(np.asarray(data, np.float64)[..., None], CONSTANT))


def normal(
    mean: Floats,
    variance: Floats,
    low: Floats | float | None = None,
    high: Floats | float | None = None,
) -> ValueProfile:
    """Return the profile of normal values, clipped to the bounds if both are given."""
    mean, variance = np.broadcast_arrays(mean, variance)
    points = mean[..., None] + np.sqrt(np.maximum(variance, 0.0))[..., None] * QUANTILES
    if low is not None and high is not None:
        points = np.clip(points, np.asarray(low)[..., None], np.asarray(high)[..., None])
    return ValueProfile(points, next(_bases))


def drawn(mean: Floats, variance: Floats) -> Floats:
    """Draw one normal number for each index; the random numbers depend only on the size."""
    deviates = np.random.default_rng(mean.size).standard_normal(mean.shape)
    found: Floats = mean + np.sqrt(np.maximum(variance, 0.0)) * deviates
    return found


def collapsed(profile: ValueProfile, keep: Sequence[int]) -> ValueProfile:
    """Merge the distributions along all axes except `keep`; the mixture is assumed to be normal."""
    axes = tuple(a for a, n in enumerate(profile.shape) if a not in keep and n > 1)
    if not axes:
        return profile
    mean, variance = profile.mean, profile.variance
    mixed = variance.mean(axes, keepdims=True) + mean.var(axes, keepdims=True)
    return normal(mean.mean(axes, keepdims=True), mixed)


def limited(profile: ValueProfile, most: int = MOST_ROWS) -> ValueProfile:
    """Return the profile with at most `most` distributions; the first axes are merged first."""
    found, axis = profile, 0
    while prod(found.shape) > most:
        found = collapsed(found, range(axis + 1, len(found.shape)))
        axis += 1
    return found


def joint(function: Callable[..., Floats], operands: Sequence[ValueProfile]) -> ValueProfile | None:
    """Apply a function to profiles with one `base` or constants; None if the bases differ."""
    bases = {operand.base for operand in operands} - {CONSTANT}
    if len(bases) > 1:
        return None
    return limited(
        ValueProfile(
            function(*(operand.points for operand in operands)), bases.pop() if bases else CONSTANT
        )
    )


def added(first: ValueProfile, second: ValueProfile) -> ValueProfile:
    """Return the profile of the sum of two tensors."""
    together = joint(np.add, (first, second))
    if together is not None:
        return together
    return limited(normal(first.mean + second.mean, first.variance + second.variance))


def negated(profile: ValueProfile) -> ValueProfile:
    """Return the profile of the negated values."""
    return profile.map(np.negative)


def multiplied(first: ValueProfile, second: ValueProfile) -> ValueProfile:
    """Return the profile of a product, clipped to the products of the operands' extremes."""
    together = joint(np.multiply, (first, second))
    if together is not None:
        return together
    one, other = first.mean, second.mean
    strange = first.variance * second.variance
    variance = strange + first.variance * other**2 + second.variance * one**2
    # The product of two normal values has exponential tails: about 0.6 |q|^1.9 at quantile q.
    tails = strange / np.maximum(variance, 1e-30)
    shape = (1 - tails[..., None]) * QUANTILES + tails[..., None] * _PRODUCT
    points = (one * other)[..., None] + np.sqrt(variance)[..., None] * shape
    ends = [
        left * right
        for left in (first.points.min(-1), first.points.max(-1))
        for right in (second.points.min(-1), second.points.max(-1))
    ]
    low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
    return limited(ValueProfile(np.clip(points, low[..., None], high[..., None]), next(_bases)))


def averaged(profile: ValueProfile, axes: Sequence[int], counts: Sequence[int]) -> ValueProfile:
    """Return the profile of the mean over axes, which keep size 1.

    `counts` are the sizes of these axes in the tensor. Values are assumed to be independent along
    an axis that has its full size in the profile. Along other axes (pixels, tokens), neighbours are
    similar, so a mean over n of them varies like a mean over sqrt(n) independent values.
    """
    mean, variance = profile.mean, profile.variance
    over = tuple(axis for axis in axes if profile.shape[axis] > 1)
    strangers = prod(profile.shape[axis] for axis in over)
    alike = prod(n for axis, n in zip(axes, counts, strict=True) if axis not in over)
    shrunk = variance.mean(over, keepdims=True) / (strangers * alike**0.5)
    low, high = profile.points.min(-1), profile.points.max(-1)
    return normal(
        mean.mean(over, keepdims=True),
        shrunk,
        low.mean(over, keepdims=True),
        high.mean(over, keepdims=True),
    )


def _order_matrix(strangers: float) -> Floats:
    """Return a matrix from a value's quantiles to those of the largest of independent values.

    `strangers` is the number of these values.
    """
    usual = NormalDist()
    places = np.array(
        [
            usual.inv_cdf(min(max(usual.cdf(float(q)) ** (1.0 / strangers), 1e-12), 1 - 1e-12))
            for q in QUANTILES
        ]
    )
    eye = np.eye(QUANTILES.size)
    return np.stack([np.interp(places, QUANTILES, row) for row in eye])


def largest(profile: ValueProfile, window: int) -> ValueProfile:
    """Return the profile of the largest of `window` values, which are assumed independent."""
    if profile.points.shape[-1] == 1 or window <= 1:
        return profile
    ordered = np.sort(profile.points, axis=-1)
    return ValueProfile(ordered @ _order_matrix(float(window)), next(_bases))


def regrouped(profile: ValueProfile, source: Sequence[int], target: Sequence[int]) -> ValueProfile:
    """Return the profile of a tensor after a reshape from `source` to `target`."""
    points: Floats = profile.points
    shape: list[int] = []
    kept: list[int] = []
    for left, right in _groups(source, target):
        sizes = [profile.shape[axis] for axis in left]
        if all(size == 1 for size in sizes):
            shape += [1] * len(left)
            kept += [1] * len(right)
        else:  # give all axes of the group their full size
            shape += [source[axis] for axis in left]
            kept += [target[axis] for axis in right]
    if prod(shape) > _MOST_FEATURES:
        return ValueProfile(
            collapsed(profile, ()).points.reshape((1,) * len(target) + (-1,)), next(_bases)
        )
    full = np.broadcast_to(points, (*shape, points.shape[-1]))
    return elsewhere(full.reshape((*kept, points.shape[-1])), profile.base)


def _groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Pair runs of axes of one shape with runs of the other that hold the same elements."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = [], []
        a = b = 1
        if i < len(source):
            left.append(i)
            a = source[i]
            i += 1
        if j < len(target):
            right.append(j)
            b = target[j]
            j += 1
        while a != b:
            if a < b:
                left.append(i)
                a *= source[i]
                i += 1
            else:
                right.append(j)
                b *= target[j]
                j += 1
        found.append((left, right))
    return found


def span(profile: ValueProfile) -> tuple[float, float]:
    """Return the range that represents the values in 8 bits with the smallest squared error.

    The range always includes zero. The error is that of Banner et al. 2019, equation 6: the
    rounding error, step^2 / 12, plus the error of clipped values. The smallest error is searched on
    a grid of possible ends. An end that is not a bound of the values is moved outwards by
    `_MARGIN`: if the estimated profile is too narrow, clipping costs more than a larger step.
    """
    rows = profile.points.reshape(-1, profile.points.shape[-1])
    rows = rows[:: max(rows.shape[0] // 1024, 1)]
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    if high - low < 1e-9 or rows.shape[-1] == 1:
        return low, high
    bins = 256
    places = np.minimum(((rows - low) * (bins / (high - low))).astype(np.int64), bins - 1)
    mass = np.bincount(
        places.ravel(), np.broadcast_to(MASS / rows.shape[0], rows.shape).ravel(), bins
    )
    values = low + (np.arange(bins) + 0.5) * ((high - low) / bins)
    shrink = np.linspace(0.2, 1.0, 33)[:, None]
    over = np.square(np.maximum(values - shrink * high, 0.0)) @ mass
    under = np.square(np.maximum(shrink * low - values, 0.0)) @ mass
    steps = (shrink.T * high - shrink * low) / 255.0
    noise = np.square(steps) / 12.0 + over[None, :] + under[:, None]
    at = np.unravel_index(int(noise.argmin()), noise.shape)
    ends = float(shrink[at[0], 0] * low), float(shrink[at[1], 0] * high)
    bounded = [np.count_nonzero(rows == end) > rows.shape[0] // 64 + 1 for end in (low, high)]
    # Only three digits are kept: the last digits of matrix products differ between machines, but
    # the files that are built from them must not differ.
    low, high = (
        float(f"{end if fixed else end * _MARGIN:.3g}")
        for end, fixed in zip(ends, bounded, strict=True)
    )
    return low, high
