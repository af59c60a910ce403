"""Builds ONNX models in float32, float16, or int8 with QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.builders.noise import Weights
from latfarm_controller.builders.onnx.external import serialise_files
from latfarm_controller.builders.onnx.file import MOST_BYTES, OnnxDraft, serialise
from latfarm_controller.errors import BuildError


def build_onnx(
    graph: Graph,
    dtype: str = "fp32",
    weights: Mapping[str, NDArray[Any]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> bytes:
    """Build an ONNX model whose inputs and outputs are those of the graph in every data type.

    Args:
        graph: the network to build.
        dtype: "fp32", "fp16" (see `onnx.half`) or "int8" (see `onnx.int8`).
        weights: values of the graph's weights by name; weights that are not given become noise.
        ranges: for int8, the smallest and largest value of activations by name, as measured on the
            user's data; ranges that are not given are estimated.

    Raises:
        BuildError: IR version 8 cannot express an op or attribute (the message names the node and
            its op), the model is larger than 2 GB, or a given weight does not fit (the message
            names it).
    """
    return serialise(_draft(graph, dtype, weights, ranges))


def build_onnx_files(
    graph: Graph,
    dtype: str = "fp32",
    weights: Mapping[str, NDArray[Any]] | None = None,
    most_bytes: int = MOST_BYTES,
) -> ModelFiles:
    """Build an ONNX model as `build_onnx`; weights of more than `most_bytes` get their own files.

    Raises:
        BuildError: as `build_onnx`, but not for large weights.
    """
    return serialise_files(_draft(graph, dtype, weights, None), most_bytes)


def _draft(
    graph: Graph,
    dtype: str,
    weights: Mapping[str, NDArray[Any]] | None,
    ranges: Mapping[str, tuple[float, float]] | None,
) -> OnnxDraft:
    """Return the model of a graph, in a data type, before it is written.

    Raises:
        BuildError: as `build_onnx`.
    """
    draft = OnnxDraft(
        graph.name,
        Weights(graph, weights),
        {tensor: graph.type_of(tensor) for tensor in graph.inputs},
        {tensor: graph.type_of(tensor) for tensor in graph.outputs},
        list(graph.nodes),
        dict.fromkeys(graph.weights),
    )
    if dtype == "fp16":
        from latfarm_controller.builders.onnx.half import halved

        draft = halved(graph, draft)
    elif dtype == "int8":
        from latfarm_controller.builders.onnx.int8 import quantised

        draft = quantised(graph, draft, ranges or {})
    elif dtype != "fp32":
        raise BuildError(f"onnx is built as fp32, fp16 or int8, not {dtype!r}")
    return draft
