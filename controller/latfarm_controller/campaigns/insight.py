"""What a kernel takes inside a network: from its own model, or from a profiled network.

Alone, a kernel pays for converting its input into the layout in which the runtime computes, and its
output back; inside a network its neighbours use that layout already. onnxruntime on x86, for one,
spends up to half of a small convolution's time on such reorders. Where the runtime's profiler shows
them they are taken off (`insight="profile"`).

A profiled network tells the same of all its kernels at once, in the layouts and with the caches
that networks have, and costs no measurement of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from latfarm_predictors.fusion import FusionRules, split
from latfarm_predictors.graph import Graph
from latfarm_predictors.kernels import Kernel
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.network_correction import boundary_mb
from latfarm_predictors.samples import KernelSample

LAYOUT_OPS = frozenset(
    {"Reorder", "ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"}
)
"""Layers that runtimes insert to change a tensor's layout or place; no model asks for them."""
LEAST_SHARE = 0.02
"""Of a call's time that is the kernel's own, whatever noise says."""
UNSEEN_SHARE = 0.2
"""Where the layers show less than the rest of a call, the difference went into its transfers."""
MOST_SHARE = 0.95
"""More than this cannot be told from a kernel that takes no time."""


def layout_share(
    measurements: Sequence[Measurement], overhead_ms: float | None = None
) -> float | None:
    """Share of a model's time that is none of its kernel's; None without a profile.

    That is what layout conversions took of the layers' time. Given the latency of an empty model,
    it is also what the layers leave unexplained, if that is much: a board that moves inputs and
    outputs to its accelerator and back does so between networks, not between kernels.
    """
    shares = []
    for measurement in measurements:
        total_ms = sum(layer.latency_ms for layer in measurement.layers)
        if total_ms > 0:
            layout_ms = sum(
                layer.latency_ms for layer in measurement.layers if layer.op in LAYOUT_OPS
            )
            whole_ms = total_ms
            if overhead_ms is not None:
                alone_ms = (measurement.latency_ms or 0.0) - overhead_ms
                if total_ms < (1.0 - UNSEEN_SHARE) * alone_ms:
                    whole_ms = alone_ms
            shares.append(1.0 - (total_ms - layout_ms) / whole_ms)
    return min(median(shares), MOST_SHARE) if shares else None


def transfer_ms_per_mb(
    measured: Sequence[tuple[Graph, Sequence[Measurement]]], overhead_ms: float
) -> float:
    """What a board takes to move a megabyte of a model's inputs or outputs; 0 if next to nothing.

    It is the median of what profiles of single kernels leave unexplained over the bytes that were
    moved, and counts only where it is a large part of the typical call.

    Args:
        measured: single kernels with all their measurements.
        overhead_ms: latency of an empty model.
    """
    paces: list[float] = []
    parts: list[float] = []
    for graph, measurements in measured:
        moved_mb = boundary_mb(graph)
        for measurement in measurements:
            shown_ms = sum(layer.latency_ms for layer in measurement.layers)
            alone_ms = (measurement.latency_ms or 0.0) - overhead_ms
            if shown_ms > 0 and alone_ms > 0 and moved_mb:
                paces.append(max(alone_ms - shown_ms, 0.0) / moved_mb)
                parts.append(1.0 - shown_ms / alone_ms)
    return median(paces) if parts and median(parts) > UNSEEN_SHARE else 0.0


def sample_of(
    kernel: Kernel, measurement: Measurement, overhead_ms: float, share: float | None
) -> KernelSample:
    """A measurement as a training sample, its layout conversions taken off.

    A profiled sample holds no call overhead: the overhead is no part of what is shared out.

    Args:
        kernel: what was measured.
        measurement: a good one, with a latency.
        overhead_ms: latency of an empty model.
        share: of what is not the kernel's own (`layout_share`); None where no profile tells.
    """
    sample = KernelSample(
        kernel, measurement.latency_ms or 0.0, measurement.mad_ms or 0.0, measurement.cold_ms
    )
    if share is None:
        return sample

    def inside(alone_ms: float) -> float:
        return max(alone_ms - overhead_ms, LEAST_SHARE * alone_ms) * (1.0 - share)

    return replace(
        sample,
        latency_ms=inside(sample.latency_ms),
        cold_ms=None if sample.cold_ms is None else inside(sample.cold_ms),
        insight="profile",
    )


def in_context(
    graph: Graph, rules: FusionRules, measurement: Measurement, transfers_ms: float = 0.0
) -> list[KernelSample]:
    """The kernels of a profiled network, with what each took inside it.

    Layer times are scaled so that they sum to the network's latency as measured without the
    profiler, less what its inputs and outputs took to be moved. A kernel that the runtime executed
    together with another one is left out, as is one of which the profile shows no layer.

    Args:
        graph: the network.
        rules: cut it into kernels.
        measurement: a good one of it, with layers named by the nodes they cover, joined with "+".
        transfers_ms: what its inputs and outputs took, by `transfer_ms_per_mb`.
    """
    total_ms = sum(layer.latency_ms for layer in measurement.layers)
    if total_ms <= 0 or not measurement.latency_ms:
        return []
    inside_ms = measurement.latency_ms - transfers_ms
    if transfers_ms:
        # Where calls and transfers cost much, what no layer shows is theirs: layers never grow.
        inside_ms = min(max(inside_ms, LEAST_SHARE * measurement.latency_ms), total_ms)
    scale = inside_ms / total_ms
    spread = (measurement.mad_ms or 0.0) / measurement.latency_ms
    kernels = split(graph, rules)
    owner = {name: index for index, kernel in enumerate(kernels) for name in kernel.node_names}
    times_ms: dict[int, float] = {}
    shared: set[int] = set()
    for layer in measurement.layers:
        owners = {owner[name] for name in layer.name.split("+") if name in owner}
        if len(owners) > 1:
            shared |= owners
        for index in owners:
            times_ms[index] = times_ms.get(index, 0.0) + layer.latency_ms * scale
    return [
        KernelSample(kernels[index], time_ms, time_ms * spread, None, "profile")
        for index, time_ms in times_ms.items()
        if index not in shared and time_ms > 0
    ]
