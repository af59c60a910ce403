"""Analytic costs that need no measurement: work of each scheme, rooflines with and without tiles.

Work is counted in multiply-adds, traffic in bytes, latency in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.table_features import quantise
from latfarm_predictors.kernels.workload import Workload

# Sizes of tiles that are tried when a roofline is fitted.
OUT_CHANNEL_TILES = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128)
IN_CHANNEL_TILES = OUT_CHANNEL_TILES
ROW_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
POSITION_TILES = (1, 4, 6, 8, 12, 16, 24, 32, 48, 64)

WINOGRAD_TILES = (2, 4, 6)
"""Sides n of output tiles that are tried for Winograd's scheme F(n x n, k x k)."""

FALLBACK_MACS_PER_MS = 2.0e7
FALLBACK_BYTES_PER_MS = 1.0e7
FALLBACK_OVERHEAD_MS = 1.0e-3
"""Rates of a modest CPU core (20 GMAC/s, 10 GB/s) and 1 us per kernel.

They are used only where nothing at all was measured."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Block sizes in which an implementation computes; 1 means that it does not compute in blocks.

    At most one of `rows` and `positions` is above 1.

    Attributes:
        out_channels: block of output channels.
        in_channels: block of input channels, or of the whole reduction.
        rows: block of output rows, and of output columns.
        positions: block of flattened output positions.
        whole_reduction: whether `in_channels` blocks c_in * k * k, as in a GEMM after im2col,
            instead of c_in alone.
    """

    out_channels: int = 8
    in_channels: int = 4
    rows: int = 1
    positions: int = 1
    whole_reduction: bool = False

    def moved(self, name: str, size: int) -> Tiles:
        """The same tiles with one size changed; of rows and positions, the other one becomes 1."""
        values = {**asdict(self), name: bool(size) if name == "whole_reduction" else size}
        if size > 1 and name in ("rows", "positions"):
            values["positions" if name == "rows" else "rows"] = 1
        return Tiles(**values)


TILE_MOVES = (
    *(("out_channels", size) for size in OUT_CHANNEL_TILES),
    *(("in_channels", size) for size in IN_CHANNEL_TILES),
    *(("rows", size) for size in ROW_TILES),
    *(("whole_reduction", size) for size in (0, 1)),
    *(("positions", size) for size in POSITION_TILES),
)
"""Every change of one size: the steps of a coordinate descent over `Tiles`."""


def tiled_work(table: Table, tiles: Tiles) -> tuple[Array, Array]:
    """Multiply-adds when every dimension is rounded up to its tile, and the number of tiles.

    Grouped convolutions round up within each group; depthwise ones compute blocks of channels.

    Returns:
        Two arrays of shape (n,).
    """
    per_group = table.out_channels / table.conv_groups
    depthwise = table.group_in <= 1
    width = float(tiles.out_channels)
    channels = np.where(
        depthwise,
        quantise(table.out_channels, width),
        table.conv_groups * quantise(per_group, width),
    )
    if tiles.rows > 1:
        rows = float(tiles.rows)
        grid = quantise(table.out_h, rows) * quantise(table.out_w, rows)
        positions = table.positions * grid / (table.out_h * table.out_w)
    else:
        positions = quantise(table.positions, float(tiles.positions))
    depth = float(tiles.in_channels)
    if tiles.whole_reduction:
        reduction = quantise(table.reduction, depth)
    else:
        reduction = quantise(table.group_in, depth) * table.area
    reduction = np.where(depthwise, table.area, reduction)
    blocks = positions / max(tiles.rows**2, tiles.positions) * channels / width
    return positions * channels * reduction, blocks


def winograd_tile(n: Array | float, k: Array | float, ci: Array, co: Array, pairs: Array) -> Array:
    """Operations of one Winograd output tile F(n x n, k x k), shape of `ci`.

    It is Eq. 2 of MNN (Jiang et al. 2020): transform a tile of the input, multiply its channels,
    and transform back. The last term is printed without the factor o_c; here it has it.

    Args:
        n: side of the output tile.
        k: side of the kernel.
        ci: input channels.
        co: output channels.
        pairs: number of pairs of channels: ci * co, or more where a layout pads channels.
    """
    a = n + k - 1
    return 2 * ci * a**3 + pairs * a**2 + n * a * (2 * n + k - 1) * co


def winograd(workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
    """Work of the cheapest scheme, direct or Winograd, over that of the direct one.

    These are Eq. 2-3 of MNN (Jiang et al. 2020) for F(n x n, k x k), n in 2, 4, 6. The printed cost
    is that of one tile, and its last term lacks the factor o_c. Here the term has it, the cost is
    multiplied by the number of tiles ceil(o_w/n) * ceil(o_h/n), and channels are padded to
    multiples of 4 as in the NC4HW4 layout.

    Returns:
        The ratio, at most 1, and the chosen n (1 = direct), each of shape (n,).
    """
    table = as_table(workloads)
    ci, co, k = table.group_in, table.out_channels, table.kernel_h
    padded = quantise(ci, 4.0) * quantise(co, 4.0)
    direct = table.out_h * table.out_w * padded * table.area
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
    if not possible.any():  # most groups of kernels have no convolution at all
        return np.ones(len(table)), np.ones(len(table))
    best, chosen = direct.copy(), np.ones(len(table))
    for n in WINOGRAD_TILES:
        blocks = np.ceil(table.out_w / n) * np.ceil(table.out_h / n)
        cost = blocks * winograd_tile(n, k, ci, co, padded)
        better = possible & (cost < best)
        best, chosen = np.where(better, cost, best), np.where(better, float(n), chosen)
    return best / direct, chosen


def winograd_ratio(table: Table) -> Array:
    """Work of the cheapest scheme over that of the direct one (`winograd`), shape (n,)."""
    return table.once(_winograd_ratio)


def _winograd_ratio(table: Table) -> Array:
    return winograd(table)[0]


def winograd_3x3(table: Table) -> Array:
    """Work of F(n x n, 3 x 3), n in 2, 4, 6, over that of the direct scheme, shape (n, 3).

    It is 1 for all kernels but plain 3 x 3 convolutions of stride 1: libraries have Winograd's
    scheme only for these. They choose n by tables of sizes that are not known here.
    """
    ratios = np.ones((len(table), len(WINOGRAD_TILES)))
    rows = np.flatnonzero(
        (table.kernel_h == 3)
        & (table.kernel_w == 3)
        & (table.stride_h == 1)
        & (table.stride_w == 1)
        & (table.dilation_h == 1)
        & (table.dilation_w == 1)
        & (table.groups == 1)
        & table.of_family("conv")
    )
    if len(rows) == 0:
        return ratios
    ci, co = table.group_in[rows], table.out_channels[rows]
    height, width = table.out_h[rows], table.out_w[rows]
    padded = quantise(ci, 4.0) * quantise(co, 4.0)
    for column, n in enumerate(WINOGRAD_TILES):
        blocks = np.ceil(width / n) * np.ceil(height / n)
        cost = blocks * winograd_tile(n, 3.0, ci, co, padded)
        ratios[rows, column] = np.minimum(cost / (height * width * padded * 9.0), 1.0)
    return ratios


def roofline_ms(
    workloads: Sequence[Workload] | Table,
    macs_per_ms: float = FALLBACK_MACS_PER_MS,
    bytes_per_ms: float = FALLBACK_BYTES_PER_MS,
    overhead_ms: float = FALLBACK_OVERHEAD_MS,
) -> Array:
    """Latency by the roofline model: overhead + max(compute, traffic), shape (n,)."""
    table = as_table(workloads)
    return overhead_ms + np.maximum(table.macs / macs_per_ms, table.total_bytes / bytes_per_ms)


def utilisation(workloads: Sequence[Workload] | Table, tiles: Tiles) -> Array:
    """Share of the lanes of a processing array that do useful work, shape (n,).

    It is the product of u / (ceil(u / tile) * tile) over the dimensions u (ANNETTE).
    """
    table = as_table(workloads)
    plain, _ = tiled_work(table, Tiles(1, 1, 1, 1))
    padded, _ = tiled_work(table, tiles)
    return plain / padded
