"""Metrics of predictions: errors, ranking, and the coverage and width of intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array


@dataclass(frozen=True, slots=True)
class Scores:
    """Metrics of nn-Meter section 7.1 and ANNETTE; shares and errors are fractions, not percent.

    Attributes:
        count: number of pairs of prediction and measurement.
        rmse_ms: root mean square error.
        rmspe: root mean square relative error.
        mean_ape: mean absolute relative error.
        median_ape: median absolute relative error.
        worst_ape: largest absolute relative error.
        within5: share of predictions within +-5 % of the measurement.
        within10: share of predictions within +-10 % of the measurement.
        kendall: Kendall's tau-b; NaN for fewer than two pairs.
    """

    count: int
    rmse_ms: float
    rmspe: float
    mean_ape: float
    median_ape: float
    worst_ape: float
    within5: float
    within10: float
    kendall: float

    def to_json(self) -> dict[str, float | int | None]:
        """The metrics as plain JSON types; an undefined tau is null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def evaluate(predicted_ms: npt.ArrayLike, measured_ms: npt.ArrayLike) -> Scores:
    """All metrics of predictions against measurements, both of shape (n,).

    Raises:
        ValueError: shapes differ, there are no pairs, or a measurement is not positive.
    """
    predicted = np.asarray(predicted_ms, dtype=np.float64)
    measured = np.asarray(measured_ms, dtype=np.float64)
    if predicted.shape != measured.shape or predicted.ndim != 1 or not len(predicted):
        raise ValueError(f"shapes {predicted.shape} and {measured.shape} are no pairs")
    if not (measured > 0).all():
        raise ValueError("measured latencies must be positive")
    relative = predicted / measured - 1.0
    size = np.abs(relative)
    # rounding must not move a case such as 1.1 / 1.0 over the boundary
    edge = 1e-12
    return Scores(
        count=len(measured),
        rmse_ms=float(np.sqrt(np.mean((predicted - measured) ** 2))),
        rmspe=float(np.sqrt(np.mean(relative**2))),
        mean_ape=float(size.mean()),
        median_ape=float(np.median(size)),
        worst_ape=float(size.max()),
        within5=float(np.mean(size <= 0.05 + edge)),
        within10=float(np.mean(size <= 0.10 + edge)),
        kendall=kendall_tau(predicted, measured),
    )


def coverage(low_ms: Array, high_ms: Array, measured_ms: Array) -> tuple[float, float]:
    """Share of measurements inside their interval, and the median of width / measurement."""
    inside = (measured_ms >= low_ms) & (measured_ms <= high_ms)
    return float(inside.mean()), float(np.median((high_ms - low_ms) / measured_ms))


def kendall_tau(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Kendall's tau-b of two rankings, which corrects for ties; NaN if either is constant.

    It takes time and memory quadratic in n.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    upper = np.triu_indices(len(a), 1)
    left = np.sign(a[:, None] - a[None, :])[upper]
    right = np.sign(b[:, None] - b[None, :])[upper]
    scale = np.sqrt(float(left @ left) * float(right @ right))
    return float(left @ right / scale) if scale > 0 else float("nan")
