"""Decides whether a model is shipped on a platform: only where it wins with a family left out.

It is a pure function of errors that were made on networks of families that training never saw. The
incumbent is the sum of kernels with its own correction, as a bundle has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array

SUM_GP = "sum-gp"
"""Method of a latency that a Gaussian process on sums of kernels predicts."""
LEAST_FAMILIES = 3
"""With fewer families left out, nothing is decided in favour of a new model."""
WORSE_BY = 0.01
"""A family is worse if its mean absolute relative error grows by more than this, and by more than
the bootstrap's noise."""
_RESAMPLES = 2000
"""Number of draws of the bootstrap."""
_TAIL = 0.025
"""Share of the draws beyond each end of an interval, which holds 95 %."""


@dataclass(frozen=True)
class ShippingDecision:
    """Whether a model is shipped on a platform, and why.

    Attributes:
        ship: whether it is.
        reason: one sentence.
        gain: mean over the families of how much the absolute relative error falls.
        low: lower end of the 95 % interval of the gain.
        high: its upper end.
        worse: families in which the model is worse beyond noise.
        method: name of the model, as answers tell it.
        before: the decision about a model that was tried before on the same platform; None: none.
    """

    ship: bool
    reason: str
    gain: float
    low: float
    high: float
    worse: tuple[str, ...]
    method: str = SUM_GP
    before: ShippingDecision | None = None

    @property
    def all(self) -> list[ShippingDecision]:
        """This decision and those before it, the first one first."""
        return [*([] if self.before is None else self.before.all), self]

    @property
    def sentence(self) -> str:
        """Whether it is shipped, and why, for people."""
        return f"{'shipped' if self.ship else 'not shipped'}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The decision as plain JSON types."""
        before = None if self.before is None else self.before.to_json()
        own = asdict(replace(self, before=None))
        return own | {"worse": list(self.worse), "before": before}

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> ShippingDecision | None:
        """The decision that `to_json` told; None where there is none, as in older bundles."""
        if not data:
            return None
        gain, low, high = (float(data[name]) for name in ("gain", "low", "high"))
        worse = tuple(str(name) for name in data["worse"])
        method = str(data.get("method", SUM_GP))  # older bundles tried nothing else
        before = ShippingDecision.from_json(data.get("before"))
        ship, reason = bool(data["ship"]), str(data["reason"])
        return ShippingDecision(ship, reason, gain, low, high, worse, method, before)


def decide(
    candidate: Mapping[str, Sequence[Array]],
    incumbent: Mapping[str, Array],
    *,
    seed: int = 0,
) -> ShippingDecision:
    """Compare two models on the same networks, each family predicted by fits that left it out.

    Families count the same, however many networks they have. The bootstrap draws families, and in
    each family networks, because a new network most often is of a new family. The absolute relative
    errors of several fits (random seeds) of the candidate are averaged for each network.

    Args:
        candidate: absolute relative errors by family, one array of shape (n,) for each seed.
        incumbent: absolute relative errors of the same networks by family, shape (n,).
        seed: random seed of the bootstrap.

    Raises:
        NotEnoughDataError: there is no family, or one without networks or seeds.
        ValueError: the families or the networks of the two are not the same.
    """
    if not incumbent:
        raise NotEnoughDataError("no family was left out, so nothing can be decided")
    if set(candidate) != set(incumbent):
        raise ValueError("the two models were not judged on the same families")
    gains: dict[str, Array] = {}
    for family, old in incumbent.items():
        seeds = candidate[family]
        if not seeds or not len(old):
            raise NotEnoughDataError(f"{family}: no network or no seed judges it")
        if any(len(errors) != len(old) for errors in seeds):
            raise ValueError(f"{family}: the two models were not judged on the same networks")
        gains[family] = old - np.mean(np.stack(list(seeds)), axis=0)
    draw = np.random.default_rng(seed)
    means = {name: _drawn_means(gain, draw) for name, gain in gains.items()}
    worse = tuple(
        name
        for name, gain in gains.items()
        if gain.mean() < -WORSE_BY and np.quantile(means[name], 1.0 - _TAIL) < 0.0
    )
    table = np.stack(list(means.values()))
    picked = draw.integers(len(table), size=(len(table), _RESAMPLES))
    overall = table[picked, np.arange(_RESAMPLES)[None, :]].mean(axis=0)
    low, high = (float(end) for end in np.quantile(overall, (_TAIL, 1.0 - _TAIL)))
    gain = float(np.mean([each.mean() for each in gains.values()]))
    ship, reason = _verdict(len(gains), gain, low, worse)
    return ShippingDecision(ship, reason, gain, low, high, worse)


def _verdict(families: int, gain: float, low: float, worse: Sequence[str]) -> tuple[bool, str]:
    if not np.isfinite(gain):
        return False, "An error is not a finite number."
    if families < LEAST_FAMILIES:
        return False, f"Only {families} families were left out; {LEAST_FAMILIES} are needed."
    if worse:
        return False, f"It is worse beyond noise in {', '.join(worse)}."
    if low <= 0.0:
        return False, "Its gain with a family left out is not beyond the bootstrap's noise."
    return True, "It wins with a family left out, and is worse in none beyond noise."


def _drawn_means(values: Array, draw: np.random.Generator) -> Array:
    """Means of values drawn with replacement, shape (_RESAMPLES,)."""
    if not np.isfinite(values).all():
        return np.full(_RESAMPLES, np.nan)
    rows = draw.integers(len(values), size=(_RESAMPLES, len(values)))
    return np.asarray(values[rows].mean(axis=1))
