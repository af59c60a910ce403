"""Scales the features of nodes and networks by their mean and variance (NNLQP, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.encoded import STATIC, EncodedGraph, GraphBatch, stack
from latfarm_predictors.gnn.node_features import OP_COLUMNS

_LEAST_SPREAD = 1e-9
"""A column with a smaller standard deviation is constant, and is only centred."""


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of features, taken from the training set alone.

    The columns that tell the op stay as they are.

    Attributes:
        log_sizes: whether sizes become logarithms, log(1 + size), first.
        node_mean: of the columns after the ops, shape (c - 32,).
        node_spread: the same of the standard deviation.
        static_mean: of the overall values, shape (4,).
        static_spread: the same of the standard deviation.
    """

    log_sizes: bool
    node_mean: Array
    node_spread: Array
    static_mean: Array
    static_spread: Array

    @staticmethod
    def of(graphs: Sequence[EncodedGraph], *, log_sizes: bool) -> Scaling:
        """The scaling of a training set.

        Raises:
            NotEnoughDataError: there are no networks.
        """
        if not graphs:
            raise NotEnoughDataError("there are no networks to learn the scale of features from")
        sizes = np.concatenate([graph.nodes[:, OP_COLUMNS:] for graph in graphs])
        static = np.stack([graph.static for graph in graphs])
        if log_sizes:
            sizes, static = np.log1p(sizes), np.log1p(static)
        return Scaling(
            log_sizes, sizes.mean(axis=0), _spread(sizes), static.mean(axis=0), _spread(static)
        )

    @property
    def columns(self) -> int:
        """Number of features of a node."""
        return OP_COLUMNS + len(self.node_mean)

    def nodes(self, graph: EncodedGraph) -> Array:
        """Scaled features of the nodes of a network, shape (n, c).

        Raises:
            ValueError: the nodes have another number of features than those of the training set.
        """
        if graph.nodes.shape[1] != self.columns:
            raise ValueError(
                f"nodes with {graph.nodes.shape[1]} features, but the model reads {self.columns}; "
                "networks of kernels and networks of ops need models of their own"
            )
        sizes = graph.nodes[:, OP_COLUMNS:]
        if self.log_sizes:
            sizes = np.log1p(sizes)
        scaled = (sizes - self.node_mean) / self.node_spread
        return np.concatenate([graph.nodes[:, :OP_COLUMNS], scaled], axis=1)

    def static(self, graphs: Sequence[EncodedGraph]) -> Array:
        """Scaled overall values of networks, shape (g, 4)."""
        found = np.array([graph.static for graph in graphs], np.float64).reshape(
            len(graphs), len(STATIC)
        )
        if self.log_sizes:
            found = np.log1p(found)
        return np.asarray((found - self.static_mean) / self.static_spread)

    def batch(self, graphs: Sequence[EncodedGraph], *, global_node: bool = False) -> GraphBatch:
        """Scaled networks side by side."""
        nodes = [self.nodes(graph) for graph in graphs]
        return stack(nodes, self.static(graphs), graphs, global_node=global_node)


def _spread(values: Array) -> Array:
    found = values.std(axis=0)
    return np.where(found > _LEAST_SPREAD, found, 1.0)
