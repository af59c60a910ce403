"""Features of workloads for the regressors.

`table6` is for the forest baseline (nn-Meter, Table 6). `engineered` has logarithms, ratios and
alignments for boosted trees. `residual_features` has fewer, smoother coordinates for the Gaussian
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array, Table, appended_ops, main_op

_POWERS = 2 ** np.arange(62)


def quantise(values: Array, tile: float) -> Array:
    """`values` rounded up to multiples of `tile`."""
    return np.asarray(np.ceil(values / tile) * tile)


def distances(left: Array, right: Array) -> Array:
    """Euclidean distances between rows, shape (n, m)."""
    squares = np.einsum("ij,ij->i", left, left)[:, None] - 2.0 * (left @ right.T)
    squares += np.einsum("ij,ij->i", right, right)[None, :]
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def two_adic(values: Array, cap: int = 5) -> Array:
    """How often 2 divides each value above 0, at most `cap`: the alignment for vector units."""
    whole = values.astype(np.int64)
    # the lowest bit that is set; for a number that is not whole, the lowest bit of all
    lowest = np.where(whole == values, whole & -whole, 1)
    return np.asarray(_POWERS.searchsorted(np.minimum(lowest, 2**cap)), dtype=np.float64)


def indicator(names: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> Array:
    """Multi-hot columns, shape (len(names), len(vocabulary)); unknown names are ignored."""
    place = {name: column for column, name in enumerate(vocabulary)}
    out = np.zeros((len(names), len(vocabulary)))
    for row, listed in enumerate(names):
        for name in listed:
            column = place.get(name)
            if column is not None:
                out[row, column] = 1.0
    return out


@dataclass(frozen=True)
class Vocabulary:
    """The names of main ops and of appended ops that occur often enough in the training data."""

    main: tuple[str, ...] = ()
    appended: tuple[str, ...] = ()

    @staticmethod
    def of(table: Table, *, least: int = 3, most: int = 12) -> Vocabulary:
        """The vocabulary of a training table, without ops that all rows have.

        Args:
            table: the training data.
            least: number of rows that an op must have.
            most: number of ops that are kept, the most frequent ones.
        """
        total = len(table)

        def frequent(counts: dict[str, int]) -> tuple[str, ...]:
            kept = [name for name, count in counts.items() if least <= count < total]
            return tuple(sorted(kept, key=lambda name: (-counts[name], name))[:most])

        main: dict[str, int] = {}
        appended: dict[str, int] = {}
        for name in table.main_ops:
            main[name] = main.get(name, 0) + 1
        for ops in table.appended_ops:
            for name in set(ops):
                appended[name] = appended.get(name, 0) + 1
        return Vocabulary(frequent(main), frequent(appended))

    def columns(self, table: Table) -> Array:
        """One-hot main op beside multi-hot appended ops, shape (n, main + appended)."""
        names, places = table.kinds
        first = indicator([(main_op(name),) for name in names], self.main)
        rest = indicator([appended_ops(name) for name in names], self.appended)
        return np.concatenate([first, rest], axis=1).take(places, axis=0)


def table6(table: Table) -> Array:
    """Features of nn-Meter's predictors (Table 6), shape (n, 11).

    HW, C_in, C_out, K, S, FLOPs and params are those of the paper. Output size, groups, operands
    and fused ops are added since one forest predicts several kernel types here. Columns that a
    kernel type does not use are constant, and a forest ignores them.
    """
    return np.stack(
        [
            np.sqrt(table.in_h * table.in_w),
            table.in_channels,
            table.out_channels,
            np.sqrt(table.area),
            np.sqrt(table.stride_h * table.stride_w),
            2.0 * table.macs,
            table.weight_bytes / table.element_bytes,
            table.output_bytes,
            table.groups,
            table.inputs,
            table.fused_ops,
        ],
        axis=1,
    )


def engineered(table: Table, log_base: Array, winograd: Array) -> Array:
    """Features for boosted trees, shape (n, 60 or so).

    Args:
        table: the workloads.
        log_base: log of the roofline's latency, shape (n,).
        winograd: log of Winograd's work over direct work, shape (n,) (`winograd.winograd`).
    """
    out = table.once(_engineered).copy()
    out[:, _ENGINEERED_WINOGRAD], out[:, _ENGINEERED_BASE] = winograd, log_base
    return out


_ENGINEERED_WINOGRAD, _ENGINEERED_BASE = 20, 29
"""Columns of `engineered` that do not follow from a table alone."""


def _engineered(table: Table) -> Array:
    """The columns of `engineered` that follow from a table alone; the others are 0."""
    ci, co, rows = table.group_in, table.out_channels, table.out_h
    zero = np.zeros(len(table))
    twos_in, twos_out = table.once(_twos_in), table.once(_twos_out)
    out = [
        np.log(table.in_h),
        np.log(table.in_w),
        np.log(table.in_channels),
        np.log(co),
        table.kernel_h,
        table.kernel_w,
        table.stride_h,
        table.stride_w,
        table.dilation_h,
        np.log(table.groups),
        np.log(table.batch),
        np.log(rows),
        np.log(table.macs + 1.0),
        np.log(table.input_bytes + 1.0),
        np.log(table.output_bytes + 1.0),
        np.log(table.weight_bytes + 1.0),
        np.log((table.macs + 1.0) / table.total_bytes),
        np.log(table.total_bytes),
        np.log(table.reduction),
        np.log(table.positions * co),
        zero,
        ((table.area == 9) & (table.stride_h == 1)).astype(np.float64),
        table.inputs,
        table.fused_ops,
        table.extra_bytes / table.total_bytes,
        twos_in,
        twos_out,
        np.minimum(twos_in, twos_out),
        (ci <= 4).astype(np.float64),
        zero,
    ]
    channels = {}
    for tile in (4.0, 8.0, 16.0, 32.0, 64.0):
        wide, deep = channels[tile] = quantise(co, tile), quantise(ci, tile)
        out += [wide / co, deep / ci]
        out += [np.log(np.ceil(co / tile)), np.log(np.ceil(ci / tile))]
    for tile in (4.0, 8.0, 16.0):
        out.append(quantise(table.reduction, tile) / table.reduction)
    for tile in (2.0, 4.0, 8.0):
        out.append(quantise(rows, tile) * quantise(table.out_w, tile) / (rows * table.out_w))
    for tile in (8.0, 16.0, 32.0):
        wide, deep = channels[tile]
        out.append(quantise(table.positions, tile) / table.positions)
        out.append(np.log(wide * deep * table.positions * table.area))
    return np.stack(out, axis=1)


def residual_features(
    table: Table, log_base: Array, winograd: Array, tiles: tuple[float, float, float]
) -> Array:
    """Coordinates for a Gaussian process on the roofline's log residual, shape (n, 40 or so).

    Some columns are scaled by hand, since a step in them matters more than their spread suggests:
    ratios to tiles by 4, window and stride by 2.

    Args:
        table: the workloads.
        log_base: log of the roofline's latency, shape (n,).
        winograd: log of Winograd's work over direct work, shape (n,).
        tiles: the roofline's tiles of output channels, input channels and rows.
    """
    known = table.once(_residual)
    own = []
    for value, tile in zip((table.out_channels, table.group_in, table.out_h), tiles, strict=True):
        if tile not in (1.0, 8.0, 16.0, 32.0):
            own.append(4.0 * np.log(quantise(value, tile) / value))
    behind = known.shape[1] - _RESIDUAL_LAST
    out = np.empty((len(table), known.shape[1] + len(own)))
    out[:, :behind], out[:, behind + len(own) :] = known[:, :behind], known[:, behind:]
    for place, column in enumerate(own, behind):
        out[:, place] = column
    out[:, _RESIDUAL_BASE], out[:, _RESIDUAL_WINOGRAD] = 0.5 * log_base, winograd
    return out


_RESIDUAL_BASE, _RESIDUAL_WINOGRAD = 7, 9
"""Columns of `residual_features` that do not follow from a table alone."""
_RESIDUAL_LAST = 7
"""Number of columns behind those of the roofline's own tiles."""


def _residual(table: Table) -> Array:
    """The columns of `residual_features` that follow from a table alone; the others are 0."""
    ci, co = table.group_in, table.out_channels
    grid = np.sqrt(table.out_h * table.out_w)
    moved = np.log(table.input_bytes + table.output_bytes + 1.0)
    zero = np.zeros(len(table))
    out = [
        0.5 * np.log(table.in_h * table.in_w),
        np.log(ci),
        np.log(co),
        np.log(table.area),
        (table.area == 9).astype(np.float64),
        (table.area == 1).astype(np.float64),
        np.log(table.stride_h * table.stride_w),
        zero,
        np.log((table.macs + 1.0) / table.total_bytes),
        zero,
        np.log(table.weight_bytes + table.element_bytes),
        moved,
        np.log(table.positions),
        np.log(table.reduction),
        (ci <= 4).astype(np.float64),
        table.once(_twos_in),
        table.once(_twos_out),
    ]
    for tile in (4.0, 8.0, 16.0):
        out += [(np.mod(ci, tile) == 0).astype(np.float64)]
        out += [(np.mod(co, tile) == 0).astype(np.float64)]
    for tile in (8.0, 16.0, 32.0):
        out += [4.0 * np.log(quantise(co, tile) / co), 4.0 * np.log(quantise(ci, tile) / ci)]
    for tile in (2.0, 4.0, 6.0):
        out.append(4.0 * np.log(quantise(grid, tile) / grid))
    out += [
        np.log(table.groups),
        np.log(table.batch),
        np.log(table.kernel_h / table.kernel_w),
        np.log(table.in_h / table.in_w),
        np.log(table.dilation_h * table.dilation_w),
        2.0 * table.extra_bytes / table.total_bytes,
        0.5 * (table.inputs - 1.0),
    ]
    return np.stack(out, axis=1)


def _twos_in(table: Table) -> Array:
    return two_adic(table.group_in)


def _twos_out(table: Table) -> Array:
    return two_adic(table.out_channels)


def scheme_features(table: Table, small_windows: Array) -> Array:
    """Features that decide between the schemes that compute a convolution, shape (n, 8).

    Args:
        table: the workloads.
        small_windows: work of Winograd's schemes over direct work, shape (n, 3)
            (`winograd.winograd_3x3`).
    """
    best = small_windows.min(axis=1)
    possible = (best < 1.0).astype(np.float64)
    grid = np.sqrt(table.out_h * table.out_w)
    return np.stack(
        [
            np.log(best),
            *np.log(small_windows).T,
            possible,
            possible * 4.0 * np.log(quantise(grid, 4.0) / grid),
            possible * 4.0 * np.log(quantise(grid, 6.0) / grid),
            (1.0 - possible) * 4.0 * np.log(quantise(table.positions, 8.0) / table.positions),
        ],
        axis=1,
    )


def window_features(table: Table) -> Array:
    """One-hot columns for the usual larger windows, shape (n, 4).

    What a library or a compiler does for one size says little about the next size: hardware that
    walks windows in parts of 8 by 8 reads a map once for a 7 by 7 window and four times for 9 by 9.
    """
    return np.stack([(table.area == side**2).astype(np.float64) for side in _LARGER_SIDES], axis=1)


def move_features(table: Table) -> Array:
    """Features of the pieces that a move copies, shape (n, 2): 0 and a constant for other kernels.

    A piece costs a little by itself, which matters as long as it has few elements.
    """
    pieces = table.contiguous
    return np.stack([np.log(pieces), np.log1p(_SHORT_PIECE / pieces)], axis=1)


_SHORT_PIECE = 16.0
"""Elements of a piece that takes about as long to begin as to copy."""

_LARGER_SIDES = (5, 7, 9, 11)
"""Sides of the usual larger windows."""
