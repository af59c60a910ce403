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

    It takes O(n log n) time and O(n) memory (Knight, J. Am. Stat. Assoc. 61, 1966): sorted by
    `first`, the pairs that `second` orders the other way are its inversions.

    Args:
        first: n values, shape (n,).
        second: n values, shape (n,).
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if np.isnan(a).any() or np.isnan(b).any():
        return float("nan")
    order = np.lexsort((b, a))
    ranks_a = np.unique(a[order], return_inverse=True)[1]
    ranks_b = np.unique(b[order], return_inverse=True)[1]
    count = len(order)
    pairs = count * (count - 1) // 2
    tied_a, tied_b = _tied_pairs(ranks_a), _tied_pairs(ranks_b)
    # rows of equal pairs are neighbours in this order
    tied_both = _tied_pairs(ranks_a * (count + 1) + ranks_b)
    agreeing = pairs - tied_a - tied_b + tied_both - 2 * _inversions(ranks_b)
    scale = float(pairs - tied_a) * float(pairs - tied_b)
    return float(agreeing / np.sqrt(scale)) if scale > 0 else float("nan")


def kendall_within_bands(
    predicted_ms: npt.ArrayLike,
    measured_ms: npt.ArrayLike,
    flops: npt.ArrayLike,
    width: float = 0.1,
    least: int = 10,
) -> float:
    """Mean of Kendall's tau among networks of about equal FLOPs, weighted by their number.

    NNLQP (figure 9) reports tau over all candidates of a search and within a narrow band of
    FLOPs, because a search compares candidates of about equal cost. The bands here divide the
    logarithm of FLOPs evenly.

    Args:
        predicted_ms: predictions, shape (n,).
        measured_ms: measurements, shape (n,).
        flops: FLOPs of the networks, all positive, shape (n,).
        width: width of a band as a share: 0.1 puts 1.0 and 1.1 GFLOPs into neighbouring bands.
        least: smallest number of networks with which a band counts.

    Returns:
        NaN if no band has enough networks.
    """
    predicted, measured = np.asarray(predicted_ms), np.asarray(measured_ms)
    band = np.floor(np.log(np.asarray(flops, dtype=np.float64)) / np.log1p(width))
    taus, sizes = [], []
    for value in np.unique(band):
        inside = band == value
        if (size := int(inside.sum())) < least:
            continue
        tau = kendall_tau(predicted[inside], measured[inside])
        if tau == tau:
            taus.append(tau)
            sizes.append(size)
    return float(np.average(taus, weights=sizes)) if taus else float("nan")


def pareto_front(latency_ms: npt.ArrayLike, value: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which networks are on the Pareto front of least latency and greatest value.

    A network is on the front if no other one is at least as fast and at least as good, and better
    in one of both. Networks that are equal in both are on it together.

    Args:
        latency_ms: latencies, shape (n,).
        value: what shall be great, such as the accuracy of the network, shape (n,).

    Returns:
        A mask of shape (n,).
    """
    latency, worth = np.asarray(latency_ms), np.asarray(value)
    order = np.lexsort((-worth, latency))
    front = np.zeros(len(order), dtype=bool)
    last: tuple[float, float] | None = None  # the slowest member of the front so far
    for place in order.tolist():
        here = (float(latency[place]), float(worth[place]))
        if last is None or here[1] > last[1]:
            last = here
        front[place] = here == last
    return front


def pareto_found(
    predicted_ms: npt.ArrayLike, measured_ms: npt.ArrayLike, value: npt.ArrayLike
) -> float:
    """Share of the true Pareto front that is on the predicted front, too.

    Args:
        predicted_ms: predicted latencies, shape (n,).
        measured_ms: measured latencies, which make the true front, shape (n,).
        value: what shall be great, such as the accuracy of the network, shape (n,).

    Returns:
        NaN if there are no networks.
    """
    true = pareto_front(measured_ms, value)
    return float(pareto_front(predicted_ms, value)[true].mean()) if true.any() else float("nan")


def _tied_pairs(ranks: npt.NDArray[np.integer]) -> int:
    """Number of pairs with equal ranks."""
    sizes = np.unique(ranks, return_counts=True)[1]
    return int((sizes * (sizes - 1) // 2).sum())


def _inversions(ranks: npt.NDArray[np.integer]) -> int:
    """Number of pairs i < j with ranks[i] > ranks[j].

    Ranks are told apart by their bits, from the highest to the lowest. Among ranks with equal
    higher bits, each 0 behind a 1 is an inversion. Then zeros are put before ones, in order.
    """
    found = 0
    ranks = ranks.copy()
    places = np.arange(len(ranks))
    for shift in reversed(range(int(ranks.max(initial=0)).bit_length())):
        ones = (ranks >> shift) & 1
        group = ranks >> (shift + 1)
        first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        sizes = np.diff(np.append(first, len(ranks)))
        start = np.repeat(first, sizes)
        before = np.cumsum(ones) - ones
        ones_before = before - before[start]
        found += int(ones_before[ones == 0].sum())
        zeros = np.repeat(sizes - np.add.reduceat(ones, first), sizes)
        zeros_before = places - start - ones_before
        target = start + np.where(ones == 1, zeros + ones_before, zeros_before)
        moved = np.empty_like(ranks)
        moved[target] = ranks
        ranks = moved
    return found
