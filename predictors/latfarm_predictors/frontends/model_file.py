"""Read a model of any format that can be read; its bytes tell which one it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.frontends.onnx import OwnWeights, read_onnx, read_onnx_weights
from latfarm_predictors.frontends.onnx_file import Contents, Source, contents_of
from latfarm_predictors.frontends.tflite.schema import IDENTIFIER as TFLITE_IDENTIFIER
from latfarm_predictors.graph.graph import Graph


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
    if not _is_tflite(contents):
        return read_onnx(contents, batch=batch, shapes=shapes, optimise=optimise)
    if optimise:
        raise ModelFileError(
            f"{contents.path}: a TFLite model cannot be optimised; leave --optimise out"
        )
    from latfarm_predictors.frontends.tflite.read import read_tflite

    return read_tflite(contents, batch=batch, shapes=shapes)


def read_model_weights(
    source: Source,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Graph, OwnWeights]:
    """Read a model, and the values of its weights; see `frontends.onnx.read_onnx_weights`."""
    contents = contents_of(source)
    if not _is_tflite(contents):
        return read_onnx_weights(contents, batch=batch, shapes=shapes)
    from latfarm_predictors.frontends.tflite.read import read_contents

    graph, emitter = read_contents(contents, batch, shapes or {})
    return graph, OwnWeights(contents.path, graph, emitter)


def _is_tflite(contents: Contents) -> bool:
    return bytes(contents.data[4:8]) == TFLITE_IDENTIFIER
