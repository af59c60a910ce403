"""How much each board deviates from the typical latencies of networks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latfarm_predictors.features.table import Array

ROUNDS = 4
"""How often typical latencies and the speeds of boards are computed in turn; they settle in 3."""
LEAST_SHARE = 0.02
"""Least latency as a share of the typical one that a deviation may lead to."""
RIDGE = 1e-6
"""Added to the squares of a fit of amounts, so that amounts that always go together do no harm."""


class Deviations(NamedTuple):
    """How n boards deviate from what is typical for P networks.

    Attributes:
        typical_ms: typical latency of each network up to a common factor, shape (P,).
        shares: each amount's part of the typical latency up to a factor, shape (P, f).
        explained: part of the deviations that the amounts explain, shape (n, P).
        rest: the other part, shape (n, P); NaN where nothing was measured.
    """

    typical_ms: Array
    shares: Array
    explained: Array
    rest: Array


def deviations(latencies_ms: Array, weights: Array, amounts: Array, *, ratio: bool) -> Deviations:
    """The deviations of boards with these latencies, shape (n, P), NaN where nothing is known.

    Args:
        latencies_ms: of the boards, shape (n, P). Each network needs one latency.
        weights: weight of each board, shape (n,).
        amounts: see `LatencyTable`, shape (P, f) or (0, 0).
        ratio: see `TransferSettings`.
    """
    typical = typical_ms(latencies_ms, weights)
    count = len(typical)
    if not amounts.size:
        values = relative(latencies_ms, typical, ratio=ratio)
        return Deviations(typical, np.zeros((count, 0)), np.zeros_like(values), values)
    # The typical latencies are smoothed, too: single networks have noise on few boards.
    fitted = amounts @ _fit(amounts / typical[:, None], np.ones(count))
    typical = np.maximum(fitted, LEAST_SHARE * typical)
    shares = amounts / typical[:, None]
    shares = shares / np.maximum(np.sqrt((shares**2).mean(axis=0)), 1e-12)
    values = relative(latencies_ms, typical, ratio=ratio)
    explained = np.empty_like(values)
    for place, row in enumerate(values):
        known = ~np.isnan(row)
        explained[place] = shares @ _fit(shares[known], row[known])
    return Deviations(typical, shares, explained, values - explained)


def relative(latencies_ms: Array, typical: Array, *, ratio: bool) -> Array:
    """Deviations of boards, shape (n, P), from typical latencies, without the boards' speed."""
    if ratio:
        shares = latencies_ms / typical
        return np.asarray(shares / np.nanmean(shares, axis=1, keepdims=True) - 1.0)
    logs = np.log(latencies_ms / typical)
    return np.asarray(logs - np.nanmean(logs, axis=1, keepdims=True))


def typical_ms(latencies_ms: Array, weights: Array) -> Array:
    """Geometric mean over the boards, shape (P,), as if all boards had the same speed."""
    logs = np.log(latencies_ms)
    known = ~np.isnan(logs)
    filled = np.where(known, logs, 0.0)
    mass = known * weights[:, None]
    # networks that only boards of little weight measured need a mass, too
    total = np.maximum(mass.sum(axis=0), 1e-12)
    speed = np.nanmean(logs, axis=1, keepdims=True)
    typical = np.zeros(logs.shape[1])
    for _ in range(ROUNDS):
        typical = (mass * (filled - speed)).sum(axis=0) / total
        speed = np.nanmean(np.where(known, logs - typical, np.nan), axis=1, keepdims=True)
    return np.asarray(np.exp(typical))


def _fit(columns: Array, values: Array) -> Array:
    """Least squares, shape (f,), with a tiny ridge."""
    squares = columns.T @ columns
    squares[np.diag_indices_from(squares)] += RIDGE * max(len(values), 1)
    return np.asarray(np.linalg.solve(squares, columns.T @ values))
