"""Builds ncnn models in float32: `.param` and `.bin` in one zip, without ncnn's converters.

The network has the same layers as a network that ncnn's tools converted and optimised. Operations
that the graph writes as several nodes become one native layer, and a batch norm or an activation
becomes part of the convolution before it. The name of a layer consists of the names of its nodes,
joined by "+", so that `.param` shows which nodes were fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray

from latfarm_controller.builders.ncnn import ids, moves, nn, ops, pools
from latfarm_controller.builders.ncnn import norms as ncnn_norms
from latfarm_controller.builders.ncnn.blobs import NcnnTranslation
from latfarm_controller.builders.ncnn.file import Net, serialise
from latfarm_controller.builders.ncnn.patterns import PATTERNS
from latfarm_controller.errors import BuildError

_HANDLERS = {
    **ops.HANDLERS,
    **moves.HANDLERS,
    **pools.HANDLERS,
    **ncnn_norms.HANDLERS,
    **ids.HANDLERS,
    **nn.HANDLERS,
}


def build_ncnn(
    graph: Graph, dtype: str = "fp32", weights: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """Build a zip of `model.param` and `model.bin`.

    The input blobs are called `in0`, `in1` and so on, the output blobs `out0`, `out1` and so on.

    Args:
        graph: the graph to build, with a batch of 1. The blobs are float32 and have the graph's
            shapes without the batch. An integer input is int32 if it indexes a table (Embed);
            other integer inputs are passed as float32.
        dtype: "fp32" or "fp16". Both give the same file, because ncnn rounds the weights when it
            loads the file, if its options ask for float16.
        weights: the values of weights, by name. All other weights get random values.

    Raises:
        BuildError: ncnn cannot express a node (the message names the node and its op), or a given
            weight does not fit the graph.
    """
    if dtype not in ("fp32", "fp16"):
        raise BuildError(f"ncnn is built as fp32 or fp16, not {dtype!r}")
    return serialise(translate(graph, weights))


def translate(graph: Graph, weights: Mapping[str, NDArray[Any]] | None = None) -> Net:
    """Translate a graph to an ncnn network, which `serialise` can write.

    Raises:
        BuildError: for the same reasons as in `build_ncnn`.
    """
    t = NcnnTranslation(graph, weights)
    for node in graph.nodes:
        if node.outputs[0] in t.done:
            continue
        ids.check_types(t, node)
        if not any(pattern(t, node) for pattern in PATTERNS):
            handler = _HANDLERS.get(node.op)
            if handler is None:
                raise BuildError(f"node {node.name!r} ({node.op}): ncnn has no layer for it")
            handler(t, node)
    for tensor in graph.outputs:
        wanted = t.plain(tensor) if t.is_view(tensor) or t.is_constant(tensor) else None
        t.net.outputs.append(t.blob(tensor, wanted))
    return t.net
