"""Translates matrix products and embeddings to TFLite operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.tflite.layout import TfliteTranslation, plain, refuse
from latfarm_controller.builders.tflite.nn import Handler, number


def gemm(t: TfliteTranslation, node: Node) -> None:
    """Translate Gemm to FULLY_CONNECTED if the second matrix is constant, else to BATCH_MATMUL."""
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    added = node.inputs[2] if len(node.inputs) > 2 else ""
    left = t.data(node.inputs[0], (1, 0) if number(node, "transA", 0) else (0, 1))
    rows, columns = t.shape(node.outputs[0])
    if not t.is_constant(node.inputs[1]):
        right = t.data(node.inputs[1], (1, 0) if number(node, "transB", 0) else (0, 1))
        current = t.apply("BATCH_MATMUL", [left, right], shape=(rows, columns))
        if alpha != 1.0:
            current = t.apply("MUL", [current, t.number(alpha)])
        if not added:
            t.rename(current, node.outputs[0], (0, 1))
            return
    else:
        weight = t.array(node.inputs[1]).astype(np.float32, copy=False)
        weight = weight if number(node, "transB", 0) else weight.T
        bias = np.zeros(columns, np.float32)
        if added and t.is_constant(added) and len(_row_bias(t, added)) in (1, columns):
            bias = bias + np.float32(beta) * _row_bias(t, added)
            added = ""
        scaled = weight if alpha == 1.0 else weight * np.float32(alpha)
        operands = [left, t.constant(scaled), t.constant(bias)]
        if not added:
            t.apply("FULLY_CONNECTED", operands, t.put(node.outputs[0], (0, 1)))
            return
        current = t.apply("FULLY_CONNECTED", operands, shape=(rows, columns))
    term = t.aligned(added, 2, (0, 1))
    if beta != 1.0:
        term = t.apply("MUL", [term, t.number(beta)])
    t.apply("ADD", [current, term], t.put(node.outputs[0], (0, 1)))


def _row_bias(t: TfliteTranslation, tensor: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return a bias that is the same for all rows as a flat array; empty if the rows differ."""
    shape = t.shape(tensor)
    same = len(shape) < 2 or shape[0] == 1
    return t.array(tensor).astype(np.float32).reshape(-1) if same else np.empty(0, np.float32)


def matmul(t: TfliteTranslation, node: Node) -> None:
    """Translate MatMul, a matrix product over the last two axes.

    It becomes a FULLY_CONNECTED if the right operand is a constant of rank 1 or 2, else a
    BATCH_MATMUL.
    """
    left, right = node.inputs
    shapes, result = (t.shape(left), t.shape(right)), t.shape(node.outputs[0])
    rank = max(len(result), 2)
    source = t.data(left, plain(len(shapes[0])))
    if len(shapes[0]) == 1:
        source = t.reshape(source, t.scratch((1, shapes[0][0])))
    matrix = (*shapes[0][:-1], shapes[1][-1]) if len(shapes[1]) > 1 else (*shapes[0][:-1], 1)
    if len(shapes[0]) == 1:
        matrix = (1, *matrix)
    if t.is_constant(right) and len(shapes[1]) <= 2:
        values = t.array(right).astype(np.float32, copy=False)
        weight = t.constant(values.reshape(shapes[1][0], -1).T)
        operands = [source, weight, t.constant(np.zeros(matrix[-1], np.float32))]
        options: dict[str, Any] = {"keepNumDims": len(matrix) > 2}
        if matrix == result:
            made = t.put(node.outputs[0], plain(len(result)))
            t.apply("FULLY_CONNECTED", operands, made, **options)
            return
        current = t.apply("FULLY_CONNECTED", operands, shape=matrix, **options)
        t.reshape(current, t.put(node.outputs[0], plain(len(result))))
        return
    other = t.data(right, plain(len(shapes[1])))
    if len(shapes[1]) == 1:
        other = t.reshape(other, t.scratch((shapes[1][0], 1)))
    if min(len(shapes[0]), len(shapes[1])) > 1:
        made = t.put(node.outputs[0], plain(rank))
        t.apply("BATCH_MATMUL", [source, other], made)
        return
    batch = result[: -1 if len(result) else 0]
    full = (*batch, 1, result[-1]) if len(shapes[0]) == 1 and result else (*result, 1)
    current = t.apply("BATCH_MATMUL", [source, other], shape=full if result else (1, 1))
    t.reshape(current, t.put(node.outputs[0], plain(len(result))))


def gather(t: TfliteTranslation, node: Node) -> None:
    """Translate Gather, which picks slices along one axis, as an embedding does.

    Constant indices may be negative; these count from the end of the axis.
    """
    data, indices = node.inputs
    shape, axis = t.shape(data), int(number(node, "axis", 0))
    rank, spread = len(shape), len(t.shape(indices))
    if t.is_constant(indices):
        chosen = t.array(indices).astype(np.int64)
        where = t.constant(np.where(chosen < 0, chosen + shape[axis], chosen).astype(np.int32))
    else:
        where = t.data(indices, plain(spread))
    own = t.layout(data)
    if spread == 1:  # one index axis replaces the gathered axis, so the layout stays the same
        layout, made = own, own
    elif spread == 0:
        left = [a for a in range(rank) if a != axis]
        layout, made = own, tuple(left.index(a) for a in own if a != axis)
    else:
        layout, made = plain(rank), plain(rank + spread - 1)
    if t.is_constant(data) and t.graph.weights[data].type.dtype not in (
        "float32",
        "int64",
        "int32",
    ):
        raise refuse(node, f"a table of {t.graph.weights[data].type.dtype}")
    operands = [t.data(data, layout), where]
    t.apply("GATHER", operands, t.put(node.outputs[0], made), axis=layout.index(axis), batchDims=0)


HANDLERS: Mapping[str, Handler] = {"Gemm": gemm, "MatMul": matmul, "Gather": gather}
