"""Smart padding's arithmetic: how long the LUM takes, from the times of models with pads.

The paper's interval (Wess et al. 2024, equation 4) says nothing of noise: pads of equal shapes give
it width 0. Here it is widened by what repeats of the measurements differ by.
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
"""`paper`: equation 4. `split`: further models tell apart what a pad in and a pad out cost."""
Model = tuple[Pad, Form]
Sum = Mapping[Model, int]
"""A sum of padding-only models' times: how often each is counted, negative where taken off."""

_PRIOR_REPEATS = 4.0
_MEDIAN = 1.2533  # deviation of a median over that of a mean, of Gaussian samples


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """A model's time and the variance of that estimate, in ms and ms squared."""

    latency_ms: float
    variance: float


@dataclass(frozen=True, slots=True)
class Interval:
    """T_LUM in ms; `noise_ms` is the part of its half width that more repeats would lessen."""

    lower_ms: float
    upper_ms: float
    noise_ms: float

    @property
    def middle_ms(self) -> float:
        """The label: the interval's median."""
        return (self.lower_ms + self.upper_ms) / 2

    @property
    def half_ms(self) -> float:
        """Half its width."""
        return (self.upper_ms - self.lower_ms) / 2

    def clipped(self) -> Interval:
        """Without times below 0."""
        return Interval(max(self.lower_ms, 0.0), max(self.upper_ms, 0.0), self.noise_ms)


def readings(times_ms: Mapping[str, Sequence[float]]) -> dict[str, TimeEstimate]:
    """The time of each model, from repeats; models without any are left out.

    Three repeats say little of a model's own spread: it is drawn towards that of all models
    together, as a share of latency, which counts like four further repeats.
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
    middle = fmean(found)
    return sum((value - middle) ** 2 for value in found)


def needed(pads_in: Sequence[Pad], pads_out: Sequence[Pad], bounds: Bounds) -> tuple[Sum, ...]:
    """What may be taken off a padded model's time: the pads' own lies between these sums.

    With `paper`, one tensor in and one out: one sum for each, the time of the padding-only model of
    its shape; their least and largest bound what the pads cost, the first's in and the second's
    out. Where both have one shape they are the same.

    With `split`, and wherever tensors are several: a single sum, exact where pads add up. A pad
    out costs fork - base, a pad in twin - fork; the base model of the first tensor stands for its
    pad in, a pad out that is taken off, and the cost of the call.
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
    """T_LUM, not clipped: a negative end tells that pads and padded model do not match.

    Args:
        whole: of the padded model, T_c.
        sums: of `needed`.
        models: each padding-only model that they name.
        coverage: of the noise alone, two-sided.
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
