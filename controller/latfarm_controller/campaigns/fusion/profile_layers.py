"""What the layers that a runtime's profiler shows say about fusion. All functions here are pure."""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.graph.graph import Node
from latfarm_predictors.measurement import Measurement, ProfiledLayer
from latfarm_predictors.slow_core import corrected_layers

from latfarm_controller.campaigns.fusion.cases import Branch
from latfarm_controller.campaigns.profiles.profiled_networks import LAYOUT_OPS

_LAYOUT_LAYERS = LAYOUT_OPS | {
    "Raster",
    "MemoryData",
    "DequantizeLinear",
    "QuantizeLinear",
    "Reformat",
    "Transpose",
    "Reshape",
    "Cast",
    "Copy",
    "Identity",
}
"""Layers that are no op of the model: changes of layout or element type by an exporter or compiler,
and constants. MNN's rasters move data: they change a layout, and concatenate on the way."""

ABSORBED = 0.5
"""Two connected ops count as run together where they take less than this share of what the slower
one takes alone. Neither a warm cache nor the noise of a profile saves as much."""


def work_layers(layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """The layers that are ops of the model, without changes of layout and copies."""
    return [layer for layer in layers if layer.op not in _LAYOUT_LAYERS]


def profile_says_fused(parts: Sequence[Measurement], connected: Measurement) -> bool | None:
    """Whether the connected model has fewer layers than its parts have together.

    Layers are counted, not searched by name, so that a runtime may run one op as two layers. None:
    one of the models shows no layer, so that the profile says nothing.

    Args:
        parts: profiles of the ops alone.
        connected: profile of the connected model.
    """
    counts = [len(work_layers(m.layers)) for m in (*parts, connected)]
    if any(count == 0 for count in counts):
        return None
    return counts[-1] < sum(counts[:-1])


def absorbed(parts: Sequence[Measurement], connected: Measurement) -> bool:
    """Whether one of two connected ops no longer runs as it does alone, by the layers' times.

    It is so where both together take less than `ABSORBED` of what the slower one takes alone. For
    example, XNNPACK clamps a quantised sum almost for nothing, while a Relu alone is a kernel of
    another library and a hundred times as slow. Whatever layers are shown, only the time of both
    together is then known.

    Ask this only where a file may write the second op into the first. With other pairs, what is
    saved may be the moving of tensors, which halves the times of two convolutions in Vela's
    profiles.

    Args:
        parts: profiles of both ops alone.
        connected: profile of the connected model.
    """
    alone = [sum(layer.latency_ms for layer in corrected_layers(m)) for m in parts]
    both = sum(layer.latency_ms for layer in corrected_layers(connected))
    return 0.0 < both < ABSORBED * max(alone)


def together(layers: Sequence[ProfiledLayer], first: Node, second: Node) -> bool | None:
    """Whether one layer covers both nodes, for runtimes that name the nodes of a layer ("a+b").

    None: no layer names one of the nodes.
    """
    found = [
        {i for i, layer in enumerate(layers) if _covers(layer, node)} for node in (first, second)
    ]
    return bool(found[0] & found[1]) if all(found) else None


def merged_branch(
    layers: Sequence[ProfiledLayer], first: Node, last: Node, join: Node
) -> Branch | None:
    """The branch that a join was fused with: 1 the first, 2 the last; None: unknown.

    A layer that covers both the join and a branch says it. Failing that, the order of the layers
    does: the fused branch runs last, because it needs the result of the other one.
    """
    work = work_layers(layers)
    if together(work, first, join):
        return 1
    if together(work, last, join):
        return 2
    order: list[Branch] = []
    for layer in work:
        if _covers(layer, first):
            order.append(1)
        if _covers(layer, last):
            order.append(2)
    return order[-1] if {1, 2} == set(order) else None


def _covers(layer: ProfiledLayer, node: Node) -> bool:
    names = (node.name, *(name for name in node.outputs if name))
    return any(_names_match(part, name) for part in layer.name.split("+") for name in names)


def _names_match(layer: str, name: str) -> bool:
    # Runtimes append words of their own to a name, as in conv_1_nchwc; but conv_10 is another node.
    if not layer.startswith(name):
        return False
    return layer[len(name) : len(name) + 1] in ("", "_", "/", ":", ";", " ")
