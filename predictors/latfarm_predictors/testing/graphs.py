"""Random graphs for property tests, and changes that must not change the hash of a graph."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, Node

SHAPE = (1, 4, 6, 6)
"""Shape of all tensors of the random graphs."""

_UNARY = ("relu", "sigmoid", "batch_norm", "conv", "depthwise", "max_pool", "hard_swish", "dropout")
_BINARY = ("add", "sub", "mul", "concat")


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 14) -> Graph:
    """A connected graph of ops that keep one shape, with forks, joins, views and shared tensors."""
    b = GraphBuilder("random")
    live = [b.input(SHAPE)]
    if draw(st.booleans()):
        live.append(b.input(SHAPE))
    for _ in range(draw(st.integers(1, max_ops))):
        name = draw(st.sampled_from(_UNARY + _BINARY))
        x = live[draw(st.integers(0, len(live) - 1))]
        y = live[draw(st.integers(0, len(live) - 1))]
        live.append(_made(b, name, x, y))
    whole = b.build([live[-1]])
    read = {t for node in whole.nodes for t in node.inputs}
    ends = tuple(t for t in live if t not in read and t not in whole.inputs)
    return replace(whole, inputs=tuple(t for t in whole.inputs if t in read), outputs=ends)


def _made(b: GraphBuilder, name: str, x: str, y: str) -> str:
    if name == "conv":
        return b.conv(x, SHAPE[1], 3)
    if name == "depthwise":
        return b.depthwise(x, 3)
    if name == "max_pool":
        return b.max_pool(x, 3, 1, "same")
    if name == "dropout":
        return b.op("Dropout", [x])
    if name == "concat":
        return b.conv(b.concat([x, y]), SHAPE[1], 1)
    if name in _BINARY:
        return b.op(name.capitalize(), [x, y])
    one = {"relu": b.relu, "sigmoid": b.sigmoid, "batch_norm": b.batch_norm}
    return one[name](x) if name in one else b.hard_swish(x)


def renamed(graph: Graph, seed: int) -> Graph:
    """The same graph with other names of all tensors and nodes."""
    names = sorted({*graph.types, *graph.weights})
    random.Random(seed).shuffle(names)
    new = {name: f"t{index}" for index, name in enumerate(names)} | {"": ""}
    return Graph(
        f"{graph.name} renamed",
        tuple(new[t] for t in graph.inputs),
        tuple(new[t] for t in graph.outputs),
        tuple(
            Node(
                f"node {index}",
                node.op,
                tuple(new[t] for t in node.inputs),
                tuple(new[t] for t in node.outputs),
                node.attrs,
            )
            for index, node in enumerate(graph.nodes)
        ),
        {new[t]: weight for t, weight in graph.weights.items()},
        {new[t]: kind for t, kind in graph.types.items()},
    )


def reordered(graph: Graph, seed: int) -> Graph:
    """The same graph with nodes, weights and outputs in another order."""
    rng = random.Random(seed)
    waiting = list(graph.nodes)
    made = {*graph.inputs, *graph.weights, ""}
    order: list[Node] = []
    while waiting:
        ready = [node for node in waiting if made.issuperset(node.inputs)]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        order.append(chosen)
        made.update(chosen.outputs)
    weights = list(graph.weights.items())
    rng.shuffle(weights)
    outputs = list(graph.outputs)
    rng.shuffle(outputs)
    return Graph(graph.name, graph.inputs, tuple(outputs), tuple(order), dict(weights), graph.types)
