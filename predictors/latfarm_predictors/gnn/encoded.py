"""Networks as the arrays that NNLP reads: features of nodes, edges, and overall values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.gnn.node_features import NODE_COLUMNS, node_features
from latfarm_predictors.graph.batch_norm import fold_batch_norms
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of, trained_parameters

STATIC = ("batch", "FLOPs", "parameters", "memory access")
"""What each of the four overall values is (NNLQP, section 6.1, equation 5)."""

FLOPS_PER_MAC = 2.0
"""Floating point operations of one multiply-add."""


@dataclass(frozen=True)
class EncodedGraph:
    """A network, a kernel, or the kernels of a network, as NNLP reads it.

    Attributes:
        nodes: unscaled features of the nodes, shape (n, c).
        edges: producer and reader of each edge, each edge once, shape (e, 2).
        static: batch size, FLOPs, parameters, and bytes of memory access, shape (4,).
        times_ms: where the nodes are kernels, what a predictor of kernels says that each takes,
            shape (n,); else None.
        fixed_ms: where the nodes are kernels, what a run takes besides them, such as the call.
    """

    nodes: Array
    edges: Rows
    static: Array
    times_ms: Array | None = None
    fixed_ms: float = 0.0


def encode(graph: Graph) -> EncodedGraph:
    """A network or a kernel as NNLP reads it.

    Batch norms are folded first, as the exporters that the paper used do: the same network with and
    without them is the same to NNLP.

    Raises:
        GraphError: the graph has no node.
    """
    folded, _ = fold_batch_norms(graph)
    if not folded.nodes:
        raise GraphError(f"{graph.name}: a graph without nodes has no latency to predict")
    made = folded.positions
    pairs = {
        (made[tensor], reader)
        for reader, node in enumerate(folded.nodes)
        for tensor in node.inputs
        if tensor in made
    }
    return EncodedGraph(node_features(folded), edge_rows(pairs), static_features(folded))


def edge_rows(pairs: set[tuple[int, int]]) -> Rows:
    """Edges in a fixed order, shape (e, 2)."""
    return np.array(sorted(pairs), dtype=np.intp).reshape(len(pairs), 2)


def static_features(graph: Graph) -> Array:
    """Batch size, FLOPs, number of parameters and bytes of memory access, shape (4,).

    Memory access is the size of all weights, inputs and results, each counted once.
    """
    shapes = [graph.type_of(name).shape for name in graph.inputs]
    batch = next((shape[0] for shape in shapes if shape), 1)
    flops = FLOPS_PER_MAC * macs_of(graph)
    return np.array([batch, flops, trained_parameters(graph), graph.traffic_bytes], np.float64)


@dataclass(frozen=True)
class GraphBatch:
    """Several networks side by side, as one graph with several components.

    Attributes:
        nodes: scaled features of all nodes, shape (n, c).
        sources: the node that each message comes from, shape (m,); each edge gives two messages,
            because neighbours are the nodes before and behind (equation 4).
        targets: the node that each message goes to, shape (m,).
        graph_of: the network of each node, shape (n,).
        static: scaled overall values, shape (g, 4).
        times_ms: times of the nodes where they are kernels, shape (n,), else zeros.
        fixed_ms: what a run of each network takes besides its kernels, shape (g,), else zeros.
    """

    nodes: Array
    sources: Rows
    targets: Rows
    graph_of: Rows
    static: Array
    times_ms: Array
    fixed_ms: Array

    @property
    def graphs(self) -> int:
        """Number of networks."""
        return len(self.static)


def stack(
    nodes: Sequence[Array], static: Array, graphs: Sequence[EncodedGraph], *, global_node: bool
) -> GraphBatch:
    """Put networks side by side.

    Args:
        nodes: scaled node features of each network, each of shape (n, c).
        static: scaled overall values, shape (g, 4).
        graphs: the networks.
        global_node: give each network one more node, with zeros as features, that is connected
            with all others in both directions and comes last (BRP-NAS, section 3.1).
    """
    width = nodes[0].shape[1] if len(nodes) else NODE_COLUMNS
    rows, sources, targets, owners, times = [], [], [], [], []
    start = 0
    for number, (features, graph) in enumerate(zip(nodes, graphs, strict=True)):
        count = len(features)
        edges = graph.edges + start
        own = np.arange(start, start + count)
        given = np.zeros(count) if graph.times_ms is None else graph.times_ms
        if global_node:
            features = np.concatenate([features, np.zeros((1, width))])
            given = np.concatenate([given, [0.0]])
            edges = np.concatenate([edges, np.stack([own, np.full(count, start + count)], axis=1)])
            count += 1
        rows.append(features)
        sources.extend([edges[:, 0], edges[:, 1]])
        targets.extend([edges[:, 1], edges[:, 0]])
        owners.append(np.full(count, number))
        times.append(given)
        start += count
    return GraphBatch(
        np.concatenate(rows) if rows else np.zeros((0, width)),
        _joined(sources),
        _joined(targets),
        _joined(owners),
        static,
        np.concatenate(times) if times else np.zeros(0),
        np.array([graph.fixed_ms for graph in graphs], dtype=np.float64),
    )


def _joined(parts: Sequence[Array | Rows]) -> Rows:
    return np.concatenate(parts).astype(np.intp) if parts else np.zeros(0, dtype=np.intp)
