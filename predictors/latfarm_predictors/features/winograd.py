"""The work of Winograd's schemes F(n x n, k x k), for the tiles that libraries admit.

A scheme computes a tile of n x n outputs from a tile of n + k - 1 by n + k - 1 inputs. Libraries
have transforms for a few sizes of the input tile only:

- MNN 3.x admits input tiles of side 4, 6 and 8, for every square window of stride 1 without
  dilation (`ConvolutionPackWinograd::bestWinogradUnit` and `ConvolutionPackFreeWinograd`, where the
  set is named `supportSu`; `WinogradOptFunction` has the transforms). So a 3 x 3 window is computed
  with n = 2, 4 or 6, a 5 x 5 window with n = 2 or 4, a 7 x 7 window with n = 2, and a 9 x 9 window
  never. Small maps admit small tiles only (`mnn_schemes.MnnTiles`).
- ncnn has 3 x 3 windows only, with n = 2, 4 and 6 (`convolution_3x3_winograd.h`): the same input
  tiles. It chooses among them by tables that were measured on one processor.
- oneDNN, MLAS and XNNPACK have none for fp32 on the CPUs that this project was run on.

Small maps admit small tiles only: MNN divides the map by the positions that its product of matrices
takes at a time, and takes no larger tile than the root of that. This is an argument, `positions`,
because it depends on the processor (14 with AVX-512), and 0 where there is no such limit.

Work is told as a share of the direct scheme's. `tile_work` is not limited to 1: a library that
chooses by a table computes a tile even where it wastes work, as on maps of 1 to 3 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import quantise
from latfarm_predictors.kernels.workload import Workload

INPUT_SIDES = (4, 6, 8)
"""Sides of the input tiles that libraries have transforms for (see above)."""
LEAST_TILE, MOST_TILE = 2, 8
"""Least and largest side n of an output tile (MNN's `CONVOLUTION_WINOGRAD_MIN_UNIT` and its
`CONVOLUTION_WINOGRAD_MAX_UNIT`)."""
SMALL_WINDOW = 3
"""Side of the one window for which most libraries have Winograd's scheme."""
EDITION = 2
"""The edition of these features.

Bundles that name no edition were fitted to edition 1. It has tiles of n = 2, 4 and 6 for windows of
every size, and limits the work of each tile to that of the direct scheme.
"""

_EARLIER_TILES = (2, 4, 6)
"""Sides n of output tiles in edition 1."""
_LANES = 4.0
"""Channels are padded to multiples of this, as in MNN's layout NC4HW4."""


def winograd_tile(n: Array | float, k: Array | float, ci: Array, co: Array, pairs: Array) -> Array:
    """Operations of one Winograd output tile F(n x n, k x k), shape of `ci`.

    It is Eq. 2 of MNN (Jiang et al. 2020): transform a tile of the input, multiply its channels,
    and transform back. The last term is printed without the factor o_c; here it has it. MNN 3.x
    counts half as much for the first term.

    Args:
        n: side of the output tile.
        k: side of the kernel.
        ci: input channels.
        co: output channels.
        pairs: number of pairs of channels: ci * co, or more where a layout pads channels.
    """
    a = n + k - 1
    return 2 * ci * a**3 + pairs * a**2 + n * a * (2 * n + k - 1) * co


def admitted(side: int, window: int) -> int:
    """Side n of the output tile that an input tile of this side computes; 0 if libraries have none.

    Args:
        side: side of the input tile.
        window: side of the window.
    """
    tile = side - window + 1
    return tile if side in INPUT_SIDES and LEAST_TILE <= tile <= MOST_TILE else 0


def square_windows(table: Table) -> Array:
    """Side of each window that a Winograd scheme can compute, shape (n,); 0 for other kernels.

    That is a square window larger than 1 x 1, of stride 1, without dilation, in a convolution that
    is neither grouped nor transposed.
    """
    possible = (
        (table.area > 1)
        & (table.kernel_h == table.kernel_w)
        & (table.stride_h == 1)
        & (table.stride_w == 1)
        & (table.dilation_h == 1)
        & (table.dilation_w == 1)
        & (table.groups == 1)
        & table.of_family("conv")
    )
    return np.where(possible, table.kernel_h, 0.0)


def tile_work(table: Table) -> Array:
    """Work with each input tile over that of the direct scheme, shape (n, 3).

    The columns are those of `INPUT_SIDES`. Where a tile is not admitted, the value is 1. The work
    of an admitted tile may be above 1.
    """
    work = np.ones((len(table), len(INPUT_SIDES)))
    window = square_windows(table)
    for column, side in enumerate(INPUT_SIDES):
        for size in range(2, side):
            n = admitted(side, size)
            rows = np.flatnonzero(window == size)
            if n and len(rows):
                work[rows, column] = _work(table, rows, float(n))
    return work


def _work(table: Table, rows: np.typing.NDArray[np.intp], n: float) -> Array:
    """Work of F(n x n, k x k) over that of the direct scheme, for some rows of a table."""
    ci, co, k = table.group_in[rows], table.out_channels[rows], table.kernel_h[rows]
    height, width = table.out_h[rows], table.out_w[rows]
    padded = quantise(ci, _LANES) * quantise(co, _LANES)
    blocks = np.ceil(width / n) * np.ceil(height / n)
    return np.asarray(
        blocks * winograd_tile(n, k, ci, co, padded) / (height * width * padded * k**2)
    )


def tile_work_within(table: Table, positions: int) -> Array:
    """`tile_work` of a library that limits tiles on small maps, shape (n, 3).

    Args:
        table: n kernels.
        positions: a tile of side n is admitted if n^2 is at most the number of outputs divided by
            this, rounded up; n = 2 always is. 0: there is no limit.
    """
    work = table.once(tile_work)
    if not positions:
        return work
    most = np.floor(np.sqrt(np.ceil(table.out_h * table.out_w / positions)))
    tiles = np.array(INPUT_SIDES, dtype=np.float64) - square_windows(table)[:, None] + 1.0
    admits = (tiles <= LEAST_TILE) | (tiles <= most[:, None])
    return np.where(admits, work, 1.0)


def winograd(workloads: Sequence[Workload] | Table, positions: int = 0) -> tuple[Array, Array]:
    """Work of the cheapest scheme, direct or Winograd, over that of the direct one.

    These are Eq. 2-3 of MNN (Jiang et al. 2020) for F(n x n, k x k), for the tiles that are
    admitted. The printed cost is that of one tile; here it is multiplied by the number of tiles
    ceil(o_w/n) * ceil(o_h/n), and channels are padded to multiples of 4 as in the NC4HW4 layout.

    Args:
        workloads: n kernels.
        positions: see `tile_work_within`.

    Returns:
        The ratio, at most 1, and the chosen n (1 = direct), each of shape (n,).
    """
    table = as_table(workloads)
    work = table.once(tile_work_within, positions)
    place = work.argmin(axis=1)
    best = work[np.arange(len(table)), place]
    tile = np.array(INPUT_SIDES, dtype=np.float64)[place] - table.kernel_h + 1.0
    return np.minimum(best, 1.0), np.where(best < 1.0, tile, 1.0)


def winograd_ratio(
    table: Table, edition: int = EDITION, *, larger: bool = True, positions: int = 0
) -> Array:
    """Work of the cheapest scheme over that of the direct one, shape (n,).

    Args:
        table: n kernels.
        edition: edition of the features, see `EDITION`.
        larger: whether the library has Winograd's scheme for windows above 3 x 3, too.
        positions: see `tile_work_within`.
    """
    if edition < EDITION:
        return table.once(_earlier_ratio)
    return table.once(_ratio if larger else _small_ratio, positions)


def _ratio(table: Table, positions: int) -> Array:
    return winograd(table, positions)[0]


def _small_ratio(table: Table, positions: int) -> Array:
    return np.asarray(winograd_3x3(table, positions).min(axis=1))


def _earlier_ratio(table: Table) -> Array:
    """`winograd_ratio` of edition 1, for bundles that were fitted to it."""
    ci, co, k = table.group_in, table.out_channels, table.kernel_h
    padded = quantise(ci, _LANES) * quantise(co, _LANES)
    direct = table.out_h * table.out_w * padded * table.area
    possible = square_windows(table) > 0
    if not possible.any():  # most groups of kernels have no convolution at all
        return np.ones(len(table))
    best = direct.copy()
    for n in _EARLIER_TILES:
        blocks = np.ceil(table.out_w / n) * np.ceil(table.out_h / n)
        cost = blocks * winograd_tile(n, k, ci, co, padded)
        best = np.where(possible & (cost < best), cost, best)
    return best / direct


def winograd_3x3(table: Table, positions: int = 0) -> Array:
    """Work of F(n x n, 3 x 3), n in 2, 4, 6, over that of the direct scheme, shape (n, 3).

    It is at most 1, and 1 for all kernels but plain 3 x 3 convolutions of stride 1, for which most
    libraries have Winograd's scheme. See `tile_work_within` for `positions`.
    """
    small = (square_windows(table) == SMALL_WINDOW)[:, None]
    work = table.once(tile_work_within, positions)
    return np.where(small, np.minimum(work, 1.0), 1.0)


def larger_windows(table: Table, positions: int = 0) -> Array:
    """Work of the tiles for windows above 3 x 3 over that of the direct scheme, shape (n, 2).

    The columns are the input tiles of side 6 and 8; it is 1 for all other windows. See
    `tile_work_within` for `positions`.
    """
    larger = (square_windows(table) > SMALL_WINDOW)[:, None]
    return np.where(larger, table.once(tile_work_within, positions)[:, 1:], 1.0)
