"""Which node of a network a layer of its profile belongs to, where its name is not the node's.

MNN splits an op into several ("geometry computing"; an LRN becomes nine) and calls them
`<node>_raster_<number>`. It calls a matrix product that runs as a convolution
`<node>__matmul_converted`, and a group of a convolution `<node>__group__<number>`. All these layers
belong to that node. A layer that gathers a tensor is named after the node that reads the tensor.
Where the tensor was made by a move of data (a concatenation, for example) that no layer shows, or
by a convolution in groups, the gathering belongs to the node that made it. A product with a bias
that is added to it becomes one convolution, which is called after the sum.

A TFLite file writes an activation into the operator before it, whose only tensor is then that of
the activation. XNNPACK runs a sum with an activation as two kernels, and names both after that
tensor; a product with an activation is one kernel of that name.

Some runtimes call layers after tensors. A network that another tool exported names its tensors
apart from its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import PRODUCTS
from latfarm_predictors.kernels.fusion_ops import CONSTANT, rule_op
from latfarm_predictors.measurement import ProfiledLayer

MOVES = frozenset({"Concat", "Split", "Slice", "Transpose"})
"""Ops that only move data: the op that reads their result can gather it by itself."""
FUSED_BEHIND = frozenset({"BatchNormalization", "Relu", "Clip", "LeakyRelu", "Dropout"})
"""Ops that a convolution fuses with, so that the kernel's result is theirs."""
STEP = "scratch_"
"""Beginning of the names that builders give to tensors between the steps of one op."""
ACTIVATIONS = frozenset({"Relu", "Clip"})
"""Ops that a file may write into the op before them."""
BIAS = f"Add{CONSTANT}"
"""The sum of a tensor and a weight, in fusion rules."""
_MADE_OF = re.compile(
    r"(?P<node>.+?)(?:__matmul_converted|(?P<group>__group__\d+))?(?:_raster_(?P<piece>\d+))?\Z"
)
_GATHERS = "Raster"
"""The op of MNN that copies regions of tensors into one tensor."""


def by_node(
    graph: Graph, layers: Sequence[ProfiledLayer], layout_ops: Collection[str]
) -> list[ProfiledLayer]:
    """The layers, with those that belong to a node of `graph` named as the node.

    Args:
        graph: the profiled network.
        layers: the layers of its profile, named by the nodes that they cover, joined with "+".
        layout_ops: the ops of layers that change a layout; these keep their names unless they do
            the work of a move of data.
    """
    nodes = {tensor: node for node in graph.nodes for tensor in node.outputs}
    nodes |= {node.name: node for node in graph.nodes}
    layers = [_after_nodes(nodes, layer) for layer in layers]
    shown = {name for layer in layers for name in layer.name.split("+")}
    grouped = {
        nodes[match["node"]].name
        for name in shown
        if (match := _MADE_OF.fullmatch(name)) and match["group"] and match["node"] in nodes
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


def _after_nodes(nodes: Mapping[str, Node], layer: ProfiledLayer) -> ProfiledLayer:
    """A layer whose parts are called after tensors, called after the nodes that make these."""
    named = []
    for part in layer.name.split("+"):
        step = STEP if part.startswith(STEP) and part not in nodes else ""
        node = nodes.get(part.removeprefix(step))
        named.append(part if node is None else step + node.name)
    name = "+".join(named)
    return layer if name == layer.name else replace(layer, name=name)


def with_hidden_products(graph: Graph, layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """The layers in their order; an operator and what was written into it become one layer.

    Args:
        graph: the profiled network.
        layers: the layers of its profile, called after nodes. Where an operator has a layer of its
            own, it comes just before that of its activation, and has the same name with `STEP`
            before each part. A matrix product that no layer shows ran in the layer of the bias or
            the activation behind it.
    """
    nodes = {node.name: node for node in graph.nodes}
    shown = {name for layer in layers for name in layer.name.split("+")}
    found: list[ProfiledLayer] = []
    for layer in [_with_product(graph, nodes, layer, shown) for layer in layers]:
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


def _with_product(
    graph: Graph, nodes: Mapping[str, Node], layer: ProfiledLayer, shown: Collection[str]
) -> ProfiledLayer:
    """A layer with the names of the product and the bias before it that no layer shows."""
    last = nodes.get(layer.name.partition("+")[0])
    before: list[str] = []
    while last is not None and (last.op in ACTIVATIONS or rule_op(graph, last) == BIAS):
        tensor = next(iter(graph.data_inputs(last)), "")
        at = graph.positions.get(tensor)
        if at is None or graph.nodes[at].name in shown:
            break
        if len(graph.readers.get(tensor, ())) != 1 or tensor in graph.outputs:
            break
        last = graph.nodes[at]
        before.insert(0, last.name)
        if last.op in PRODUCTS:
            return replace(layer, name="+".join([*before, layer.name]))
    return layer


def _maker(
    graph: Graph, reader: Node, shown: Collection[str], grouped: Collection[str]
) -> Node | None:
    """The node that made what `reader` reads, if no layer shows it or it is run in groups.

    Args:
        graph: the profiled network.
        reader: the node that reads.
        shown: the names of all layers.
        grouped: the names of nodes that are run in groups.
    """
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
