"""Int8 networks: recognise them, and recover the float network from which one was made.

An int8 file is read as a Graph in which QuantizeLinear and DequantizeLinear stand around each float
op (`frontends.onnx_int8`). From these pairs a runtime decides what it computes in int8.
"""

from __future__ import annotations

import numpy as np

from latfarm_predictors.graph.graph import Graph, TensorType, Weight

SCALING_OPS = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""The ops that scale a tensor to integers and back."""


def is_quantised(graph: Graph) -> bool:
    """Whether any tensor of the network is scaled to integers or back."""
    return any(node.op in SCALING_OPS for node in graph.nodes)


def dequantised(graph: Graph) -> Graph:
    """The float network from which an int8 network was made; a float network is returned as it is.

    Int8 weights, biases, inputs and outputs become float ones, and ops that moved integers move
    floats. The result has the hash of the float file if the quantiser left the layers as they were:
    that of onnxruntime removes a Relu or Clip behind a quantised layer, unless the option
    `QDQKeepRemovableActivations` is set. Scales that are computed from the data
    (DynamicQuantizeLinear) stay.

    Raises:
        GraphError: the network does nothing but scale, or its parts contradict each other.
    """
    if not is_quantised(graph):
        return graph
    # These import the package onnx, which takes a while and which float networks do not need.
    from latfarm_predictors.frontends.onnx_call import OnnxCall
    from latfarm_predictors.frontends.onnx_constants import Constant
    from latfarm_predictors.frontends.onnx_nodes import Emitter
    from latfarm_predictors.frontends.onnx_ops import convert

    reals = _real_tensors(graph)
    emitter = Emitter()

    def real(tensor: str) -> TensorType:
        kind = graph.type_of(tensor)
        return TensorType(reals[tensor], kind.shape) if tensor in reals else kind

    for name in graph.inputs:
        emitter.add_input(name, real(name))
    for name, weight in graph.weights.items():
        values = _values(graph, name, weight) if name in reals else weight.values
        kind = real(name)
        array = None if values is None else np.array(values, kind.dtype).reshape(kind.shape)
        emitter.add_constant(name, Constant(kind, array))
    for node in graph.nodes:
        if node.op in SCALING_OPS:
            emitter.bind(node.outputs[0], emitter.resolve(node.inputs[0]))
            continue
        emitter.start(node.name)
        operands = [emitter.resolve(tensor) for tensor in node.inputs]
        call = OnnxCall(node.op, operands, node.attrs, len(node.outputs), 13)
        for name, made in zip(node.outputs, convert(emitter, call), strict=False):
            emitter.bind(name, made)
    return emitter.finish(graph.name, [emitter.resolve(tensor) for tensor in graph.outputs])


def _real_tensors(graph: Graph) -> dict[str, str]:
    """The float type of each tensor that holds scaled integers, by its name."""
    reals: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "QuantizeLinear":
            reals[node.outputs[0]] = graph.type_of(node.inputs[0]).dtype
        elif node.op != "DequantizeLinear":
            # An op on integers moves them: a pool, a view, a concatenation.
            found = next((reals[t] for t in node.inputs if t in reals), None)
            if found is not None:
                reals.update((t, found) for t in node.outputs if _is_integer(graph, t))
    for node in reversed(
        graph.nodes
    ):  # integers that no node of the graph makes: inputs and weights
        if node.op == "DequantizeLinear":
            reals[node.inputs[0]] = graph.type_of(node.outputs[0]).dtype
        elif node.op != "QuantizeLinear":
            found = next((reals[t] for t in node.outputs if t in reals), None)
            if found is not None:
                same = (t for t in node.inputs if t not in reals and _is_integer(graph, t))
                reals.update((t, found) for t in same)
    return reals


def _is_integer(graph: Graph, tensor: str) -> bool:
    return bool(tensor) and graph.type_of(tensor).dtype in ("int8", "uint8", "int32")


def _values(graph: Graph, name: str, weight: Weight) -> tuple[float, ...] | None:
    """The float value of a scalar whose integer, scale and zero point are all known."""
    for node in graph.consumers.get(name, ()):
        if node.op == "Pad" and node.inputs.index(name) == 2:
            return (0.0,)  # integers are padded with their zero point
        if node.op == "DequantizeLinear" and node.inputs[0] == name:
            scale, zero = (graph.weights.get(tensor) for tensor in node.inputs[1:])
            if scale is None or zero is None:
                return None
            if weight.values is None or scale.values is None or zero.values is None:
                return None
            return (_rounded((weight.values[0] - zero.values[0]) * scale.values[0]),)
    return None


def _rounded(value: float) -> float:
    """The number with the fewest digits that float32 cannot tell from a product.

    It is taken for the number that was quantised.
    """
    for digits in range(1, 7):
        found = float(f"{value:.{digits}g}")
        if abs(found - value) <= 2e-7 * abs(value):
            return found
    return value
