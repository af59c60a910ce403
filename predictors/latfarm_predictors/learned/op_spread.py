"""How much larger the errors of one op are than those of the group that it is learned with.

A group of kernels has one regressor and shares conformal scores, so its intervals hold on average
over the group. An op with few kernels in it may then lie outside of all of its intervals: the
process has one noise for the whole group, and a few scores among many change no quantile. So the
deviation of each op is multiplied by a factor of its own. The factor comes from the errors that
models made on the op's kernels without having seen them, and it is never below that for the number
of these kernels: what is known of an op rests on few points where few points stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latfarm_predictors.features.table import Array

_PRIOR_ROWS = 4.0
"""An op is taken to err like its group as if this many of its kernels had been seen to do so."""
_MOST_SCORE = 10.0
"""A score counts as at most this many times the usual one: one glitch is no spread."""
_LEAST_OTHERS = 8
"""Other ops of a group tell what is usual only if they have this many kernels."""
_MOST_FACTOR = 1000.0
"""Largest factor that a bundle may hold; those that are learned are below 20."""
_LEAST_SCORE = 1e-12
"""Stands for a median of zero, so that it can divide."""

Op = tuple[str, str]
"""The family and the main op of a kernel."""


def op_spreads(scores: Array, ops: Sequence[Op], groups: Sequence[str]) -> dict[Op, float]:
    """The factor on the log-sigma of the kernels of each op, at least 1.

    Args:
        scores: absolute log error over log-sigma of n kernels, by models that did not see them,
            shape (n,).
        ops: the op of each.
        groups: the group of kernels that each was learned in.
    """
    places: dict[tuple[str, Op], list[int]] = {}
    for row, place in enumerate(zip(groups, ops, strict=True)):
        places.setdefault(place, []).append(row)
    squares: dict[Op, list[float]] = {}
    for (group, op), rows in places.items():
        others = [row for key, found in places.items() if key[0] == group for row in found]
        beside = scores[[row for row in others if ops[row] != op]]
        usual = _usual(beside if len(beside) >= _LEAST_OTHERS else scores[rows])
        squares.setdefault(op, []).extend(
            (np.minimum(scores[rows] / usual, _MOST_SCORE) ** 2).tolist()
        )
    factors = {}
    for op, own in squares.items():
        share = (_PRIOR_ROWS + sum(own)) / (_PRIOR_ROWS + len(own))
        # the error at a new point has the variance of one error, and that of the mean of n
        factors[op] = float(np.sqrt(max(share, 1.0) * (1.0 + 1.0 / len(own))))
    return factors


def read_spreads(rows: Sequence[Sequence[Any]]) -> dict[Op, float]:
    """The factors that a bundle holds, each with family and op; older bundles have none.

    Raises:
        ValueError: a row has another form, or a factor is not between 1 and 1,000.
    """
    found = {(str(family), str(op)): float(factor) for family, op, factor in rows}
    if not all(1.0 <= factor <= _MOST_FACTOR for factor in found.values()):
        raise ValueError(f"a factor of an op is not between 1 and {_MOST_FACTOR:.0f}")
    return found


def _usual(scores: Array) -> float:
    """Root of the mean squared score, each capped."""
    most = _MOST_SCORE * max(float(np.median(scores)), _LEAST_SCORE)
    return max(float(np.sqrt(np.mean(np.minimum(scores, most) ** 2))), _LEAST_SCORE)
