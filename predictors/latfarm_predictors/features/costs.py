"""Analytic costs that need no measurement: work in tiles, rooflines with and without tiles.

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
