"""Write a Graph as a small ONNX model for tests of readers; unknown weights are zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from latfarm_predictors.graph.graph import Graph, TensorType


def model_of(graph: Graph, opset: int = 13) -> Any:
    """The graph as a ModelProto that onnx has checked."""
    weights = [
        onnx.numpy_helper.from_array(
            np.zeros(w.type.shape, w.type.dtype)
            if w.values is None
            else np.array(w.values, w.type.dtype).reshape(w.type.shape),
            name,
        )
        for name, w in graph.weights.items()
    ]
    nodes = [
        onnx.helper.make_node(n.op, n.inputs, n.outputs, name=n.name, **dict(n.attrs))
        for n in graph.nodes
    ]
    inputs = [_value(name, graph.type_of(name)) for name in graph.inputs]
    outputs = [_value(name, graph.type_of(name)) for name in graph.outputs]
    body = onnx.helper.make_graph(nodes, graph.name, inputs, outputs, weights)
    model = onnx.helper.make_model(
        body, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def write(graph: Graph, path: Path) -> Path:
    """Write `model_of(graph)` to `path`; returns the path."""
    path.write_bytes(model_of(graph).SerializeToString())
    return path


def _value(name: str, kind: TensorType) -> Any:
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return onnx.helper.make_tensor_value_info(name, code, kind.shape)
