"""Features that tell the schemes of a convolution apart: tiles and transformed weights."""

from __future__ import annotations

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.features.table_features import scheme_features
from latfarm_predictors.features.winograd import (
    INPUT_SIDES,
    SMALL_WINDOW,
    larger_windows,
    square_windows,
    tile_work_within,
    winograd_3x3,
)
from latfarm_predictors.kernels.families import CONVOLUTION_FAMILIES

FEW_CHANNELS = 4
"""A convolution with at most this many input channels reads an image (opacity is the fourth)."""
CACHES_BYTES = (1e6, 4e6, 24e6)
"""Sizes, in bytes, that the caches of a board may have, as in `learned.cold`."""


def tile_features(table: Table, positions: int = 0) -> Array:
    """Features for the Gaussian process, shape (n, 13).

    The first 8 are those of `table_features.scheme_features`. Then follow, in logarithms, by how
    much the work of each tile is above that of the direct scheme, for 3 x 3 windows, and the work
    of the tiles of side 6 and 8 for larger windows. A library that chooses a tile by a table takes
    one that wastes work on maps of 1 to 3 pixels.

    Args:
        table: n kernels.
        positions: how the library limits tiles on small maps, see `winograd.tile_work_within`.
    """
    small = (square_windows(table) == SMALL_WINDOW)[:, None]
    work = table.once(tile_work_within, positions)
    wasted = np.where(small, np.maximum(work, 1.0), 1.0)
    return np.concatenate(
        [
            scheme_features(table, winograd_3x3(table, positions)),
            np.log(wasted),
            np.log(larger_windows(table, positions)),
        ],
        axis=1,
    )


def transformed_weights(table: Table) -> Array:
    """Bytes of transformed 3 x 3 weights beyond each cache of `CACHES_BYTES`, shape (n, 3).

    Winograd's scheme keeps (n + 2)^2 weights where the direct one has 9. For n = 6 that is 7 times
    as much, which caches cannot keep from one tile to the next. 0 for all other kernels.
    """
    small = square_windows(table) == SMALL_WINDOW
    largest = INPUT_SIDES[-1] ** 2 / SMALL_WINDOW**2 * table.weight_bytes * small
    return np.stack([np.maximum(largest - size, 0.0) for size in CACHES_BYTES], axis=1)


def unaligned(table: Table, lanes: int) -> Array:
    """1 for convolutions whose channels `lanes` does not divide, 0 for all others, shape (n,).

    Libraries that keep maps in blocks of channels leave that layout where a block would be cut, and
    compute with other code: onnxruntime's depthwise convolutions then take 5 to 30 times as long.
    Channels of a group count; those of an image, at most four, do not.

    Args:
        table: n kernels.
        lanes: channels that are kept together; 0: none.
    """
    if not lanes:
        return np.zeros(len(table))
    depthwise = table.group_in <= 1
    depth = np.where(depthwise, table.in_channels, table.group_in)
    width = np.where(depthwise, table.out_channels, table.out_channels / table.conv_groups)
    whole = ((depth % lanes == 0) | (depth <= FEW_CHANNELS)) & (width % lanes == 0)
    return np.asarray(table.of_family(*CONVOLUTION_FAMILIES) & ~whole, dtype=np.float64)
