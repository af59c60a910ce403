"""Whether kernels take another time alone than inside networks, by kernels that were timed in both.

Profiled networks show what kernels take inside a network. A few of the same kernels, measured
alone, tell whether models of single kernels are worth their time on a platform: where a compiler
keeps tensors between layers in fast memory, as Vela does for the Ethos-U, they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log
from random import Random
from statistics import fmean, median

from latfarm_predictors.features.groups import broad_group
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample

LEAST_COMPARED = 6
"""Number of kernels from which the difference is judged."""
DIFFERENT = 0.25
"""Kernels are not measured alone if their times alone are off by more than this share."""
_MOST_GAP = 1.0
"""Largest logarithm of a kernel's time alone over that inside which counts: a factor of e."""


def compared_kernels(inside: Sequence[KernelSample], count: int, seed: int) -> list[Kernel]:
    """Kernels of profiled networks to measure alone: of each group of kernels in turn.

    Args:
        inside: the kernels of profiled networks.
        count: how many.
        seed: random seed of the draw within a group.
    """
    groups: dict[str, dict[str, Kernel]] = {}
    for sample in inside:
        if sample.latency_ms > 0:
            kernel = sample.kernel
            groups.setdefault(group_of(kernel), {}).setdefault(kernel.kernel_id, kernel)
    random = Random(f"alone or inside {seed}")
    turns = [random.sample(list(found.values()), len(found)) for found in groups.values()]
    turns.sort(key=len, reverse=True)
    chosen: list[Kernel] = []
    while len(chosen) < count and any(turns):
        chosen += [turn.pop() for turn in turns if turn]
    return chosen[:count]


def group_of(kernel: Kernel) -> str:
    """The group of a kernel: kernels whose times alone differ alike."""
    return broad_group(workload(kernel).family, kernel.type)


def difference(alone: Sequence[KernelSample], inside: Sequence[KernelSample]) -> float | None:
    """The share by which times alone are off; None where too few kernels are known in both.

    Within each group, differences up and down cancel, since noise goes both ways. The groups' means
    are added up by absolute value, weighted by the time that the group takes inside networks.

    Args:
        alone: kernels measured alone.
        inside: kernels of profiled networks, each as often as networks run it.
    """
    within: dict[str, list[float]] = {}
    weight: dict[str, float] = {}
    for sample in inside:
        within.setdefault(sample.kernel.kernel_id, []).append(sample.latency_ms)
        name = group_of(sample.kernel)
        weight[name] = weight.get(name, 0.0) + sample.latency_ms
    gaps: dict[str, list[float]] = {}
    for sample in alone:
        known = median(within.get(sample.kernel.kernel_id, [0.0]))
        if known > 0 and sample.latency_ms > 0:
            gap = log(sample.latency_ms / known)
            name = group_of(sample.kernel)
            gaps.setdefault(name, []).append(max(-_MOST_GAP, min(_MOST_GAP, gap)))
    if sum(map(len, gaps.values())) < LEAST_COMPARED:
        return None
    total = sum(weight[name] for name in gaps)
    mean = sum(weight[name] * abs(fmean(found)) for name, found in gaps.items())
    return expm1(mean / total) if total > 0 else None
