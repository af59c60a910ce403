"""Layers of a profile that are named after a node, but not by its name alone.

MNN's geometry computing splits an op into several (an LRN into nine) and calls them
`<node>_raster_<number>`; a matrix product run as a convolution is `<node>__matmul_converted`, a
group of a convolution `<node>__group__<number>`. They are that node's. What gathers a tensor before
the node that reads it is named after the reader: where a concatenation or another move made the
tensor and no layer shows that move, or where groups did, the gathering was theirs.

A file of TFLite's writes an activation into the sum before it. XNNPACK runs that operator as two
kernels, and both are named after its only tensor, the activation's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.measurement import ProfiledLayer

MOVES = frozenset({"Concat", "Split", "Slice", "Transpose"})
"""Ops that compute nothing: whoever reads their result can gather it himself."""
FUSED_BEHIND = frozenset({"BatchNormalization", "Relu", "Clip", "LeakyRelu", "Dropout"})
"""Ops that a convolution takes in: its result is theirs."""
STEP = "scratch_"
"""Begins the names that builders give to tensors between the steps of one op."""
ACTIVATIONS = frozenset({"Relu", "Clip"})
"""Ops that a file may write into the op before them."""
_MADE_OF = re.compile(
    r"(?P<node>.+?)(?:__matmul_converted|(?P<group>__group__\d+))?(?:_raster_(?P<piece>\d+))?\Z"
)
_GATHERS = "Raster"
"""Op of MNN that copies regions of tensors into one."""


def by_node(
    graph: Graph, layers: Sequence[ProfiledLayer], layout_ops: Collection[str]
) -> list[ProfiledLayer]:
    """The layers, those that are named after a node of `graph` by its name.

    Args:
        graph: the profiled network.
        layers: of its profile, named by the nodes they cover, joined with "+".
        layout_ops: what a layer that changes a layout is called; such a one keeps its name unless
            it does a move's work.
    """
    nodes = {node.name: node for node in graph.nodes}
    shown = {name for layer in layers for name in layer.name.split("+")}
    grouped = {
        match["node"] for name in shown if (match := _MADE_OF.fullmatch(name)) and match["group"]
    }
    found = []
    for layer in layers:
        own = any(name in nodes for name in layer.name.split("+"))
        match = None if own else _MADE_OF.fullmatch(layer.name)
        node = None if match is None else nodes.get(match["node"])
        if node is not None and match is not None:
            maker = _maker(graph, node, shown, grouped)
            if layer.op in layout_ops:
                node = maker
            elif layer.op == _GATHERS and match["piece"] == "0":
                node = maker or node
        found.append(layer if node is None else replace(layer, name=node.name))
    return found


def with_own_activations(graph: Graph, layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """Layers in their order, an operator and the activation written into it as one layer of both.

    Args:
        graph: the profiled network.
        layers: of its profile. The operator's has the name of the one that follows, the clamp's,
            with `STEP` before each part.
    """
    nodes = {node.name: node for node in graph.nodes}
    found: list[ProfiledLayer] = []
    for layer in layers:
        name = layer.name.rpartition("+")[2]
        step = "+".join(STEP + part for part in layer.name.split("+"))
        if found and found[-1].name == step and name in nodes and nodes[name].op in ACTIVATIONS:
            at = graph.positions.get(nodes[name].inputs[0])
            if at is not None:
                both = found.pop()
                named = f"{graph.nodes[at].name}+{layer.name}"
                time_ms = both.latency_ms + layer.latency_ms
                found.append(replace(both, name=named, latency_ms=time_ms))
                continue
        found.append(layer)
    return found


def _maker(
    graph: Graph, reader: Node, shown: Collection[str], grouped: Collection[str]
) -> Node | None:
    """Who made what a node reads: a move that no layer shows, or a convolution run in groups."""
    for name in reader.inputs:
        at = graph.positions.get(name)
        if at is None:
            continue
        made = graph.nodes[at]
        while made.op in FUSED_BEHIND and made.name not in shown:
            before = graph.positions.get(made.inputs[0])
            if before is None:
                break
            made = graph.nodes[before]
        if made.name in grouped or (made.op in MOVES and made.name not in shown):
            return made
    return None
