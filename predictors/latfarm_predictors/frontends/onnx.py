"""Read an ONNX file as a Graph, from opset 7 to the newest opset that the package `onnx` knows.

Ops on constants, computations of shapes, branches with a known condition, Identity, Dropout and
views that change nothing are computed while reading and leave no node. Weights made by
ConstantOfShape are never allocated. BatchNormalization stays: the runtime decides whether it costs
anything. Int8 files keep their QuantizeLinear and DequantizeLinear. Every fault of a file becomes a
ModelFileError with one line that names the file, the node and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from latfarm_predictors.errors import GraphError, ModelFileError
from latfarm_predictors.frontends.onnx_constants import Array
from latfarm_predictors.frontends.onnx_file import SIZE_LIMIT_BYTES, Source, open_model
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.frontends.onnx_reader import Reader
from latfarm_predictors.frontends.onnx_slim import optimised
from latfarm_predictors.graph.graph import Graph

__all__ = ["SIZE_LIMIT_BYTES", "OwnWeights", "read_onnx", "read_onnx_weights"]


def read_onnx(
    source: Source,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimise: bool = False,
) -> Graph:
    """Read a model.

    Args:
        source: path of an .onnx file, or the model's bytes, an open file, or a ModelProto. Data in
            other files (`external_data`) are found beside a path alone; those that no op needs may
            be missing.
        batch: the first dimension of every input; it replaces the one in the file.
        shapes: full shapes of inputs by name; they replace those in the file, and `batch`.
        optimise: simplify the model with onnxslim first: it merges equal parts, and transposes and
            views in a row (docs/adr/0005). It takes seconds in a process of its own; when it fails,
            the model is read without it and a warning is logged.

    Raises:
        ModelFileError: the file is missing, is not ONNX, is damaged or contradicts itself.
        UnsupportedOpError: the model uses an op, or a form of one, that a Graph cannot express.
        DynamicShapeError: a dimension of an input is open, and neither `batch` nor `shapes` sets
            it.
        MissingLibraryError: the model shall be optimised, and onnxslim is not installed.
    """
    opened = open_model(source)
    graph = Reader(opened, batch, shapes or {}).read()
    if optimise:
        return optimised(opened, graph)
    return graph


def read_onnx_weights(
    source: Source,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Graph, OwnWeights]:
    """Read a model, and the values of its weights.

    Args and errors are those of `read_onnx`.

    Returns:
        The Graph, and the values of its weights by name, for all weights that have no values in the
        Graph. They fit the Graph: an initializer that was transposed while reading is transposed.
    """
    opened = open_model(source)
    reader = Reader(opened, batch, shapes or {})
    graph = reader.read()
    return graph, OwnWeights(opened.path, graph, reader.emitter)


class OwnWeights(Mapping[str, Array]):
    """The values of a model's weights by their names in the Graph.

    They are read from the file at every look-up and not kept, so the file must not change. Looking
    one up raises ModelFileError when the data in the file are damaged.

    Args:
        file: the model.
        graph: what was read from it.
        emitter: that made the graph.
    """

    def __init__(self, file: Path, graph: Graph, emitter: Emitter) -> None:
        self._file = file
        self._emitter = emitter
        self._types = {name: w.type for name, w in graph.weights.items() if w.values is None}

    def __getitem__(self, name: str) -> Array:
        kind = self._types[name]
        try:
            array = self._emitter.full(name)()
        except (GraphError, MemoryError) as error:
            raise ModelFileError(
                f"{self._file}: weight {name!r}: {error}; export the model again"
            ) from error
        return array.astype(kind.dtype, copy=False).reshape(kind.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)
