"""How many bytes a network touches between two uses of a kernel's data, compared with caches.

A network that runs again and again touches all of its weights and tensors between two uses of one
weight, and what its kernels touch in between lies between writing a tensor and reading it. If these
are more bytes than a cache holds, the data have been evicted from it. A kernel that runs alone
touches its own data only. So the same kernel may read its weights from a cache when it is measured
alone, and from memory inside a network (reuse distance: Mattson et al. 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload import Workload, workloads_of

CACHES_BYTES = tuple(round(250_000 * 2 ** (step / 2)) for step in range(18))
"""Sizes of caches, in bytes, that are tried: 250 kB to 90 MB, two for each doubling."""

Spills = tuple[float, ...]
"""The bytes of one kernel that a cache has lost when the kernel needs them, for each size of
`CACHES_BYTES`; those of the weights come first, then those of the inputs."""


def spills_of(graph: Graph, parts: Sequence[Part]) -> list[Spills]:
    """The spills of each kernel of a network, in their order.

    Args:
        graph: the network.
        parts: all its kernels, in the order in which they run.
    """
    works = workloads_of(graph, parts)
    weights = [float(work.weight_bytes) for work in works]
    tensors = dict.fromkeys(t for part in parts for t in (*part.inputs, *part.outputs))
    size = {tensor: float(graph.type_of(tensor).size_bytes) for tensor in tensors}
    whole = sum(weights) + sum(size.values())
    touched = [
        weight + sum(size[t] for t in dict.fromkeys((*part.inputs, *part.outputs)))
        for weight, part in zip(weights, parts, strict=True)
    ]
    before = list(accumulate(touched, initial=0.0))
    maker = {tensor: at for at, part in enumerate(parts) for tensor in part.outputs}
    found = []
    for at, part in enumerate(parts):
        read = [
            (size[t], size[t] + before[at] - before[maker[t] + 1] if t in maker else whole)
            for t in dict.fromkeys(part.inputs)
        ]
        found.append(_spills(weights[at], whole, read))
    return found


def spills_alone(work: Workload) -> Spills:
    """The spills of a kernel that runs again and again alone: between two uses lie its own data."""
    whole = float(work.weight_bytes + work.input_bytes + work.output_bytes)
    return _spills(float(work.weight_bytes), whole, [(float(work.input_bytes), whole)])


def _spills(weight_bytes: float, whole_bytes: float, read: Sequence[tuple[float, float]]) -> Spills:
    """The spills of a kernel.

    Args:
        weight_bytes: size of its weights.
        whole_bytes: bytes touched between two uses of its weights.
        read: size of each of its inputs, and bytes touched since it was last used.
    """
    weights = [_evicted(weight_bytes, whole_bytes, size) for size in _SIZES]
    inputs = [sum(_evicted(own, since, size) for own, since in read) for size in _SIZES]
    return (*weights, *inputs)


_SIZES = tuple(float(size) for size in CACHES_BYTES)


def _evicted(data_bytes: float, since_bytes: float, cache_bytes: float) -> float:
    """Bytes of some data that are in a cache no more, after so many bytes were touched."""
    return data_bytes if since_bytes > cache_bytes else 0.0
