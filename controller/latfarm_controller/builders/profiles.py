"""How the values of a tensor are distributed, and arithmetic with such distributions.

A value profile holds one distribution for each index of those axes along which values differ
systematically, mostly the channels. A distribution is given by its values at fixed quantiles of a
normal deviate. A function of one tensor acts on the quantiles exactly, so that x * sigmoid(x) is
not taken for a product of independent values; sums of many terms become normal. This is the
mean-field view of networks with random weights (Poole et al. 2016), kept per channel, because the
mean of a channel soon matters more than its variance.
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
"""The quantiles reach this many standard deviations to each side."""
# The quantiles as normal deviates, and the probability of each.
QUANTILES: Floats = np.linspace(-DEVIATIONS, DEVIATIONS, 33)
MASS: Floats = np.exp(-(QUANTILES**2) / 2) / np.exp(-(QUANTILES**2) / 2).sum()

# The quantiles of the product of two normal deviates, approximated.
_PRODUCT: Floats = 0.6 * np.sign(QUANTILES) * np.abs(QUANTILES) ** 1.9

CONSTANT = 0
"""The `base` of a profile whose values do not vary."""
MOST_ROWS = 4096
"""Most distributions in a profile, except after a reshape that spreads channels over features."""
_MOST_FEATURES = 32_768  # most distributions after such a reshape
_MARGIN = 1.1  # by how much an end of a range is moved outwards that is no bound of the values

_bases = count(1)


@dataclass(frozen=True, eq=False)
class ValueProfile:
    """The values of a tensor at the quantiles, by index of the tensor's axes.

    The last axis of `points` holds the quantiles; it has size 1 for a constant. An axis along which
    all indices have the same distribution has size 1. Profiles with the same `base` vary together.
    `simplex` is set if the values sum to 1 along the last axis of the tensor.
    """

    points: Floats
    base: int
    simplex: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensor's axes in the profile: the full size, or 1."""
        return self.points.shape[:-1]

    @property
    def mean(self) -> Floats:
        """The mean by index."""
        if self.points.shape[-1] == 1:
            return self.points[..., 0]
        found: Floats = self.points @ MASS
        return found

    @property
    def variance(self) -> Floats:
        """The variance by index."""
        if self.points.shape[-1] == 1:
            return np.zeros(self.shape)
        found: Floats = np.square(self.points - self.mean[..., None]) @ MASS
        return found

    def map(self, function: Callable[[Floats], Floats]) -> ValueProfile:
        """The profile of a function of every value."""
        return ValueProfile(function(self.points), self.base)

    def moved(self, function: Callable[[Floats], Floats]) -> ValueProfile:
        """The profile of the same values in other places; they no longer vary with the original."""
        return elsewhere(function(self.points), self.base)


def unrelated(points: Floats) -> ValueProfile:
    """A profile that does not vary with any other."""
    return ValueProfile(points, next(_bases))


def elsewhere(points: Floats, base: int) -> ValueProfile:
    """The profile of values that were moved; a constant stays a constant."""
    return ValueProfile(points, CONSTANT) if base == CONSTANT else unrelated(points)


def constant(data: NDArray[np.generic]) -> ValueProfile:
    """The profile of known values; if there are too many, some axes are summed up."""
    return limited(ValueProfile(np.asarray(data, np.float64)[..., None], CONSTANT))


def normal(
    mean: Floats,
    variance: Floats,
    low: Floats | float | None = None,
    high: Floats | float | None = None,
) -> ValueProfile:
    """The profile of normal values, within bounds if they are given."""
    mean, variance = np.broadcast_arrays(mean, variance)
    points = mean[..., None] + np.sqrt(np.maximum(variance, 0.0))[..., None] * QUANTILES
    if low is not None and high is not None:
        points = np.clip(points, np.asarray(low)[..., None], np.asarray(high)[..., None])
    return ValueProfile(points, next(_bases))


def drawn(mean: Floats, variance: Floats) -> Floats:
    """One normal deviate for each index, the same for the same shape."""
    deviates = np.random.default_rng(mean.size).standard_normal(mean.shape)
    found: Floats = mean + np.sqrt(np.maximum(variance, 0.0)) * deviates
    return found


def collapsed(profile: ValueProfile, keep: Sequence[int]) -> ValueProfile:
    """The mixture over all axes except those to keep, taken for normal."""
    axes = tuple(a for a, n in enumerate(profile.shape) if a not in keep and n > 1)
    if not axes:
        return profile
    mean, variance = profile.mean, profile.variance
    mixed = variance.mean(axes, keepdims=True) + mean.var(axes, keepdims=True)
    return normal(mean.mean(axes, keepdims=True), mixed)


def limited(profile: ValueProfile, most: int = MOST_ROWS) -> ValueProfile:
    """The profile with at most `most` rows; the first axes are collapsed first."""
    found, axis = profile, 0
    while prod(found.shape) > most:
        found = collapsed(found, range(axis + 1, len(found.shape)))
        axis += 1
    return found


def joint(function: Callable[..., Floats], operands: Sequence[ValueProfile]) -> ValueProfile | None:
    """A function of profiles that vary together; None if they do not vary together."""
    bases = {operand.base for operand in operands} - {CONSTANT}
    if len(bases) > 1:
        return None
    return limited(
        ValueProfile(
            function(*(operand.points for operand in operands)), bases.pop() if bases else CONSTANT
        )
    )


def added(first: ValueProfile, second: ValueProfile) -> ValueProfile:
    """The profile of a sum."""
    together = joint(np.add, (first, second))
    if together is not None:
        return together
    return limited(normal(first.mean + second.mean, first.variance + second.variance))


def negated(profile: ValueProfile) -> ValueProfile:
    """The profile of the negative values."""
    return profile.map(np.negative)


def multiplied(first: ValueProfile, second: ValueProfile) -> ValueProfile:
    """The profile of a product, within the products of the ends."""
    together = joint(np.multiply, (first, second))
    if together is not None:
        return together
    one, other = first.mean, second.mean
    strange = first.variance * second.variance
    variance = strange + first.variance * other**2 + second.variance * one**2
    # The product of two deviates has the tails of an exponential: 0.6 |q|^1.9 at a normal's q.
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
    """The mean over axes, kept with size 1; `counts` are the tensor's sizes there.

    Along an axis of the profile values are independent. Along others (pixels, tokens) neighbours
    are alike: a mean over n spreads as one over sqrt(n) strangers would.
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
    """Interpolation from the quantiles of a value to those of the largest of several."""
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
    """The profile of the largest value in a window, whose values are taken for independent."""
    if profile.points.shape[-1] == 1 or window <= 1:
        return profile
    ordered = np.sort(profile.points, axis=-1)
    return ValueProfile(ordered @ _order_matrix(float(window)), next(_bases))


def regrouped(profile: ValueProfile, source: Sequence[int], target: Sequence[int]) -> ValueProfile:
    """The profile of a tensor that is reshaped from `source` to `target`."""
    points: Floats = profile.points
    shape: list[int] = []
    kept: list[int] = []
    for left, right in _groups(source, target):
        sizes = [profile.shape[axis] for axis in left]
        if all(size == 1 for size in sizes):
            shape += [1] * len(left)
            kept += [1] * len(right)
        else:  # spread out over the whole group
            shape += [source[axis] for axis in left]
            kept += [target[axis] for axis in right]
    if prod(shape) > _MOST_FEATURES:
        return ValueProfile(
            collapsed(profile, ()).points.reshape((1,) * len(target) + (-1,)), next(_bases)
        )
    full = np.broadcast_to(points, (*shape, points.shape[-1]))
    return elsewhere(full.reshape((*kept, points.shape[-1])), profile.base)


def _groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of two shapes that hold the same elements."""
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
    """The range, including zero, that 8 bits represent with the smallest squared error.

    The error is that of Banner et al. 2019, equation 6: the noise of the step, step^2 / 12, plus
    what is clipped; it is computed on a grid of ends. An end that is no bound of the values is
    moved outwards a little, because clipping costs more than a coarse step if the profile is too
    narrow.
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
    # Three digits: matrix products differ in the last between machines, and files must not.
    low, high = (
        float(f"{end if fixed else end * _MARGIN:.3g}")
        for end, fixed in zip(ends, bounded, strict=True)
    )
    return low, high
