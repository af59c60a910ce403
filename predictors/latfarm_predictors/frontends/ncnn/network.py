"""Read an ncnn network (`.param`) as a Graph.

A network whose layers a Graph cannot express is refused, not guessed: detection heads, whose
results depend on the data, attention, and inputs without sizes. A network with int8 weights is read
as the float network that was quantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from latfarm_predictors.errors import (
    DynamicShapeError,
    GraphError,
    ModelFileError,
    UnsupportedOpError,
)
from latfarm_predictors.frontends.ncnn.layers import HANDLERS
from latfarm_predictors.frontends.ncnn.param import NcnnLayer, read_layers
from latfarm_predictors.frontends.ncnn.windows import is_int8
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class NcnnNetwork:
    """A network that was read.

    Attributes:
        graph: the network with float32 tensors and batch size 1.
        int8: whether the file has int8 weights.
    """

    graph: Graph
    int8: bool


def read_ncnn(path: Path) -> NcnnNetwork:
    """Read a file.

    Raises:
        ModelFileError: the file is no ncnn network, or contradicts itself.
        UnsupportedOpError: it has a layer that a Graph cannot express.
        DynamicShapeError: the file does not tell the sizes of an input.
    """
    layers = read_layers(path)
    builder = GraphBuilder(path.stem)
    made: dict[str, str] = {}
    used: set[str] = set()
    for layer in layers:
        where = f"{path}: line {layer.line}: layer {layer.name!r} ({layer.kind})"
        try:
            _add(builder, layer, made, where)
        except GraphError as error:
            raise ModelFileError(f"{where}: {error}") from error
        used.update(layer.inputs)
    # What a Noop joins are results of the network, and so is what nobody reads.
    outputs = [made[name] for layer in layers for name in layer.outputs if name not in used]
    try:
        graph = builder.build(list(dict.fromkeys(outputs)))
    except GraphError as error:
        raise ModelFileError(f"{path}: {error}") from error
    return NcnnNetwork(graph, any(is_int8(layer) for layer in layers))


def _add(builder: GraphBuilder, layer: NcnnLayer, made: dict[str, str], where: str) -> None:
    """Add a layer to the graph, and note the tensors of its blobs."""
    twice = [name for name in layer.outputs if name in made]
    if twice:
        raise ModelFileError(f"{where}: {twice[0]!r} is made twice")
    if layer.kind == "Input":
        sizes = tuple(layer.whole(key) for key in (2, 1, 0))
        if min(sizes) < 1 or len(layer.outputs) != 1:
            raise DynamicShapeError(f"{where}: the file does not tell the sizes of this input")
        made[layer.outputs[0]] = builder.input((1, *sizes))
        return
    handler = HANDLERS.get(layer.kind)
    if handler is None:
        raise UnsupportedOpError(f"{where}: a Graph cannot express this layer")
    unknown = [name for name in layer.inputs if name not in made]
    if unknown or (not layer.inputs and layer.kind != "MemoryData"):
        told = f"{unknown[0]!r} is used before it is made" if unknown else "it has no input"
        raise ModelFileError(f"{where}: {told}")
    results = handler(builder, layer, [made[name] for name in layer.inputs])
    if layer.kind == "Noop":
        results = results[: len(layer.outputs)]
    if len(results) != len(layer.outputs):
        raise ModelFileError(f"{where}: {len(layer.outputs)} results are told, {len(results)} made")
    made.update(zip(layer.outputs, results, strict=True))
