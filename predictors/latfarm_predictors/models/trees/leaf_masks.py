"""Finds the leaf of each tree in which a row ends by masks of leaves, without walking the tree.

The idea is that of QuickScorer (Lucchese et al., SIGIR 2015, section 3). The leaves of a tree are
numbered from left to right, one bit each. A node whose test fails excludes the leaves of its left
subtree. Of the leaves that no failed node excludes, the leftmost is the one in which the walk would
end.

Which nodes of a feature fail follows from how many of the feature's thresholds lie below the value.
So for each feature a table holds one line for each such number: of every tree, the leaves that
remain. The leaves of a row are the AND of one line of each feature, over all trees at once, without
a branch. Features with few thresholds share a table with one line for each combination.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import BundleError
from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.models.trees.tree import Integers, Trees

MOST_BYTES = 128 * 2**20
"""Largest size of the tables of one set of trees, in bytes.

400 trees of 31 leaves take 7 MB, 1,000 trees of 63 leaves up to 100 MB.
"""
MOST_LEAVES = 64
"""Largest number of leaves of a tree: the bits of the widest mask."""
_SHARED_LINES = 256
"""Largest number of lines of a shared table; larger ones do not fit into a processor's caches."""
_BLOCK_BYTES = 2**17
"""Size in bytes of the masks of the rows that are looked up at once.

Twice this size has to stay in a cache near the processor.
"""
_FEW_BYTES = 2**20
"""Lines of at most this size in bytes are looked up in one call instead of one for each table."""
_WIDTHS = ((8, np.uint8), (16, np.uint16), (32, np.uint32), (64, np.uint64))
"""The types of masks and how many leaves each has room for."""

Masks = npt.NDArray[Any]
"""Unsigned integers with one bit for each leaf of a tree."""


@dataclass(frozen=True)
class LeafMasks:
    """Trees as tables of masks. Never changed, so threads may share it.

    Attributes:
        features: the features by which nodes decide, shape (f,), those of one table together.
        thresholds: the distinct thresholds of each feature, in increasing order.
        strides: how many lines of its table one threshold of a feature is worth, shape (f, 1).
        starts: place in `features` of the first feature of each table, shape (g,).
        lines: first line of each table in `tables`, shape (g, 1).
        tables: mask of the leaves that remain of each tree, shape (lines, trees).
        leaves: place in `values` of the first leaf of each tree, shape (trees,).
        values: the values of all leaves, from left to right.
    """

    features: Integers
    thresholds: tuple[Array, ...]
    strides: Integers
    starts: Integers
    lines: Integers
    tables: Masks
    leaves: Integers
    values: Array

    @staticmethod
    def of(trees: Trees, most_bytes: int = MOST_BYTES) -> LeafMasks | None:
        """The tables of some trees; None where there can be none, so that rows have to walk.

        There are none if a tree has more than `MOST_LEAVES` leaves, if every tree is a single leaf,
        if the tables would be larger than allowed, if a threshold is no number, and if branches
        meet again, which they do in no tree that was grown.

        Args:
            trees: the trees; the nodes of each stand together, each before its children.
            most_bytes: largest size of the tables in bytes.
        """
        ends = trees.left == np.arange(len(trees.left))
        inner, leaf = np.flatnonzero(~ends), np.flatnonzero(ends)
        leaf_tree = np.searchsorted(trees.roots, leaf, side="right") - 1
        leaves = np.bincount(leaf_tree, minlength=len(trees.roots))
        if not len(inner) or leaves.max() > MOST_LEAVES or not _branches(trees, inner):
            return None
        if np.isnan(trees.threshold[inner]).any():
            return None
        kind = next(kind for bits, kind in _WIDTHS if leaves.max() <= bits)
        features, thresholds = _thresholds(trees, inner)
        order, starts, strides, counts = _shared([len(each) + 1 for each in thresholds])
        if sum(counts) * len(leaves) * np.dtype(kind).itemsize > most_bytes:
            return None
        first, under = _spans(trees, inner)
        begin = np.cumsum(leaves) - leaves
        values = np.empty(len(leaf))
        values[begin[leaf_tree] + first[leaf]] = trees.value[leaf]
        left = trees.left[inner]
        cleared = _cleared(first[left], under[left], kind)
        single = _tables(trees, inner, cleared, features, thresholds)
        tables = np.empty((sum(counts), len(leaves)), dtype=kind)
        lines = np.cumsum([0, *counts])
        for at, after, line in zip(starts, [*starts[1:], len(order)], lines[:-1], strict=True):
            built = single[order[at]]
            for other in order[at + 1 : after]:
                built = (built[:, None] & single[other]).reshape(-1, len(leaves))
            tables[line : line + len(built)] = built
        return LeafMasks(
            features[order],
            tuple([thresholds[at] for at in order]),
            np.array(strides, dtype=np.intp)[:, None],
            np.array(starts, dtype=np.intp),
            lines[:-1, None],
            tables,
            begin,
            values,
        )

    def total(self, features: Array) -> Array:
        """Sum of all trees for each row, shape (n,); the same bits as `boosted_trees.total`.

        Args:
            features: shape (n, f).

        Raises:
            BundleError: a tree decides by a feature that is not there.
        """
        if int(self.features.max()) >= features.shape[1]:
            raise BundleError("the boosted trees look at more features than kernels have")
        lines = self._lines(features)
        result = np.empty(len(features))
        line_bytes = len(self.leaves) * self.tables.itemsize
        few = lines.size * line_bytes <= _FEW_BYTES
        step = max(_BLOCK_BYTES // line_bytes, 1)
        for start in range(0, len(features), step):
            asked = lines[:, start : start + step]
            if few:
                left = np.bitwise_and.reduce(self.tables.take(asked, axis=0), axis=0)
            else:
                left = self._left(asked)
            ends = _lowest(left)
            ends += self.leaves
            # added one after the other, because numpy's sum adds them in pairs
            result[start : start + step] = np.cumsum(self.values.take(ends), axis=1)[:, -1]
        return result

    def _left(self, lines: Rows) -> Masks:
        """Masks of the leaves that remain of each tree, shape (n, trees).

        Args:
            lines: the line of each table for each of n rows, shape (tables, n).
        """
        # all lines exist; the mode "clip" saves a copy
        left: Masks = self.tables.take(lines[0], axis=0, mode="clip")
        more = np.empty_like(left)
        for line in lines[1:]:
            self.tables.take(line, axis=0, out=more, mode="clip")
            np.bitwise_and(left, more, out=left)
        return left

    def _lines(self, features: Array) -> Rows:
        """The line of each table for each row, shape (tables, n)."""
        columns = features.T.take(self.features, axis=0)
        below = np.empty(columns.shape, dtype=np.intp)
        for at, (limits, column) in enumerate(zip(self.thresholds, columns, strict=True)):
            # a value that is no number is above all thresholds
            below[at] = limits.searchsorted(column)
        below *= self.strides
        lines = np.add.reduceat(below, self.starts, axis=0)
        lines += self.lines
        return lines


def _branches(trees: Trees, inner: Rows) -> bool:
    """Whether every node but the roots is the child of exactly one other."""
    asked = np.bincount(trees.left[inner], minlength=len(trees.left))
    asked += np.bincount(trees.right[inner], minlength=len(trees.left))
    wanted = np.ones(len(trees.left), dtype=np.intp)
    wanted[trees.roots] = 0
    return bool((asked == wanted).all())


def _spans(trees: Trees, inner: Rows) -> tuple[Integers, Integers]:
    """Number of the first leaf below each node, counted from the left, and how many there are."""
    levels = [trees.roots]
    is_inner = np.zeros(len(trees.left), dtype=np.bool_)
    is_inner[inner] = True
    while len(levels[-1]):
        nodes = levels[-1][is_inner[levels[-1]]]
        levels[-1] = nodes
        levels.append(np.concatenate([trees.left[nodes], trees.right[nodes]]))
    under = np.ones(len(trees.left), dtype=np.int64)
    for nodes in reversed(levels):
        under[nodes] = under[trees.left[nodes]] + under[trees.right[nodes]]
    first = np.zeros(len(trees.left), dtype=np.int64)
    for nodes in levels:
        first[trees.left[nodes]] = first[nodes]
        first[trees.right[nodes]] = first[nodes] + under[trees.left[nodes]]
    return first, under


def _thresholds(trees: Trees, inner: Rows) -> tuple[Integers, tuple[Array, ...]]:
    """The features by which nodes decide, and the distinct thresholds of each, in order."""
    order = inner[np.lexsort((trees.threshold[inner], trees.feature[inner]))]
    feature, threshold = trees.feature[order], trees.threshold[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1])
    feature, threshold = feature[new], threshold[new]
    names, starts = np.unique(feature, return_index=True)
    return names, tuple(np.split(threshold, starts[1:]))


def _shared(sizes: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Which features share tables.

    Args:
        sizes: number of lines that each feature takes by itself.

    Returns:
        The features in the order of their tables, the place of each table's first feature among
        them, how many lines one threshold of each feature is worth, and how many lines each table
        has.
    """
    order = sorted(range(len(sizes)), key=lambda at: sizes[at])
    starts: list[int] = []
    counts: list[int] = []
    for place, at in enumerate(order):
        if counts and counts[-1] * sizes[at] <= _SHARED_LINES:
            counts[-1] *= sizes[at]
        else:
            starts.append(place)
            counts.append(sizes[at])
    strides = []
    for start, after in zip(starts, [*starts[1:], len(order)], strict=True):
        own = [sizes[at] for at in order[start:after]]
        strides += [prod(own[place + 1 :]) for place in range(len(own))]
    return order, starts, strides, counts


def _cleared(first: Integers, count: Integers, kind: type[np.unsignedinteger[Any]]) -> Masks:
    """Masks of all bits but `count` bits from `first` on."""
    one = np.uint64(1)
    bits = ((one << count.astype(np.uint64)) - one) << first.astype(np.uint64)
    return (~bits).astype(kind)


def _tables(
    trees: Trees,
    inner: Rows,
    cleared: Masks,
    features: Integers,
    thresholds: tuple[Array, ...],
) -> list[Masks]:
    """The table of each feature by itself.

    Args:
        trees: the trees.
        inner: their inner nodes.
        cleared: mask of the leaves that remain when an inner node fails, for each of them.
        features: the features by which nodes decide.
        thresholds: the distinct thresholds of each feature, in increasing order.
    """
    count = len(trees.roots)
    tree = np.searchsorted(trees.roots, inner, side="right") - 1
    asked = trees.feature[inner]
    own = np.argsort(asked, kind="stable")
    borders = asked[own].searchsorted(features)
    tables = []
    for nodes, limits in zip(np.split(own, borders[1:]), thresholds, strict=True):
        table = np.full((len(limits) + 1, count), np.iinfo(cleared.dtype).max, dtype=cleared.dtype)
        places = (limits.searchsorted(trees.threshold[inner[nodes]]) + 1) * count + tree[nodes]
        order = np.argsort(places, kind="stable")
        places = places[order]
        starts = np.flatnonzero(np.diff(places, prepend=-1))  # a tree may ask the same twice
        told = np.bitwise_and.reduceat(cleared[nodes[order]], starts)
        table.reshape(-1)[places[starts]] = told
        tables.append(np.bitwise_and.accumulate(table, axis=0))
    return tables


def _lowest(masks: Masks) -> Rows:
    """Place of the lowest bit that is set in each mask; every mask has one."""
    low = masks & (~masks + masks.dtype.type(1))
    # the exponent of a power of two as a floating-point number is the place of its bit
    if masks.dtype.itemsize < 8:
        bits, places, zero = low.astype(np.float32).view(np.int32), 23, 127
    else:
        bits, places, zero = low.astype(np.float64).view(np.int64), 52, 1023
    return np.asarray((bits >> places).astype(np.intp) - zero)
