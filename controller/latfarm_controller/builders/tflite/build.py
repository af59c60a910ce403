"""Builds TFLite models, float32 or full-integer int8, directly in the flatbuffer schema.

Images are stored channels-last (NHWC) from input to output. Tensors of other ranks keep the axis
order that they have in the graph. Like other converters, this one merges clamps (Relu, and Clip to
0..6 or -1..1) into the operator before them. A batch norm is merged into the convolution before
it; if there is none, it becomes a MUL and an ADD.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.graph.graph import Graph, Node
from numpy.typing import NDArray

from latfarm_controller.builders.tflite import functions, matrix, moves, nn, reduce, resize
from latfarm_controller.builders.tflite import ops as tflite_ops
from latfarm_controller.builders.tflite.file import TfliteModel, serialise
from latfarm_controller.builders.tflite.functions import is_divisor
from latfarm_controller.builders.tflite.fuse import fuse_activations
from latfarm_controller.builders.tflite.layout import Layout, TfliteTranslation
from latfarm_controller.builders.tflite.recognise import emit, wholes
from latfarm_controller.errors import BuildError

# For each op, the function that translates a node of it.
_HANDLERS = {
    **tflite_ops.HANDLERS,
    **functions.HANDLERS,
    **reduce.HANDLERS,
    **moves.HANDLERS,
    **resize.HANDLERS,
    **matrix.HANDLERS,
    **nn.HANDLERS,
}
# Element types that the activations of a graph may have.
_TYPES = frozenset({"float32", "int32", "int64", "bool"})
# Largest number of operators for which the activations' ranges are estimated. In larger models the
# estimates are too inaccurate, so the ranges are measured.
_FEW_OPERATORS = 12


def build_tflite(
    graph: Graph, dtype: str = "fp32", weights: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """Build the TFLite model of a graph.

    Args:
        graph: the graph to build; its real-valued activations are float32.
        dtype: "fp32" for a float32 model; "fp16" gives the same file, because a delegate rounds
            the values to float16 when it loads the file; "int8" for a full-integer model with one
            weight scale per output channel.
        weights: values of the graph's weights by name; weights that are missing here are filled
            with noise.

    Raises:
        BuildError: TFLite cannot express a node (the message names the node and its op), a given
            weight does not fit the graph, or ai-edge-litert, whose schema is used, is not
            installed.
    """
    if dtype not in ("fp32", "fp16", "int8"):
        raise BuildError(f"tflite is built as fp32, fp16 or int8, not {dtype!r}")
    t = _translated(graph, weights)
    model = t.model if dtype != "int8" else _integers(t, weights is not None)
    return serialise(fuse_activations(model))


@dataclass(frozen=True)
class FloatIsland:
    """An operator of an int8 model that computes in float32, between two conversions.

    `node` is the name of the graph's node from which the operator was made, `op` is that node's op,
    and `operator` is the TFLite operator.
    """

    node: str
    op: str
    operator: str


@dataclass(frozen=True)
class TfliteReport:
    """The result of translating a graph to TFLite.

    `operators` counts the operators of each kind. `float_islands` lists the operators of an int8
    model that still compute in float32. `layouts` holds one tuple per input and output of the
    graph: its element i is the axis of the graph's tensor that is stored as axis i.
    """

    operators: Mapping[str, int]
    float_islands: tuple[FloatIsland, ...]
    layouts: Mapping[str, Layout]


def tflite_report(graph: Graph, dtype: str = "int8") -> TfliteReport:
    """Report what `build_tflite` makes of a graph; `float_islands` is empty for float32 models.

    Raises:
        BuildError: TFLite cannot express a node; the message names the node and its op.
    """
    t = _translated(graph, None)
    model = t.model
    ops = {node.name: node.op for node in graph.nodes}
    islands: list[FloatIsland] = []
    if dtype == "int8":
        from latfarm_controller.builders.tflite.quantize import quantize

        model = quantize(model)
        islands = [
            FloatIsland(operator.node, ops[operator.node], operator.code)
            for operator in model.operators
            if operator.code not in ("QUANTIZE", "DEQUANTIZE")
            and any(
                model.tensors[index].dtype == "float32"
                for index in (*operator.inputs, *operator.outputs)
                if index >= 0
            )
        ]
    layouts = {tensor: t.layout(tensor) for tensor in (*graph.inputs, *graph.outputs)}
    codes = Counter(operator.code for operator in fuse_activations(model).operators)
    return TfliteReport(codes, tuple(islands), layouts)


def translate(graph: Graph, weights: Mapping[str, NDArray[Any]] | None = None) -> TfliteModel:
    """Return the float32 model of a graph, before activations are fused.

    Raises:
        BuildError: TFLite cannot express a node; the message names the node and its op.
    """
    return _translated(graph, weights).model


def _translated(graph: Graph, weights: Mapping[str, NDArray[Any]] | None) -> TfliteTranslation:
    for tensor in graph.types:
        if tensor not in graph.weights and graph.type_of(tensor).dtype not in _TYPES:
            kind = graph.type_of(tensor).dtype
            raise BuildError(f"{graph.name}: tensor {tensor!r} is {kind}; TFLite takes float32")
    t = TfliteTranslation(graph, weights)
    parts = wholes(t)
    for node in graph.nodes:
        done = len(t.model.operators)
        if node.name in parts:
            emit(t, node, parts[node.name])
        elif node.name not in t.done and not is_divisor(t, node):
            _handler(node)(t, node)
        for operator in t.model.operators[done:]:
            operator.node = node.name
    t.model.outputs = [t.data(tensor, t.layout(tensor)) for tensor in graph.outputs]
    return t


def _integers(t: TfliteTranslation, has_values: bool) -> TfliteModel:
    """Return the int8 model.

    The ranges of the activations are estimated for a small model whose weights are all noise (a
    kernel) and whose operators can all be estimated. Otherwise the ranges are measured.
    """
    from latfarm_controller.builders.tflite.moments import ESTIMATED
    from latfarm_controller.builders.tflite.quantize import SAME_SCALE, quantize
    from latfarm_controller.builders.tflite.ranges import measured_ranges, sample

    codes = [operator.code for operator in t.model.operators]
    if not has_values and len(codes) <= _FEW_OPERATORS and ESTIMATED.issuperset(codes):
        return quantize(t.model)
    inputs = [data.transpose(t.layout(tensor)) for tensor, data in sample(t.graph).items()]
    return quantize(t.model, measured_ranges(t.model, inputs, skipped=SAME_SCALE))


def _handler(node: Node) -> nn.Handler:
    handler = _HANDLERS.get(node.op)
    if handler is None:
        raise BuildError(f"node {node.name!r} ({node.op}): TFLite has no operator for it here")
    return handler
