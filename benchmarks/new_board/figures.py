"""Figures of a transfer to left-out platforms, with intervals by resampling whole boards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from latfarm_predictors.evaluate import kendall_tau, kendall_within_bands
from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.left_out import LeftOut

RESAMPLES = 1000
"""Number of bootstrap samples."""
EDGE = 1e-12
"""Rounding must not move a case such as 1.1 / 1.0 over the boundary."""


@dataclass(frozen=True)
class Judged:
    """The verdict on one platform, left out with one seed.

    Attributes:
        group: what was left out together, and is resampled together.
        kind: of the platform.
        platform: its name.
        count: number of judged networks.
        within10: number of predictions within 10 % of the measurement.
        ape_sum: sum of the absolute relative errors.
        tau: Kendall's tau over the judged networks.
        band_tau: Kendall's tau among networks of about equal FLOPs; NaN where these are not known.
        covered: number of measurements inside the 90 % interval; NaN without intervals.
        widths: width of each interval as a share of the measurement, shape (count,).
    """

    group: str
    kind: str
    platform: str
    count: int
    within10: int
    ape_sum: float
    tau: float
    band_tau: float
    covered: float
    widths: Array


def judged(
    group: str,
    kind: str,
    left: LeftOut,
    factor: float = float("nan"),
    flops: Array | None = None,
) -> Judged:
    """The verdict on a platform.

    Args:
        group: its group.
        kind: its kind.
        left: what was predicted for it.
        factor: half-width of the 90 % intervals in sigma; NaN: there are none.
        flops: FLOPs of all networks up to a factor, shape (P,); None: not known.
    """
    relative = np.abs(np.expm1(left.errors))
    reach = factor * left.sigma
    widths = np.exp(left.errors) * (np.exp(reach) - np.exp(-reach))
    truth = left.log_ms - left.errors
    band_tau = float("nan")
    if flops is not None:
        band_tau = kendall_within_bands(left.log_ms, truth, flops[left.judged])
    inside = float((np.abs(left.errors) <= reach).sum()) if factor == factor else factor
    return Judged(
        group,
        kind,
        left.platform,
        len(relative),
        int((relative <= 0.1 + EDGE).sum()),
        float(relative.sum()),
        kendall_tau(left.log_ms, truth),
        band_tau,
        inside,
        widths,
    )


def figures(found: Sequence[Judged]) -> dict[str, Any]:
    """All figures of some verdicts, each with its 95 % interval over boards."""
    groups = sorted({each.group for each in found})
    told: dict[str, Any] = {
        "boards": len(groups),
        "platforms": len({each.platform for each in found}),
    }
    draws = np.random.default_rng(0).integers(0, len(groups), (RESAMPLES, len(groups)))
    for name, (parts, wholes) in _sums(found, groups).items():
        if np.isnan(parts).any():
            continue
        samples = parts[draws].sum(axis=1) / wholes[draws].sum(axis=1)
        low, high = np.percentile(samples, (2.5, 97.5))
        told[name] = round(float(parts.sum() / wholes.sum()), 3)
        told[f"{name}_interval"] = [round(float(low), 3), round(float(high), 3)]
    widths = np.concatenate([each.widths for each in found])
    if not np.isnan(widths).all():
        told["median_width_percent"] = round(100.0 * float(np.median(widths)), 1)
    return told


def _sums(found: Sequence[Judged], groups: Sequence[str]) -> dict[str, tuple[Array, Array]]:
    """For each figure, by group, the sum and what it is divided by; both of shape (groups,)."""
    place = {group: number for number, group in enumerate(groups)}
    columns = np.zeros((7, len(groups)))
    for each in found:
        columns[:, place[each.group]] += (
            each.within10,
            each.ape_sum,
            each.tau,
            each.band_tau,
            each.covered,
            each.count,
            1.0,
        )
    within, ape, tau, band_tau, covered, networks, platforms = columns
    return {
        "within10_percent": (100.0 * within, networks),
        "mape_percent": (100.0 * ape, networks),
        "kendall": (tau, platforms),
        "kendall_of_equal_flops": (band_tau, platforms),
        "coverage_90_percent": (100.0 * covered, networks),
    }
