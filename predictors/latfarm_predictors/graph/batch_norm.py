"""Fold batch norms into the linear layers before them. It is done on request and can be undone.

Nothing else in latfarm folds batch norms: fusion rules need to see them, and what a runtime folds
by itself is left to the runtime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph, Node, TensorType, Weight

EPSILON = 1e-5
"""The epsilon of every batch norm: the default of ONNX. A Graph stores no epsilon; a frontend adds
the difference to the variance when a file has another one."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class BatchNormFold:
    """One batch norm that became part of a linear layer.

    Attributes:
        batch_norm: the node that was removed.
        linear: the layer as it was before.
        folded: the layer as it is now; its result is that of the batch norm.
        type: of the tensor between the two nodes.
        weights: the constants that only these two nodes read; they were removed.
    """

    batch_norm: Node
    linear: Node
    folded: Node
    type: TensorType
    weights: Mapping[str, Weight]


@dataclass(frozen=True, slots=True)
class BatchNormFolds:
    """All folds that `fold_batch_norms` made, in order: enough to undo them and to fold values."""

    folds: tuple[BatchNormFold, ...] = ()

    def __len__(self) -> int:
        """Number of folded batch norms."""
        return len(self.folds)


def fold_batch_norms(graph: Graph) -> tuple[Graph, BatchNormFolds]:
    """Fold every batch norm that is the only reader of a Conv, ConvTranspose or Gemm.

    Returns:
        The graph with fewer nodes, in which each changed layer has a bias; and what was done.
    """
    nodes: list[Node | None] = list(graph.nodes)
    at = {tensor: index for index, node in enumerate(graph.nodes) for tensor in node.outputs}
    weights, types = dict(graph.weights), dict(graph.types)
    users: dict[str, int] = {}
    for node in graph.nodes:
        for tensor in dict.fromkeys(node.inputs):
            users[tensor] = users.get(tensor, 0) + 1
    folds: list[BatchNormFold] = []
    for index, node in enumerate(graph.nodes):
        if node.op != "BatchNormalization" or node.inputs[0] not in at:
            continue
        place = at[node.inputs[0]]
        linear = nodes[place]
        if linear is None or not _follows(graph, node, linear) or not _plain(weights, linear, node):
            continue
        if users[linear.outputs[0]] != 1:
            continue
        folded = _folded(linear, node, weights, types)
        gone: dict[str, Weight] = {}
        for tensor in dict.fromkeys((*linear.inputs[1:], *node.inputs[1:])):
            if tensor:
                users[tensor] -= (tensor in linear.inputs) + (tensor in node.inputs)
                if not users[tensor]:
                    gone[tensor] = weights.pop(tensor)
        users.update(dict.fromkeys(folded.inputs[1:], 1))
        nodes[place], nodes[index] = folded, None
        at[folded.outputs[0]] = place
        kind = types.pop(linear.outputs[0])
        folds.append(BatchNormFold(node, linear, folded, kind, gone))
    if not folds:
        return graph, BatchNormFolds()
    left = tuple(node for node in nodes if node is not None)
    made = replace(graph, nodes=left, weights=weights, types=types)
    return made, BatchNormFolds(tuple(folds))


def unfold_batch_norms(graph: Graph, folds: BatchNormFolds) -> Graph:
    """Undo `fold_batch_norms`: the graph gets the hash and the names that it had before.

    Raises:
        GraphError: a folded layer is missing or was changed since.
    """
    nodes, weights, types = list(graph.nodes), dict(graph.weights), dict(graph.types)
    for fold in reversed(folds.folds):
        if fold.folded not in nodes:
            raise GraphError(f"{graph.name}: has no node {fold.folded.name!r} as it was folded")
        at = nodes.index(fold.folded)
        nodes[at : at + 1] = [fold.linear, fold.batch_norm]
        for tensor in fold.folded.inputs[1:]:
            weights.pop(tensor, None)
        weights.update(fold.weights)
        types[fold.linear.outputs[0]] = fold.type
    return replace(graph, nodes=tuple(nodes), weights=weights, types=types)


def fold_values(weights: Mapping[str, Array], folds: BatchNormFolds) -> dict[str, Array]:
    """The values of the weights of a folded graph, from those of the graph before.

    Args:
        weights: values by name; a layer for which no value is given gets none either.
        folds: what `fold_batch_norms` returned.

    Returns:
        Values by name, with new ones for each folded layer, in the element type of its weights.

    Raises:
        GraphError: of a layer and its batch norm, some weights are given and others are not.
    """
    values = dict(weights)
    gone: set[str] = set()
    for fold in folds.folds:
        needed = [t for t in (*fold.linear.inputs[1:], *fold.batch_norm.inputs[1:]) if t]
        lacking = [tensor for tensor in needed if tensor not in values]
        if len(lacking) < len(needed):
            if lacking:
                raise GraphError(
                    f"node {fold.batch_norm.name!r} (BatchNormalization) cannot be folded without"
                    f" the values of {', '.join(lacking)}"
                )
            _, kernel, bias = fold.folded.inputs
            values[kernel], values[bias] = _values(fold, values)
        gone.update(fold.weights)
    return {name: array for name, array in values.items() if name not in gone}


def _follows(graph: Graph, node: Node, linear: Node) -> bool:
    """Whether `linear` is a linear layer whose result is no output of the network.

    And `node`, the batch norm, has no results of training.
    """
    if linear.op not in ("Conv", "ConvTranspose", "Gemm") or linear.outputs[0] in graph.outputs:
        return False
    return len(linear.outputs) == 1 and not any(
        tensor in graph.consumers or tensor in graph.outputs for tensor in node.outputs[1:]
    )


def _plain(weights: Mapping[str, Weight], linear: Node, node: Node) -> bool:
    """Whether all operands but the data are weights of one element type and of fitting sizes."""
    operands = [t for t in (*linear.inputs[1:], *node.inputs[1:]) if t]
    if any(tensor not in weights for tensor in operands):
        return False
    if len({weights[tensor].type.dtype for tensor in operands}) > 1:
        return False
    if linear.op != "Gemm":
        return True
    bias = linear.inputs[2] if len(linear.inputs) > 2 else ""
    channels = weights[node.inputs[1]].type.elements
    return not bias or (
        weights[bias].type.elements in (1, channels) and linear.attrs.get("beta", 1.0) != 0
    )


def _folded(
    linear: Node, node: Node, weights: dict[str, Weight], types: Mapping[str, TensorType]
) -> Node:
    """The layer with a new kernel and a new bias, which are added to `weights`."""
    kernel = _fresh(f"{linear.inputs[1]} folded", {*weights, *types})
    weights[kernel] = Weight(weights[linear.inputs[1]].type)
    bias = _fresh(f"{node.inputs[2]} folded", {*weights, *types})
    weights[bias] = Weight(weights[node.inputs[2]].type)
    attrs = dict(linear.attrs)
    if linear.op == "Gemm":
        attrs["beta"] = 1.0
    inputs = (linear.inputs[0], kernel, bias)
    return Node(linear.name, linear.op, inputs, node.outputs[:1], attrs)


def _fresh(stem: str, taken: Collection[str]) -> str:
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem} {count}"
    return name


def _values(fold: BatchNormFold, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """Kernel and bias of the folded layer (Jacob et al. 2018, section 3.2)."""
    linear, (_, *names) = fold.linear, fold.batch_norm.inputs
    scale, shift, mean, variance = (values[name].astype(np.float64) for name in names)
    factor = scale / np.sqrt(variance + EPSILON)
    kernel = values[linear.inputs[1]]
    bias = linear.inputs[2] if len(linear.inputs) > 2 else ""
    old = values[bias].astype(np.float64).reshape(-1) if bias else np.zeros(1)
    if linear.op == "Gemm":
        old = old * _number(linear, "beta")
        spread = factor[:, None] if linear.attrs.get("transB", 0) else factor[None, :]
    elif linear.op == "Conv":
        spread = factor.reshape(-1, *[1] * (kernel.ndim - 1))
    else:
        # [in, out / groups, ...]: the rows of a group make the channels of that group.
        groups = int(_number(linear, "group"))
        rows = factor.reshape(groups, 1, -1).repeat(kernel.shape[0] // groups, axis=1)
        spread = rows.reshape(kernel.shape[0], -1, *[1] * (kernel.ndim - 2))
    new = (old - mean) * factor + shift
    return (kernel * spread).astype(kernel.dtype), new.astype(values[names[1]].dtype)


def _number(node: Node, name: str) -> float:
    value = node.attrs.get(name, 1)
    return float(value) if isinstance(value, int | float) else 1.0
