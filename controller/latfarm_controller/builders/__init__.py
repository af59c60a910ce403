"""Builds a model file from a graph, in each of the model formats that boards ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import BuildError

FORMATS: Mapping[str, tuple[str, ...]] = {
    "onnx": ("fp32", "fp16", "int8"),
    "tflite": ("fp32", "fp16", "int8"),
    "ncnn": ("fp32", "fp16"),
    "mnn": ("fp32", "fp16"),
    "graph-json": ("fp32", "fp16", "int8"),
}
"""The data types in which each model format can be built."""

# The data types of formats whose names end with a target, such as "tflite-vela:ethos-u65-256".
# The key is the part of the name before the colon.
_TARGETED: Mapping[str, tuple[str, ...]] = {"tflite-vela": ("int8",)}

_Builder = Callable[[Graph, str, Mapping[str, NDArray[Any]] | None], bytes]

# For each format, the module and the function that build it. A module is imported only when its
# format is asked for, because some modules load a runtime.
_BUILDERS: Mapping[str, tuple[str, str]] = {
    "onnx": ("onnx.build", "build_onnx"),
    "tflite": ("tflite.build", "build_tflite"),
    "ncnn": ("ncnn.build", "build_ncnn"),
    "mnn": ("mnn.build", "build_mnn"),
    "graph-json": ("graph_json", "build_graph_json"),
}


def dtypes_of(model_format: str) -> tuple[str, ...] | None:
    """Return the data types in which a format can be built; None if the format is unknown."""
    kind, _, target = model_format.partition(":")
    return _TARGETED.get(kind) if target else FORMATS.get(model_format)


def known_formats() -> str:
    """Return the names of all formats in one line, for messages and help texts."""
    return ", ".join((*FORMATS, *(f"{kind}:TARGET" for kind in _TARGETED)))


def build(
    graph: Graph, model_format: str, dtype: str, weights: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """Build the bytes of a model file; the same graph and weights give the same bytes.

    Args:
        graph: the network to build; its activations are float32, whatever `dtype` is.
        model_format: a key of `FORMATS`, or "tflite-vela:" followed by an accelerator that Vela
            knows; "graph-json" is for simulated boards.
        dtype: a data type in which the format can be built: "fp32", "fp16" or "int8".
        weights: values of the graph's weights by name, with the shape and the element type that the
            graph states; weights that are not given become noise. A graph-json file has no weights.

    Raises:
        BuildError: the format is unknown, it cannot be built in this data type, it cannot express
            the graph (the message names the node and its op), or a given weight does not fit (the
            message names it).
    """
    known = dtypes_of(model_format)
    if known is None:
        raise BuildError(f"unknown model format {model_format!r}; known: {known_formats()}")
    if dtype not in known:
        raise BuildError(f"{model_format} is built as {' or '.join(known)}, not {dtype!r}")
    kind, _, target = model_format.partition(":")
    if kind in _TARGETED:
        from latfarm_controller.builders.vela import build_vela

        return build_vela(graph, target, dtype, weights)
    module, function = _BUILDERS[model_format]
    builder = cast(_Builder, getattr(import_module(f"{__name__}.{module}"), function))
    return builder(graph, dtype, weights)


def build_files(
    graph: Graph,
    model_format: str,
    dtype: str,
    weights: Mapping[str, NDArray[Any]] | None = None,
    *,
    most_bytes: int | None = None,
) -> ModelFiles:
    """Build all files of a model: as `build`, but an ONNX model may be larger than 2 GB.

    Args:
        graph: as for `build`.
        model_format: as for `build`.
        dtype: as for `build`.
        weights: as for `build`.
        most_bytes: more weights than this are written into files of their own, beside the model;
            None: 2 GB, the limit of one ONNX file.

    Raises:
        BuildError: as `build`.
    """
    if model_format != "onnx" or dtype not in FORMATS["onnx"]:
        return ModelFiles(build(graph, model_format, dtype, weights))
    onnx = import_module(f"{__name__}.onnx.build")
    limit = {} if most_bytes is None else {"most_bytes": most_bytes}
    return cast(ModelFiles, onnx.build_onnx_files(graph, dtype, weights, **limit))
