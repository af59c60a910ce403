"""What an NNLP network computes (NNLQP, equations 4 and 5), for numpy and for torch alike.

The same lines run under both: training uses torch's arrays, which know their gradients, and answers
use numpy's. So a program that only predicts needs no torch, and both cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import GraphBatch
from latfarm_predictors.gnn.parameters import HEAD_LAYERS, head_stem

Values = Any
"""An array of numpy or of torch; both know +, *, / and @."""


class ArrayOps(Protocol):
    """What the network needs of an array library besides arithmetic."""

    def array(self, values: Any) -> Values:
        """Numbers of single precision, from an array of numpy."""
        ...

    def rows(self, values: Any) -> Values:
        """Indices, from an array of numpy."""
        ...

    def take(self, values: Values, rows: Values) -> Values:
        """Some rows of `values`, in the order of `rows`."""
        ...

    def sum_by(self, values: Values, rows: Values, count: int) -> Values:
        """The sum of the rows of `values` that have the same number in `rows`, shape (count, c)."""
        ...

    def unit(self, values: Values) -> Values:
        """Each row divided by its Euclidean length; a row of zeros stays as it is."""
        ...

    def relu(self, values: Values) -> Values:
        """Values below zero become zero."""
        ...

    def tanh(self, values: Values) -> Values:
        """The hyperbolic tangent of each value."""
        ...

    def exp(self, values: Values) -> Values:
        """The exponential of each value."""
        ...

    def log(self, values: Values) -> Values:
        """The natural logarithm of each value."""
        ...

    def beside(self, parts: list[Values]) -> Values:
        """Columns of several arrays beside each other."""
        ...

    def dropped(self, values: Values) -> Values:
        """The values after dropout; outside of training, the values as they are."""
        ...


def forward(
    ops: ArrayOps,
    config: NNLPConfig,
    parameters: Mapping[str, Values],
    batch: GraphBatch,
    platform: str,
    scale_ms: float,
) -> Values:
    """What the head of a platform says of each network, shape (g,).

    It is latency / scale where `config.output` is linear, else the logarithm of that.

    Args:
        ops: the array library.
        config: the network.
        parameters: its parameters by name.
        batch: networks side by side; for `gcn`, with a global node.
        platform: whose head is asked.
        scale_ms: typical latency of the platform's training set.
    """
    nodes = embeddings(ops, config, parameters, batch) if config.node_features else None
    static = ops.array(batch.static)
    owners = ops.rows(batch.graph_of)
    if config.output == "correction":
        parts = [nodes] + ([ops.take(static, owners)] if config.static_features else [])
        deltas = _head(ops, parameters, ops.beside(parts), platform)
        factors = ops.exp(config.bound * ops.tanh(deltas))
        times = ops.array(batch.times_ms[:, None] / scale_ms) * factors
        fixed = ops.array(batch.fixed_ms[:, None] / scale_ms)
        return ops.log(ops.sum_by(times, owners, batch.graphs) + fixed)[:, 0]
    parts = [static] if config.static_features else []
    if nodes is not None:
        parts.append(_pooled(ops, config, nodes, batch))
    return _head(ops, parameters, ops.beside(parts), platform)[:, 0]


def embeddings(
    ops: ArrayOps, config: NNLPConfig, parameters: Mapping[str, Values], batch: GraphBatch
) -> Values:
    """What the encoder makes of each node, shape (n, hidden)."""
    values = ops.array(batch.nodes)
    if config.encoder == "none":
        return values
    sources, targets = ops.rows(batch.sources), ops.rows(batch.targets)
    count = len(batch.nodes)
    degree = np.bincount(batch.targets, minlength=count).astype(np.float64)
    for layer in range(config.layers):
        stem = f"encoder.{layer}"
        bias = parameters[f"{stem}.bias"]
        if config.encoder == "sage":
            mean = ops.sum_by(ops.take(values, sources), targets, count)
            mean = mean / ops.array(np.maximum(degree, 1.0)[:, None])
            made = values @ parameters[f"{stem}.own"] + mean @ parameters[f"{stem}.neighbours"]
            values = ops.relu(ops.unit(made + bias))
        else:
            # Kipf and Welling: D^-1/2 (A + I) D^-1/2 X W, where D counts the node itself
            root = ops.array(1.0 / np.sqrt(degree + 1.0)[:, None])
            made = (values @ parameters[f"{stem}.weight"]) * root
            made = (made + ops.sum_by(ops.take(made, sources), targets, count)) * root
            values = ops.relu(made + bias)
    return values


def _pooled(ops: ArrayOps, config: NNLPConfig, nodes: Values, batch: GraphBatch) -> Values:
    """One row for each network: the sum of its nodes, or its global node."""
    if config.encoder != "gcn":
        return ops.sum_by(nodes, ops.rows(batch.graph_of), batch.graphs)
    ends = np.cumsum(np.bincount(batch.graph_of, minlength=batch.graphs)) - 1
    return ops.take(nodes, ops.rows(ends))


def _head(ops: ArrayOps, parameters: Mapping[str, Values], values: Values, platform: str) -> Values:
    """The fully connected layers of a platform, with dropout between them, shape (n, 1)."""
    for layer in range(HEAD_LAYERS):
        stem = head_stem(platform, layer)
        values = values @ parameters[f"{stem}.weight"] + parameters[f"{stem}.bias"]
        if layer < HEAD_LAYERS - 1:
            values = ops.dropped(ops.relu(values))
    return values
