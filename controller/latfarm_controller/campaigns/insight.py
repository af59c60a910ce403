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
from latfarm_predictors.samples import KernelSample

LAYOUT_OPS = frozenset(
    {"Reorder", "ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"}
)
"""Layers that runtimes insert to change a tensor's layout or place; no model asks for them."""
LEAST_SHARE = 0.02
"""Of a call's time that is the kernel's own, whatever noise says."""
MOST_SHARE = 0.95
"""More than this cannot be told from a kernel that takes no time."""


def layout_share(measurements: Sequence[Measurement]) -> float | None:
    """Share of the layers' time that layout conversions took; None without a profile."""
    shares = []
    for measurement in measurements:
        total_ms = sum(layer.latency_ms for layer in measurement.layers)
        if total_ms > 0:
            layout_ms = sum(
                layer.latency_ms for layer in measurement.layers if layer.op in LAYOUT_OPS
            )
            shares.append(layout_ms / total_ms)
    return min(median(shares), MOST_SHARE) if shares else None


def sample_of(
    kernel: Kernel, measurement: Measurement, overhead_ms: float, share: float | None
) -> KernelSample:
    """A measurement as a training sample, its layout conversions taken off.

    A profiled sample holds no call overhead: the overhead is no part of what is shared out.

    Args:
        kernel: what was measured.
        measurement: a good one, with a latency.
        overhead_ms: latency of an empty model.
        share: of layout conversions in the layers' time; None where no profile tells.
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


def in_context(graph: Graph, rules: FusionRules, measurement: Measurement) -> list[KernelSample]:
    """The kernels of a profiled network, with what each took inside it.

    Layer times are scaled so that they sum to the network's latency as measured without the
    profiler. A kernel that the runtime executed together with another one is left out, as is one
    of which the profile shows no layer.

    Args:
        graph: the network.
        rules: cut it into kernels.
        measurement: a good one of it, with layers named by the nodes they cover, joined with "+".
    """
    total_ms = sum(layer.latency_ms for layer in measurement.layers)
    if total_ms <= 0 or not measurement.latency_ms:
        return []
    scale = measurement.latency_ms / total_ms
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
