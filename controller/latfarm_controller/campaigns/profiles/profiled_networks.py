"""What a profiled network tells of its kernels: its layers as they ran, and whose each is.

A profiled network tells the times of all its kernels at once, in the layouts and with the caches
that networks have, and costs no measurement of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.measurement import Measurement, ProfiledLayer
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.profiles.layer_names import STEP, by_node, with_own_activations

LAYOUT_OPS = frozenset(
    {"Reorder", "ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"}
)
"""Layers that runtimes insert to change a tensor's layout or place; no model asks for them."""
LEAST_SHARE = 0.02
"""Of a call's time that is the kernel's own, whatever noise says."""
UNTOLD_SHARE = 0.35
"""A profile that leaves more of a call open, or shows so much more, tells little of kernels."""

_MOST_PROFILED = 2.0
_MOST_PAID = 0.8
_MOST_CLOCK_MS = 0.01
_BACK_TO_PLAIN = frozenset({"ReorderOutput"})


def with_steps(layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """Layers in their order, each with the steps before it that make no tensor of the network.

    An op that a format has no word for is built as several (a batch normalisation as a product and
    a sum). Only the last of them makes the op's own tensor and has its name.
    """
    found: list[ProfiledLayer] = []
    waiting_ms = 0.0
    for layer in layers:
        if all(name.startswith(STEP) for name in layer.name.split("+")):
            waiting_ms += layer.latency_ms
        else:
            found.append(replace(layer, latency_ms=layer.latency_ms + waiting_ms))
            waiting_ms = 0.0
    if found and waiting_ms:
        found[-1] = replace(found[-1], latency_ms=found[-1].latency_ms + waiting_ms)
    return found or list(layers)


def own_layers(measurement: Measurement) -> list[ProfiledLayer]:
    """A profile's layers as on an undisturbed core, as the latency is that stands beside them.

    The profiled runs follow the timed ones. What slowed those, and was taken out of their latency,
    is taken out of these alike; without this, a busy host looks like a profiler that takes time.
    """
    try:
        timed_ms = float(measurement.conditions.get("uncorrected_ms", "nan"))
    except ValueError:  # the board could not tell
        return list(measurement.layers)
    factor = (measurement.latency_ms or 0.0) / timed_ms if timed_ms > 0 else 1.0
    if not 0.0 < factor < 1.0:
        return list(measurement.layers)
    return [replace(layer, latency_ms=layer.latency_ms * factor) for layer in measurement.layers]


def _with_layout_changes(
    layers: Sequence[ProfiledLayer], nodes: Collection[str]
) -> list[ProfiledLayer]:
    """The layers of `nodes`, with the time of the others: of none, each belongs to a neighbour.

    Layers come in the order in which they ran. One that brings a result back to the plain layout
    runs behind its kernel, any other before the kernel that needs it.
    """
    found: list[ProfiledLayer] = []
    waiting_ms = 0.0
    for layer in layers:
        if any(name in nodes for name in layer.name.split("+")):
            found.append(replace(layer, latency_ms=layer.latency_ms + waiting_ms))
            waiting_ms = 0.0
        elif layer.op in _BACK_TO_PLAIN and found:
            found[-1] = replace(found[-1], latency_ms=found[-1].latency_ms + layer.latency_ms)
        else:
            waiting_ms += layer.latency_ms
    if found and waiting_ms:
        found[-1] = replace(found[-1], latency_ms=found[-1].latency_ms + waiting_ms)
    return found


def accounts_for(measurement: Measurement) -> bool:
    """Whether a profile's layers explain the latency that was measured without the profiler."""
    total_ms = sum(layer.latency_ms for layer in own_layers(measurement))
    whole_ms = measurement.latency_ms or 0.0
    return (1.0 - UNTOLD_SHARE) * whole_ms <= total_ms <= _MOST_PROFILED * whole_ms


def _without_profiler(
    layers: Sequence[ProfiledLayer], inside_ms: float
) -> tuple[Sequence[ProfiledLayer], float]:
    """Layers without what reading a clock between them takes, and a factor for what is left.

    Every layer has paid the same, but not more than a clock can cost, nor all of its time: what a
    profiled run took beyond that it took for running slower.
    """
    over_ms = sum(layer.latency_ms for layer in layers) - inside_ms
    each_ms = min(over_ms / len(layers), _MOST_CLOCK_MS)
    if each_ms > 0:
        layers = [
            replace(
                layer,
                latency_ms=max(layer.latency_ms - each_ms, layer.latency_ms * (1 - _MOST_PAID)),
            )
            for layer in layers
        ]
    return layers, inside_ms / sum(layer.latency_ms for layer in layers)


def in_context(
    graph: Graph, rules: FusionRules, measurement: Measurement, transfers_ms: float = 0.0
) -> list[KernelSample]:
    """The kernels of a profiled network, with what each took inside it.

    Layer times sum to the network's latency as measured without the profiler, less what its inputs
    and outputs took to be moved: what the profiler added is taken off each layer alike, and what it
    left out is shared by all in proportion. A kernel that the runtime executed
    together with another one is left out, as is one of which the profile shows no layer; a view
    (Reshape...) that runs along with what follows it does not join the two. What is shown to take
    no time, as an op that is left to a host whose time is not told, takes 0 ms. A change of layout
    belongs to the kernel whose result it changes, or to the one that it is made for.

    Args:
        graph: the network.
        rules: cut it into kernels.
        measurement: a good one of it, with layers named by the nodes they cover, joined with "+".
        transfers_ms: what its inputs and outputs took, by `transfer_ms_per_mb`.
    """
    named = with_own_activations(graph, own_layers(measurement))
    own = by_node(graph, named, LAYOUT_OPS)
    total_ms = sum(layer.latency_ms for layer in own)
    if total_ms <= 0 or not measurement.latency_ms:
        return []
    inside_ms = measurement.latency_ms - transfers_ms
    if transfers_ms:
        # Where calls and transfers cost much, what no layer shows is theirs: layers never grow.
        inside_ms = min(max(inside_ms, LEAST_SHARE * measurement.latency_ms), total_ms)
    layers, scale = _without_profiler(own, inside_ms)
    spread = (measurement.mad_ms or 0.0) / measurement.latency_ms
    kernels = split(graph, rules)
    owner = {name: index for index, kernel in enumerate(kernels) for name in kernel.node_names}
    views = {node.name for node in graph.nodes if node.op in FREE_OPS}
    times_ms: dict[int, float] = {}
    shared: set[int] = set()
    for layer in _with_layout_changes(with_steps(layers), owner):
        names = [name for name in layer.name.split("+") if name in owner]
        owners = {owner[name] for name in [n for n in names if n not in views] or names}
        if len(owners) > 1:
            shared |= owners
        for index in owners:
            times_ms[index] = times_ms.get(index, 0.0) + layer.latency_ms * scale
    return [
        KernelSample(
            kernels[index], time_ms, time_ms * spread, None, "profile", network=hash_of(graph)
        )
        for index, time_ms in times_ms.items()
        if index not in shared
    ]
