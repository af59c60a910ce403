"""Windows of drawn networks: wide ones, and those that are too large for their map to be used.

A drawn window may be larger than its map, as nn-Meter's 9 x 9 windows on maps of 7 x 7 are. The
padding fills the rest. It is too large if its outer elements lie beside the map at every position,
for example 9 x 9 on 2 x 2: these elements never do anything, and no designer keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import POOLS
from latfarm_predictors.kernels.families import family_of

_SMALL_WINDOW = 3 * 3
"""Windows with more elements than this are wide."""


def window_of(node: Node) -> tuple[int, ...]:
    """Sizes of the window of an op; () where it has none."""
    return _numbers(node, "kernel_shape", 0, 1)


def has_wide_window(node: Node) -> bool:
    """Whether an op has a window beyond 3 x 3 that moves by one element in every direction."""
    window = window_of(node)
    strides = _numbers(node, "strides", len(window), 1)
    return math.prod(window) > _SMALL_WINDOW and all(step == 1 for step in strides)


def wide_windows(graph: Graph) -> int:
    """Number of convolutions, neither grouped nor depthwise, with a wide window of stride 1."""
    return sum(
        node.op == "Conv" and family_of(graph, node) == "conv" and has_wide_window(node)
        for node in graph.nodes
    )


def has_idle_windows(graph: Graph) -> bool:
    """Whether a convolution or pool has a window that is too large for its map to be used."""
    return any(
        _idle(
            node, graph.type_of(node.inputs[0]).shape[2:], graph.type_of(node.outputs[0]).shape[2:]
        )
        for node in graph.nodes
        if node.op == "Conv" or node.op in POOLS
    )


def _idle(node: Node, map_sizes: Sequence[int], made: Sequence[int]) -> bool:
    """Whether the first or the last elements of a window lie beside the map at every position."""
    window = window_of(node)
    strides = _numbers(node, "strides", len(window), 1)
    dilations = _numbers(node, "dilations", len(window), 1)
    pads = _numbers(node, "pads", 2 * len(window), 0)
    for axis, size in enumerate(window):
        first_at_the_end = (made[axis] - 1) * strides[axis] - pads[axis]
        last_at_the_start = (size - 1) * dilations[axis] - pads[axis]
        if first_at_the_end < 0 or last_at_the_start >= map_sizes[axis]:
            return True
    return False


def _numbers(node: Node, name: str, count: int, usual: int) -> tuple[int, ...]:
    """The numbers of an attribute; `count` times the usual one where the op does not give it."""
    given = node.attrs.get(name)
    return tuple(map(int, given)) if isinstance(given, tuple) else (usual,) * count
