"""Terms of a roofline that depend neither on its tiles nor on its ops."""

from __future__ import annotations

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.features.winograd import winograd_3x3
from latfarm_predictors.kernels.families import MOVING_FAMILIES


def plain_terms(table: Table) -> Array:
    """Terms that depend neither on tiles nor on ops, shape (n, 6)."""
    return np.stack(
        [
            np.ones(len(table)),
            table.input_bytes,
            table.output_bytes,
            table.weight_bytes,
            table.positions * table.reduction,
            table.extra_bytes,
        ],
        axis=1,
    )


def pieces_of_moves(table: Table) -> Array:
    """Number of pieces that a move copies, shape (n, 1); 0 for kernels that compute.

    Elements that do not lie side by side before and after a move are copied one by one: a library
    may take eight nanoseconds for each, whatever the bandwidth of its memory.
    """
    moves = np.array([family in MOVING_FAMILIES for family in table.families], dtype=np.float64)
    return (moves * table.elements / table.contiguous)[:, None]


def shares_of_schemes(table: Table, positions: int) -> Array:
    """Share of the work that is done at the rate of each scheme, shape (n, 3).

    The schemes are Winograd's for 3 x 3 windows, 1 x 1 windows, and larger windows directly.

    Args:
        table: n kernels.
        positions: how the library limits tiles on small maps.
    """
    small = winograd_3x3(table, positions).min(axis=1)
    windows = table.area > 1
    return np.stack([small, 1.0 * ~windows, windows & (small >= 1.0)], axis=1)
