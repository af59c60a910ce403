"""Matrix products of libraries that compute whole packs of rows and of outputs.

Such a library keeps 4, 8 or 16 rows, and as many outputs, side by side in one register. The largest
pack that divides their number decides which of its loops runs, so that a product with 936 outputs
may take half as long again as one with 944. ncnn's InnerProduct, for example, has a loop for each
combination of packs, and reads all weights once for each pack of rows. Where caches do not hold
these weights, reading them is what takes the time.
"""

from __future__ import annotations

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.features.tile_features import CACHES_BYTES

PACKS = (16, 8, 4, 1)
"""Sizes of packs, the largest first. A library has those up to its largest one."""
LEAST_OF_A_PAIR = 2
"""Number of kernels from which a pair of packs has a cost of its own."""
LEAST_OF_MEDIAN = 0.1
"""A fit that tells less than this share of the median cost has seen nothing but kernels that are
too small to tell it."""


def packed(table: Table) -> Array:
    """Which kernels are products of several rows with weights, shape (n,)."""
    several = (table.batch > 1) & (table.weight_bytes > 0)
    return np.asarray(table.of_family("fc") & several, dtype=np.bool_)


def packs_of(table: Table, largest: int) -> tuple[Array, Array]:
    """The packs of rows and those of outputs of each kernel, two arrays of shape (n,).

    Args:
        table: n kernels.
        largest: the largest pack of the library.
    """
    return _pack(table.batch, largest), _pack(table.out_channels, largest)


def pack_features(table: Table, largest: int) -> Array:
    """Logarithms to base 2 of both packs, shape (n, 2); 0 for kernels that are not packed.

    Args:
        table: n kernels.
        largest: the largest pack of the library.
    """
    both = np.stack(packs_of(table, largest), axis=1)
    return np.where(packed(table)[:, None], np.log2(both), 0.0)


def pairs_of(largest: int) -> list[tuple[int, int]]:
    """All pairs of a pack of rows and one of outputs, in the order of `pack_columns`."""
    sizes = [size for size in PACKS if size <= largest]
    return [(rows, outputs) for rows in sizes for outputs in sizes]


def pack_columns(table: Table, largest: int, work: Array) -> Array:
    """Terms of a roofline for products in packs, shape (n, k).

    They are the bytes of weights beyond each cache of `CACHES_BYTES`, as often as they are read,
    and last the work of each of `pairs_of`.

    Args:
        table: n kernels.
        largest: the largest pack of the library.
        work: multiply-adds of each kernel, shape (n,).
    """
    rows, outputs = packs_of(table, largest)
    within = packed(table)
    passes = table.batch / rows * within
    columns = [np.maximum(table.weight_bytes - size, 0.0) * passes for size in CACHES_BYTES]
    pairs = pairs_of(largest)
    columns += [work * ((rows == one) & (outputs == other) & within) for one, other in pairs]
    return np.stack(columns, axis=1)


def costs_of_pairs(largest: int, costs: Array, counts: Array) -> Array:
    """What a multiply-add costs with each pair of packs, also with those that no kernel tells.

    The logarithm of a cost is taken for a sum of what the rows and what the outputs add. A pack
    that no kernel tells adds nothing.

    Args:
        largest: the largest pack of the library.
        costs: costs of `pairs_of` as a fit tells them, shape (k,).
        counts: number of kernels with each pair, shape (k,).

    Returns:
        The costs, shape (k,); those of pairs that kernels tell are unchanged.
    """
    measured = (counts >= LEAST_OF_A_PAIR) & (costs > 0)
    if not measured.any():
        return costs
    seen = measured & (costs >= LEAST_OF_MEDIAN * float(np.median(costs[measured])))
    logs = np.log(np.where(seen, costs, 1.0))
    middle = float(logs[seen].mean())
    sizes = [size for size in PACKS if size <= largest]
    effects = np.array(
        [
            [*(rows == size for size in sizes), *(outputs == size for size in sizes)]
            for rows, outputs in pairs_of(largest)
        ],
        dtype=np.float64,
    )
    found, *_ = np.linalg.lstsq(effects[seen], logs[seen] - middle, rcond=None)
    return np.where(seen, costs, np.exp(effects @ found + middle))


def _pack(sizes: Array, largest: int) -> Array:
    """The largest pack that divides each size, shape (n,)."""
    found = np.ones(len(sizes))
    for size in reversed([size for size in PACKS if size <= largest]):
        found = np.where(sizes % size == 0, float(size), found)
    return found
