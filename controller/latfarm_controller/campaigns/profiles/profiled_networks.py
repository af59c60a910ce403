"""The times of a profiled network's kernels, from the layers that its profile shows.

A profiled network gives the times of all its kernels at once, in the layouts and with the caches
that networks have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.measurement import Measurement, ProfiledLayer
from latfarm_predictors.samples import KernelSample
from latfarm_predictors.slow_core import corrected_layers

from latfarm_controller.campaigns.profiles.layer_names import STEP, by_node, with_hidden_products

LAYOUT_OPS = frozenset(
    {"Reorder", "ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"}
)
"""Layers that runtimes insert to change the layout or the place of a tensor; no op of the model."""
LEAST_SHARE = 0.02
"""Least share of a call's time that counts as the kernel's own, however large the noise is."""
UNTOLD_SHARE = 0.35
"""Largest share of a call that a usable profile may leave unexplained, or show in excess."""

_MOST_BESIDE = 0.05
"""Largest share of multiply-adds of all other kernels in a layer that belongs to one kernel."""
_MOST_PROFILED = 2.0
"""Largest sum of a usable profile's layers, over the latency without the profiler."""
_MOST_PAID = 0.8
"""Largest share of a layer's time that reading the clock is assumed to take."""
_MOST_CLOCK_MS = 0.01
"""Longest time that reading the clock once is assumed to take."""
_CLOCK_STEPS = 200
"""Number of times up to `_MOST_CLOCK_MS` that are tried."""
LEAST_FOR_CLOCK = 12
"""Least number of profiled networks that tell what reading the clock takes."""
_BACK_TO_PLAIN = frozenset({"ReorderOutput"})
"""Layers that change a result back to the plain layout, after the kernel that made it."""


def layers_of_nodes(graph: Graph, layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """The layers of a network's profile, called after the nodes that they run.

    Layers that only change a layout keep the names that the runtime gives them.

    Args:
        graph: the profiled network.
        layers: as the runtime calls them.
    """
    return with_hidden_products(graph, by_node(graph, layers, LAYOUT_OPS))


def with_steps(layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """The layers in their order, each with the time of the steps before it that belong to its op.

    An op that a file format does not have is built from several ops, for example a batch
    normalisation from a product and a sum. Only the last of them has the op's name; the names of
    the others begin with `layer_names.STEP`.
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


def _with_layout_changes(
    layers: Sequence[ProfiledLayer], nodes: Collection[str]
) -> list[ProfiledLayer]:
    """The layers of `nodes`, with the times of all other layers added to a neighbour.

    Layers come in the order in which they ran. A layer that changes a result back to the plain
    layout belongs to the layer before it; any other belongs to the layer after it.
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


def accounts_for(measurement: Measurement, call_ms: float = 0.0) -> bool:
    """Whether the layers of a profile explain the latency measured without the profiler.

    Args:
        measurement: a good measurement with a profile.
        call_ms: what of its latency no layer can show: the call and its transfers.
    """
    total_ms = sum(layer.latency_ms for layer in corrected_layers(measurement))
    whole_ms = max((measurement.latency_ms or 0.0) - call_ms, 0.0)
    return (1.0 - UNTOLD_SHARE) * whole_ms <= total_ms <= _MOST_PROFILED * whole_ms


def clock_cost_ms(
    profiled: Iterable[tuple[Measurement, float]], call_ms: float = 0.0
) -> float | None:
    """What a platform's profiler takes for each layer, in ms; None: too few networks tell it.

    In a single network, noise between the timed and the profiled runs hides it: on onnxruntime,
    where reading the clock takes 2 microseconds, the excess of a profile is between -29 and 43
    microseconds for each layer of a network (5 to 95 %). Networks with many short layers show it.
    With it, the layers of a network are as long as its run but for a factor, so that
    total / inside = factor + clock * layers / inside; the least absolute errors decide.

    Args:
        profiled: good measurements of networks with their layers, and what the transfers of each
            network's inputs and outputs take, in ms.
        call_ms: what the call takes.
    """
    told = [
        (len(layers), sum(layer.latency_ms for layer in layers), inside_ms)
        for measurement, transfers_ms in profiled
        if (layers := corrected_layers(measurement)) and measurement.latency_ms
        if (inside_ms := measurement.latency_ms - call_ms - transfers_ms) > 0
    ]
    if len(told) < LEAST_FOR_CLOCK:
        return None
    count, total_ms, inside = np.array(told, dtype=np.float64).T
    tried = np.linspace(0.0, _MOST_CLOCK_MS, _CLOCK_STEPS + 1)
    factors = (total_ms - tried[:, None] * count) / inside
    errors = np.abs(factors - np.median(factors, axis=1, keepdims=True)).mean(axis=1)
    return float(tried[int(np.argmin(errors))])


def _without_profiler(
    layers: Sequence[ProfiledLayer], inside_ms: float, each_ms: float | None
) -> tuple[Sequence[ProfiledLayer], float]:
    """The layers without the time of reading the clock between them, and a factor.

    The same time is subtracted from every layer, but no more than reading a clock can cost, and
    never all of a layer's time. What remains in excess comes from a profiled run being slower; the
    factor corrects it.

    Args:
        layers: as the profile shows them.
        inside_ms: what the layers take together without the profiler.
        each_ms: what reading the clock takes; None: all excess of this network is taken for it.
    """
    if each_ms is None:
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


def places_of(
    profiled: Sequence[tuple[Graph, Measurement]],
    rules: FusionRules,
    call_ms: float = 0.0,
    transfer_ms_per_mb: float = 0.0,
) -> list[list[KernelSample]]:
    """The kernels of each profiled network of a platform, see `in_context`.

    What the profiler takes for each layer is told by all these networks together.

    Args:
        profiled: the networks with a good measurement of each, whose layers its profile shows.
        rules: the fusion rules that cut them into kernels.
        call_ms: what a call takes, the latency of an empty model.
        transfer_ms_per_mb: milliseconds that a megabyte of a network's inputs or outputs takes.
    """
    transfers_ms = [transfer_ms_per_mb * boundary_mb(graph) for graph, _ in profiled]
    measured = [measurement for _, measurement in profiled]
    each_ms = clock_cost_ms(zip(measured, transfers_ms, strict=True), call_ms)
    return [
        in_context(graph, rules, measurement, moved_ms, call_ms, each_ms)
        for (graph, measurement), moved_ms in zip(profiled, transfers_ms, strict=True)
    ]


def in_context(
    graph: Graph,
    rules: FusionRules,
    measurement: Measurement,
    transfers_ms: float = 0.0,
    call_ms: float = 0.0,
    clock_ms: float | None = None,
) -> list[KernelSample]:
    """The kernels of a profiled network, with the time that each takes inside it.

    The times of layers are made to sum to the network's latency as measured without the profiler,
    less what the call takes and the transfers of its inputs and outputs: predictions add both to
    the sum of kernels. What the profiler added is subtracted from each layer alike; what it left
    out is shared among the layers in proportion.

    The time of a layer that covers several kernels belongs to the one that does nearly all of the
    work; the others take no time. Kernels that share a layer and its work are left out. A view
    (Reshape and the like) that runs in the layer of the op after it does not join the two. A kernel
    of which the profile shows no layer, or a layer without time, gets 0 ms, for example a
    concatenation whose parts are written in place, or an op that is left to the host. A change of
    layout counts for the kernel whose result it changes, or for the one that it is made for.

    Args:
        graph: the network.
        rules: the fusion rules that cut it into kernels.
        measurement: a good measurement of it, whose layers are named by the nodes that they cover,
            joined with "+".
        transfers_ms: what the transfers of its inputs and outputs take, see `transfer_ms_per_mb`.
        call_ms: what the call takes, the latency of an empty model.
        clock_ms: what the profiler takes for each layer, see `clock_cost_ms`; None: the network
            alone tells it.
    """
    own = layers_of_nodes(graph, corrected_layers(measurement))
    total_ms = sum(layer.latency_ms for layer in own)
    if total_ms <= 0 or not measurement.latency_ms:
        return []
    least_ms = LEAST_SHARE * measurement.latency_ms
    inside_ms = max(measurement.latency_ms - call_ms - transfers_ms, least_ms)
    if transfers_ms:
        # Where transfers cost much, they take the time that no layer shows: layers never grow.
        inside_ms = min(inside_ms, total_ms)
    layers, scale = _without_profiler(own, inside_ms, clock_ms)
    spread, network = (measurement.mad_ms or 0.0) / measurement.latency_ms, hash_of(graph)
    kernels = split(graph, rules)
    times_ms = _times_ms(graph, layers, kernels)
    return [
        KernelSample(kernel, scale * ms, scale * ms * spread, None, "profile", network=network)
        for kernel, ms in zip(kernels, times_ms, strict=True)
        if ms is not None
    ]


def _times_ms(
    graph: Graph, layers: Sequence[ProfiledLayer], kernels: Sequence[Kernel]
) -> list[float | None]:
    """The time of each kernel of a network in its layers; None where kernels share their work."""
    owner = {name: index for index, kernel in enumerate(kernels) for name in kernel.node_names}
    views = {node.name for node in graph.nodes if node.op in FREE_OPS}
    times_ms = [0.0] * len(kernels)
    shared: set[int] = set()
    for layer in _with_layout_changes(with_steps(layers), owner):
        names = [name for name in layer.name.split("+") if name in owner]
        owners = {owner[name] for name in [n for n in names if n not in views] or names}
        heaviest = _heaviest(kernels, owners) if len(owners) > 1 else next(iter(owners))
        if heaviest is None:
            shared |= owners
        else:
            times_ms[heaviest] += layer.latency_ms
    return [None if index in shared else ms for index, ms in enumerate(times_ms)]


def _heaviest(kernels: Sequence[Kernel], together: Collection[int]) -> int | None:
    """Which of some kernels that share a layer does nearly all of its work; None if none does.

    Of kernels that multiply nothing, the one that runs first has the layer: what follows it is
    applied to its result.
    """
    macs = {index: workload(kernels[index]).macs for index in together}
    most = max(macs, key=lambda index: (macs[index], -index))
    others = sum(macs.values()) - macs[most]
    return most if others <= _MOST_BESIDE * macs[most] else None
