"""Single layers as samplers draw them, and which of them may be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from random import Random

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.samplers import Excluded
from latfarm_controller.zoo.draws.prior import MAX_BYTES, MAX_MACS

PATIENCE = 400
"""Draws in a row without a new layer before a kind of layer counts as exhausted."""


class LayerFilter:
    """Lets each layer through once: of a size that boards run, and not excluded.

    Args:
        rules: how the platform fuses; a layer is what they make of its first op.
        excluded: kernels that are never drawn.
        most_macs: multiply-adds of the largest.
    """

    def __init__(self, rules: FusionRules, excluded: Excluded, most_macs: float = MAX_MACS) -> None:
        self._rules = rules
        self._most_macs = most_macs
        self._excluded = excluded
        self.taken: set[str] = set()

    @property
    def barred(self) -> set[str]:
        """Ids of what must not be drawn again, or at all."""
        return self.taken | self._excluded.ids

    def kernel(self, make: Callable[[], Graph]) -> Kernel | None:
        """The layer's kernel; None where it cannot be, is too large, excluded or taken before."""
        try:
            kernel = split(make(), self._rules)[0]
        except GraphError:  # a window wider than its map
            return None
        return kernel if self.take(kernel) else None

    def take(self, kernel: Kernel) -> bool:
        """Whether a kernel is new and allowed; from then on it is taken."""
        if kernel.kernel_id in self.taken or kernel in self._excluded:
            return False
        work = workload(kernel)
        size_bytes = work.input_bytes + work.output_bytes + work.weight_bytes
        if size_bytes > MAX_BYTES or work.macs > self._most_macs:
            return False
        self.taken.add(kernel.kernel_id)
        return True


def usable(samples: Sequence[KernelSample]) -> list[KernelSample]:
    """Those with a latency that a model can learn from: finite and positive."""
    return [s for s in samples if isfinite(s.latency_ms) and s.latency_ms > 0]


def draw_new(make: Callable[[], Kernel | None]) -> Kernel | None:
    """The first layer that comes of some tries."""
    return next((kernel for _ in range(PATIENCE) if (kernel := make()) is not None), None)


def operations(work: Workload) -> int:
    """FLOPs, as ANNETTE counts them for each type of layer: multiply-adds, or window elements."""
    elements = work.out_channels * work.out_h * work.out_w * work.batch
    return work.macs or elements * work.kernel_h * work.kernel_w


def near(size: int, random: Random, low: float = 0.4, high: float = 1.2) -> int:
    """A channel count in [low, high] of `size`, as nn-Meter's fine-grained sampling draws it."""
    least = max(int(low * size), 1)
    return random.randint(least, max(int(high * size), least))
