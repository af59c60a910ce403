"""Read a model of any format that can be read; its bytes tell which one it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.frontends.onnx_file import Source, contents_of
from latfarm_predictors.graph.graph import Graph

SUFFIXES = (".onnx", ".tflite")
"""Suffixes of the files that are taken for models in a folder."""


def read_model(
    source: Source,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimise: bool = False,
) -> Graph:
    """Read a model of ONNX or TFLite.

    The arguments and errors are those of `frontends.onnx.read_onnx` and
    `frontends.tflite.read.read_tflite`. A TFLite model cannot be optimised.
    """
    contents = contents_of(source)
    from latfarm_predictors.frontends.tflite.read import graph_of, is_tflite

    if not is_tflite(contents.data):
        return read_onnx(contents, batch=batch, shapes=shapes, optimise=optimise)
    if optimise:
        raise ModelFileError(
            f"{contents.path}: a TFLite model cannot be optimised; leave --optimise out"
        )
    return graph_of(contents.path, contents.data, batch, shapes or {})
