"""The arithmetic of smart padding: how long the LUM takes, by the times of models with pads.

LUM is the layer under measurement. The paper's interval (Wess et al. 2024, equation 4) ignores
noise: where both pads have the same shape, its width is 0. Here it is widened by the differences
between repeated measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, median
from typing import Literal

from latfarm_controller.campaigns.pads.models import Form, Pad

Bounds = Literal["paper", "split"]
"""How the cost of pads is bounded. `paper`: by equation 4. `split`: further models show the cost of
a pad at an input and of a pad at an output separately."""
Model = tuple[Pad, Form]
"""A padding-only model: its pad and its form."""
Sum = Mapping[Model, int]
"""A sum of the times of padding-only models: how often each is added, negative if subtracted."""

_PRIOR_REPEATS = 4.0
"""Number of repeats that the spread of all models together counts for, beside a model's own."""
_MEDIAN = 1.2533
"""Standard error of the median of Gaussian samples over that of their mean: sqrt(pi / 2)."""


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """A model's time in ms, and the variance of this estimate in ms squared."""

    latency_ms: float
    variance: float


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of T_LUM, the time of the layer under measurement.

    Attributes:
        lower_ms: its lower end.
        upper_ms: its upper end.
        noise_ms: the part of its half width that more repeats would reduce.
    """

    lower_ms: float
    upper_ms: float
    noise_ms: float

    @property
    def middle_ms(self) -> float:
        """The middle of the interval, which is used as the kernel's latency."""
        return (self.lower_ms + self.upper_ms) / 2

    @property
    def half_ms(self) -> float:
        """Half the width of the interval."""
        return (self.upper_ms - self.lower_ms) / 2

    def clipped(self) -> Interval:
        """The interval without times below 0."""
        return Interval(max(self.lower_ms, 0.0), max(self.upper_ms, 0.0), self.noise_ms)


def readings(times_ms: Mapping[str, Sequence[float]]) -> dict[str, TimeEstimate]:
    """The time of each model by its repeated measurements; models without any are left out.

    Three repeats say little about the spread of a model. So it is drawn towards the spread of all
    models together, as a share of latency, which counts like four further repeats.

    Args:
        times_ms: the measured times of each model, by any key.
    """
    groups = {key: list(found) for key, found in times_ms.items() if found}
    free = sum(len(found) - 1 for found in groups.values())
    shares = sum(_squares(found) / fmean(found) ** 2 for found in groups.values())
    share = shares / free if free else 0.0
    result = {}
    for key, found in groups.items():
        own = len(found) - 1
        prior = share * fmean(found) ** 2
        variance = (_PRIOR_REPEATS * prior + _squares(found)) / (_PRIOR_REPEATS + own)
        factor = 1.0 if len(found) < 3 else _MEDIAN**2
        result[key] = TimeEstimate(median(found), factor * variance / len(found))
    return result


def _squares(found: Sequence[float]) -> float:
    """The sum of squared deviations from the mean."""
    middle = fmean(found)
    return sum((value - middle) ** 2 for value in found)


def needed(pads_in: Sequence[Pad], pads_out: Sequence[Pad], bounds: Bounds) -> tuple[Sum, ...]:
    """The sums between which the cost of a padded model's pads lies.

    With `paper` and one tensor in and one out, there is one sum for each of the two tensors: the
    time of the padding-only model with pads of the tensor's shape. The smaller and the larger sum
    bound the cost of the pads. Where both tensors have the same shape, the sums are the same.

    With `split`, and wherever there are several tensors, there is a single sum, which is exact if
    the costs of pads add up. A pad at an output costs fork - base, a pad at an input costs twin -
    fork. The base model of the first input stands for its pad and for the cost of the call; its
    second pad, at the output, is subtracted.

    Args:
        pads_in: the pads at the inputs.
        pads_out: the pads at the outputs.
        bounds: how the cost of pads is bounded.
    """
    if bounds == "paper" and len(pads_in) == len(pads_out) == 1:
        return tuple({(pad, "base"): 1} for pad in dict.fromkeys((*pads_in, *pads_out)))
    total: Counter[Model] = Counter({(pads_in[0], "base"): 1})
    for pad in pads_in[1:]:
        total[(pad, "twin")] += 1
        total[(pad, "fork")] -= 1
    for pad, sign in [(pads_in[0], -1), *((pad, 1) for pad in pads_out)]:
        total[(pad, "fork")] += sign
        total[(pad, "base")] -= sign
    return ({model: times for model, times in total.items() if times},)


def interval(
    whole: TimeEstimate, sums: Sequence[Sum], models: Mapping[Model, TimeEstimate], coverage: float
) -> Interval:
    """The interval of T_LUM. A negative end shows that the pads do not match the padded model.

    Args:
        whole: the time of the padded model, T_c in the paper.
        sums: what may be subtracted, as `needed` gives it.
        models: the times of the padding-only models in `sums`.
        coverage: two-sided probability with which the noise lies within the interval.
    """
    costs = []
    for terms in sums:
        cost_ms = sum(times * models[model].latency_ms for model, times in terms.items())
        variance = sum(times**2 * models[model].variance for model, times in terms.items())
        costs.append((cost_ms, sqrt(whole.variance + variance)))
    z = NormalDist().inv_cdf(0.5 + coverage / 2)
    (least_ms, low), (most_ms, high) = min(costs), max(costs)
    return Interval(
        whole.latency_ms - most_ms - z * high,
        whole.latency_ms - least_ms + z * low,
        z * max(low, high),
    )
