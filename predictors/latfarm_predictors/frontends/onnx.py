"""Read an ONNX file as a Graph: any user's file, opset 7 to the newest that `onnx` knows.

Folded away: constants (weights made by ConstantOfShape are never made real), shape chains,
branches whose condition is known, Identity, inference Dropout, views that change nothing.
BatchNormalization stays: whether it costs anything is the runtime's affair. Int8 files keep their
QuantizeLinear and DequantizeLinear. Whatever is wrong with a file ends in one ModelFileError of one
line that names the file, the node and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from latfarm_predictors.errors import GraphError, ModelFileError
from latfarm_predictors.frontends.onnx_constants import Array
from latfarm_predictors.frontends.onnx_file import SIZE_LIMIT_BYTES, open_model
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.frontends.onnx_reader import Reader
from latfarm_predictors.graph.graph import Graph

__all__ = ["SIZE_LIMIT_BYTES", "OwnWeights", "read_onnx", "read_onnx_weights"]


def read_onnx(
    path: str | Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimise: bool = False,
) -> Graph:
    """Read the model in `path`.

    Args:
        path: an .onnx file.
        batch: first dimension of every input, whatever the file says.
        shapes: full shapes of inputs by name, whatever the file says; stronger than `batch`.
        optimise: let onnxslim simplify the model first: it joins equal parts, and
            transposes and views that follow each other (docs/adr/0005). It takes seconds, in a
            process of its own; where it fails, the model is read as it is, and a warning logged.

    Raises:
        ModelFileError: no file, no ONNX, damaged, or its parts contradict each other.
        UnsupportedOpError: it uses an op, or a form of one, that cannot be expressed.
        DynamicShapeError: an input's dimension is open, and neither `batch` nor `shapes` binds it.
    """
    opened = open_model(Path(path))
    graph = Reader(opened, batch, shapes or {}).read()
    if optimise:
        from latfarm_predictors.frontends.onnx_slim import optimised

        return optimised(opened, graph)
    return graph


def read_onnx_weights(
    path: str | Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Graph, OwnWeights]:
    """Read the model in `path`, and the values of its weights.

    Args and errors are those of `read_onnx`.

    Returns:
        the Graph, and for the name of each weight in it that has no values of its own, those of the
        file, after the folds that made the Graph (a transposed initializer comes transposed).
    """
    file = Path(path)
    reader = Reader(open_model(file), batch, shapes or {})
    graph = reader.read()
    return graph, OwnWeights(file, graph, reader.emitter)


class OwnWeights(Mapping[str, Array]):
    """The user's own weights by the Graph's names: read from the file when asked for, not kept.

    Looking one up raises ModelFileError where the file's data are damaged. The file must stay as it
    is for as long as this lives.
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
