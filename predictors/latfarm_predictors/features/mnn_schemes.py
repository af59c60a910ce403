"""The algorithm that MNN's pre-inference chooses for an op, and its cost (Jiang et al. 2020).

Section 3.2: a convolution with a 1x1 kernel is a matrix product, computed by Strassen's algorithm
as long as Eq. 9 holds. A convolution with a larger kernel is computed by Winograd's algorithm with
the output tile n of least cost (Eq. 2), or by a sliding window if that is n = 1 (Eq. 3).

Eq. 2 is printed as the cost of one tile. This cost grows with n, so n = 1 would always be chosen.
Here the cost of one tile is multiplied by the number of tiles, its last term has the factor o_c
that is missing in print, and it is compared with the cost of the direct algorithm.

The paper tries every n. MNN 3.x has transforms for input tiles of side 4, 6 and 8 only, so that a
3 x 3 window has n = 2, 4 or 6, a 5 x 5 window n = 2 or 4, a 7 x 7 window n = 2, and a larger window
none (`supportSu` in `ConvolutionPackWinograd.cpp` and `ConvolutionPackFreeWinograd.cpp`). Besides,
n is at most the root of the number of output positions for each thread; on processors with AVX-512,
of one fourteenth of the output positions. n = 2 is always allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.winograd import (
    INPUT_SIDES,
    LEAST_TILE,
    MOST_TILE,
    square_windows,
    winograd_tile,
)
from latfarm_predictors.kernels.workload import Workload

TILES = tuple(range(LEAST_TILE, MOST_TILE + 1))
"""Sides of output tiles that the paper tries besides the sliding window."""


@dataclass(frozen=True, slots=True)
class MnnTiles:
    """The output tiles that a version of MNN tries.

    Attributes:
        input_sides: sides of the input tiles that it has transforms for; empty for all.
        positions: an output tile has at most one position of so many of the map; 0 for no limit.
    """

    input_sides: tuple[int, ...]
    positions: int

    def allows(self, table: Table, n: int) -> Array:
        """Whether an output tile of side n is tried for each kernel, shape (n,), 0 or 1."""
        allowed = np.ones(len(table))
        if self.input_sides:
            sides = np.array(self.input_sides, dtype=np.float64)
            allowed *= (table.kernel_h[:, None] + (n - 1) == sides).any(axis=1)
        if self.positions and n > LEAST_TILE:
            map_size = np.ceil(table.out_h * table.out_w / self.positions)
            allowed *= np.floor(np.sqrt(map_size)) >= n
        return allowed


PAPER = MnnTiles((), 0)
"""Every n from 2 to 8, as in the paper."""
MNN_3 = MnnTiles(INPUT_SIDES, 1)
"""MNN 3.x with one thread, on processors without AVX-512."""
MNN_3_AVX512 = MnnTiles(INPUT_SIDES, 14)
"""MNN 3.x on processors with AVX-512, whose product of matrices takes 14 positions at a time."""

DIRECT, SLIDING, WINOGRAD, STRASSEN, MATRIX = range(5)
NAMES = ("direct", "sliding window", "winograd", "strassen", "matrix")
"""Names of the algorithms. "direct" is no product of matrices: depthwise, pooling, elementwise."""


@dataclass(frozen=True)
class Schemes:
    """The chosen algorithm of n workloads, each array of shape (n,).

    Attributes:
        kind: index into `NAMES`.
        tile: side of Winograd's output tile, else 1.
        depth: recursions of Strassen's algorithm, else 0.
        operations: of the chosen algorithm; where it saves multiplications by additions, both count
            the same (section 3.3.2).
        multiplications: of the direct algorithm; for ops without any, the number of elements
            written, as in MNN's public code.
    """

    kind: Array
    tile: Array
    depth: Array
    operations: Array
    multiplications: Array

    def __len__(self) -> int:
        """Number of workloads."""
        return len(self.kind)

    def names(self) -> list[str]:
        """The chosen algorithm of each as a text: "winograd F(4x4)", "strassen x2"."""
        names = []
        for kind, tile, depth in zip(self.kind, self.tile, self.depth, strict=True):
            name = NAMES[int(kind)]
            if kind == WINOGRAD:
                name = f"winograd F({tile:.0f}x{tile:.0f})"
            elif kind == STRASSEN:
                name = f"strassen x{depth:.0f}"
            names.append(name)
        return names

    def counts(self) -> dict[str, int]:
        """How often each algorithm was chosen, the most frequent first; "direct" is left out."""
        found = Counter(
            name for name, kind in zip(self.names(), self.kind, strict=True) if kind != DIRECT
        )
        return dict(found.most_common())


def choose(workloads: Sequence[Workload] | Table, tiles: MnnTiles = MNN_3) -> Schemes:
    """The algorithm of each workload by the rules of MNN.

    Args:
        workloads: n kernels.
        tiles: the output tiles that are tried.
    """
    table = as_table(workloads)
    families = np.array(table.families, dtype=np.str_)
    convolution = (families == "conv") & np.array(
        [op == "Conv" for op in table.main_ops], dtype=np.bool_
    )
    pointwise = convolution & (table.area == 1)
    windowed = convolution & (table.area > 1)
    multiplications = np.where(table.macs > 0, table.macs, table.output_bytes / table.element_bytes)
    kind = np.select(
        [pointwise | np.isin(families, ("fc", "matmul")), windowed],
        [float(MATRIX), float(SLIDING)],
        float(DIRECT),
    )
    operations = multiplications.copy()
    tile, best = winograd_choice(table, tiles)
    fast = windowed & (square_windows(table) > 0) & (tile > 1)
    tile = np.where(fast, tile, 1.0)
    kind = np.where(fast, float(WINOGRAD), kind)
    operations = np.where(fast, best, operations)
    depth = np.zeros(len(table))
    for row in np.flatnonzero(pointwise):
        sizes = table.positions[row], table.in_channels[row], table.out_channels[row]
        depth[row], recursive = strassen(*map(float, sizes))
        if depth[row]:
            kind[row], operations[row] = float(STRASSEN), recursive
    return Schemes(kind, tile, depth, operations, multiplications)


def winograd_choice(table: Table, tiles: MnnTiles = MNN_3) -> tuple[Array, Array]:
    """The output tile of least cost (1: the sliding window) and that cost, each of shape (n,).

    They are valid for windows of stride 1 without dilation; other rows have no meaning.

    Args:
        table: n kernels.
        tiles: the output tiles that are tried.
    """
    ci, co, k = table.group_in, table.out_channels, table.kernel_h
    best = table.batch * table.out_h * table.out_w * ci * co * table.area
    chosen = np.ones(len(table))
    for n in TILES:
        count = table.batch * np.ceil(table.out_w / n) * np.ceil(table.out_h / n)
        cost = count * winograd_tile(n, k, ci, co, ci * co)
        better = (tiles.allows(table, n) > 0) & (cost < best)
        best, chosen = np.where(better, cost, best), np.where(better, float(n), chosen)
    return chosen, best


def recurses(n: float, k: float, m: float) -> bool:
    """Eq. 9: whether one more step of Strassen's algorithm saves more operations than it adds.

    For [n, k] x [k, m]: mnk - 7 (m/2)(n/2)(k/2) > 4 (m/2)(k/2) + 4 (n/2)(k/2) + 7 (m/2)(n/2).
    """
    return m * n * k / 8 > (4 * m * k + 4 * n * k + 7 * m * n) / 4


def strassen(n: float, k: float, m: float) -> tuple[int, float]:
    """Depth of recursion and operations of Strassen's algorithm for [n, k] x [k, m].

    Odd sizes are halved too; additions and multiplications count the same.
    """
    depth, products, additions = 0, 1.0, 0.0
    while recurses(n, k, m):
        n, k, m = n / 2, k / 2, m / 2
        additions += products * (4 * m * k + 4 * n * k + 7 * m * n)
        products *= 7
        depth += 1
    return depth, products * n * k * m + additions
