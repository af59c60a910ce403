"""Which leaf of each tree a row ends in, found by masks of leaves in place of a walk.

The idea of QuickScorer (Lucchese et al., SIGIR 2015, section 3): number a tree's leaves from left
to right, one bit each. A node whose test fails bars the leaves of its left subtree; of those that
no failed node bars, the leftmost is where the walk would have ended. Which nodes on a feature fail
follows from how many of its thresholds lie below the value, so here a table holds, for each such
number, what all failed nodes leave of every tree: a row's leaves are the AND over features of one
line each, without a branch, over all trees at once. Features with few thresholds share a table,
one line for each combination.
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
"""Of the tables of one set of trees. 400 trees of 31 leaves take 7 MB, 1,000 of 63 up to 100 MB."""
MOST_LEAVES = 64
_SHARED_LINES = 256
"""Features share a table up to so many lines: more would not fit into a processor's caches."""
_BLOCK_BYTES = 2**17
"""Of the masks of the rows that are looked up at once: twice that has to stay in a near cache."""
_FEW_BYTES = 2**20
"""Lines of so many bytes in all are taken at once: a few calls in place of one for each table."""
_WIDTHS = ((8, np.uint8), (16, np.uint16), (32, np.uint32), (64, np.uint64))

Masks = npt.NDArray[Any]
"""Unsigned integers, a bit for each leaf of a tree."""


@dataclass(frozen=True)
class LeafMasks:
    """Trees as tables of masks; see `of`. Never changed, and so shared between threads.

    Attributes:
        features: that any node looks at, shape (f,); those of a table stand together.
        thresholds: of each of them, distinct and in order.
        strides: how many lines of its table one threshold more is worth, shape (f, 1).
        starts: the first feature of each table, shape (g,).
        lines: where each table begins in `tables`, shape (g, 1).
        tables: masks of what is left of each tree, shape (lines, trees).
        leaves: where each tree's leaves begin in `values`, shape (trees,).
        values: of all leaves, from left to right.
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
        """The tables of some trees; None where there can be none, and rows have to walk.

        That is with more than `MOST_LEAVES` leaves in a tree, with a leaf alone in every tree, with
        tables of more bytes than allowed, with a threshold that is no number, and where branches
        meet again, as they do in no tree that was grown.

        Args:
            trees: a tree's nodes together, each before those that follow it.
            most_bytes: of the tables.
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
        """Sum of all trees for each row, shape (n,): the bits of a walk and a sum in their order.

        Args:
            features: shape (n, f).

        Raises:
            BundleError: a tree looks at a feature that there is not.
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
            # one after the other: a sum of numpy's own would pair them
            result[start : start + step] = np.cumsum(self.values.take(ends), axis=1)[:, -1]
        return result

    def _left(self, lines: Rows) -> Masks:
        """What is left of each tree, shape (n, trees), given the lines of n rows."""
        # "clip" spares a copy of what is taken: all lines exist
        left: Masks = self.tables.take(lines[0], axis=0, mode="clip")
        more = np.empty_like(left)
        for line in lines[1:]:
            self.tables.take(line, axis=0, out=more, mode="clip")
            np.bitwise_and(left, more, out=left)
        return left

    def _lines(self, features: Array) -> Rows:
        """The line of each table that each row asks for, shape (tables, n)."""
        columns = features.T.take(self.features, axis=0)
        below = np.empty(columns.shape, dtype=np.intp)
        for at, (limits, column) in enumerate(zip(self.thresholds, columns, strict=True)):
            below[at] = limits.searchsorted(column)  # what is no number is above all
        below *= self.strides
        lines = np.add.reduceat(below, self.starts, axis=0)
        lines += self.lines
        return lines


def _branches(trees: Trees, inner: Rows) -> bool:
    """Whether every node but the roots follows exactly one other."""
    asked = np.bincount(trees.left[inner], minlength=len(trees.left))
    asked += np.bincount(trees.right[inner], minlength=len(trees.left))
    wanted = np.ones(len(trees.left), dtype=np.intp)
    wanted[trees.roots] = 0
    return bool((asked == wanted).all())


def _spans(trees: Trees, inner: Rows) -> tuple[Integers, Integers]:
    """The first leaf below each node, counted from the left, and how many there are."""
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
    """Features that nodes look at, and the distinct thresholds of each, in order."""
    order = inner[np.lexsort((trees.threshold[inner], trees.feature[inner]))]
    feature, threshold = trees.feature[order], trees.threshold[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1])
    feature, threshold = feature[new], threshold[new]
    names, starts = np.unique(feature, return_index=True)
    return names, tuple(np.split(threshold, starts[1:]))


def _shared(sizes: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Which features share tables, given the lines that each takes by itself.

    Returns:
        The features in the order of their tables, the place of each table's first among them, how
        many lines a step of each feature is worth, and how many lines each table has.
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
    """Masks without so many bits from each first one on."""
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
    """What is left of each tree by how many thresholds of a feature failed, for each feature."""
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
    """Place of the lowest bit that is set; there is one."""
    low = masks & (~masks + masks.dtype.type(1))
    # a power of two as a floating-point number: its exponent tells the place
    if masks.dtype.itemsize < 8:
        bits, places, zero = low.astype(np.float32).view(np.int32), 23, 127
    else:
        bits, places, zero = low.astype(np.float64).view(np.int64), 52, 1023
    return np.asarray((bits >> places).astype(np.intp) - zero)
