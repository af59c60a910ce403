"""Graph -> TFLite, float32 or full-integer int8, written straight to the flatbuffer schema.

Images are channels-last (NHWC) from input to output; tensors of other ranks keep the Graph's order.
Activations stay operators of their own, since fusing them is the runtime's job. A batch norm is
folded into the conv before it, as every converter does, else it becomes MUL and ADD.
"""

from __future__ import annotations

from latfarm_predictors.graph import Graph, Node

from latfarm_controller.builders import tflite_moves, tflite_nn, tflite_ops
from latfarm_controller.builders.tflite_file import Model, serialise
from latfarm_controller.builders.tflite_layout import Translation
from latfarm_controller.errors import BuildError

_HANDLERS = {**tflite_ops.HANDLERS, **tflite_moves.HANDLERS, **tflite_nn.HANDLERS}
_TYPES = frozenset({"float32", "int32", "int64", "bool"})


def build_tflite(graph: Graph, dtype: str = "fp32") -> bytes:
    """A self-contained TFLite model of a graph, weights as noise.

    Args:
        graph: what to build; all its activations are float32.
        dtype: "fp32", or "int8" for full-integer with one weight scale per channel.

    Raises:
        BuildError: TFLite cannot express a node (names it and its op), or ai-edge-litert, whose
            schema is used, is not installed.
    """
    if dtype not in ("fp32", "int8"):
        raise BuildError(f"tflite is built as fp32 or int8, not {dtype!r}")
    model = translate(graph)
    if dtype == "int8":
        from latfarm_controller.builders.quantize import quantize

        model = quantize(model)
    return serialise(model)


def translate(graph: Graph) -> Model:
    """The float32 model of a graph.

    Raises:
        BuildError: TFLite cannot express a node; names it and its op.
    """
    for tensor in graph.types:
        if tensor not in graph.weights and graph.type_of(tensor).dtype not in _TYPES:
            kind = graph.type_of(tensor).dtype
            raise BuildError(f"{graph.name}: tensor {tensor!r} is {kind}; TFLite takes float32")
    t = Translation(graph)
    for node in graph.nodes:
        if node.name not in t.done and not tflite_ops.gelu(t, node):
            _handler(node)(t, node)
    t.model.outputs = [t.data(tensor, t.layout(tensor)) for tensor in graph.outputs]
    return t.model


def _handler(node: Node) -> tflite_nn.Handler:
    handler = _HANDLERS.get(node.op)
    if handler is None:
        raise BuildError(f"node {node.name!r} ({node.op}): TFLite has no operator for it here")
    return handler
