"""Graph -> model bytes, for every model format that a board may ask for."""

from __future__ import annotations

from latfarm_predictors.graph import Graph

from latfarm_controller.errors import BuildError

FORMATS = {"onnx": ("fp32",), "tflite": ("fp32", "int8"), "graph-json": ("fp32", "fp16", "int8")}


def build(graph: Graph, model_format: str, dtype: str) -> bytes:
    """The bytes of a model file; the same graph gives the same bytes.

    Args:
        graph: what to build; its weights become noise.
        model_format: "onnx", "tflite" or "graph-json" (for simulated boards).
        dtype: "fp32" or "int8"; graph-json carries no weights and takes any.

    Raises:
        BuildError: the format, or the element type in it, is unknown, or cannot express the graph;
            names node and op.
    """
    known = FORMATS.get(model_format)
    if known is None:
        raise BuildError(f"unknown model format {model_format!r}; known: {', '.join(FORMATS)}")
    if dtype not in known:
        raise BuildError(f"{model_format} is built as {' or '.join(known)}, not {dtype!r}")
    if model_format == "graph-json":
        return graph.dumps().encode()
    if model_format == "onnx":
        from latfarm_controller.builders.onnx import build_onnx

        return build_onnx(graph)
    from latfarm_controller.builders.tflite import build_tflite

    return build_tflite(graph, dtype)
