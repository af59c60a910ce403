"""What the samplers that draw single layers share: a filter for layers, and the draws."""

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

from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.zoo.draws.prior import MAX_BYTES, MAX_MACS

PATIENCE = 400
"""Number of draws in a row without a new layer after which a kind of layer has no more."""


class LayerFilter:
    """Lets each layer through once, if boards can run its size and it is not excluded.

    Args:
        rules: the platform's fusion rules; they say which ops run in one kernel with the first op.
        excluded: kernels that never pass.
        most_macs: multiply-adds of the largest layer that passes.
    """

    def __init__(self, rules: FusionRules, excluded: Excluded, most_macs: float = MAX_MACS) -> None:
        self._rules = rules
        self._most_macs = most_macs
        self._excluded = excluded
        self.taken: set[str] = set()

    @property
    def barred(self) -> set[str]:
        """Ids of the kernels that were taken already, and of those that are excluded."""
        return self.taken | self._excluded.ids

    def kernel(self, make: Callable[[], Graph]) -> Kernel | None:
        """The layer's kernel; None where it is impossible, too large, excluded or taken before."""
        try:
            kernel = split(make(), self._rules)[0]
        except GraphError:  # a window larger than its input
            return None
        return kernel if self.take(kernel) else None

    def take(self, kernel: Kernel) -> bool:
        """Whether a kernel is new and allowed; if so it counts as taken from now on."""
        if kernel.kernel_id in self.taken or kernel in self._excluded:
            return False
        work = workload(kernel)
        size_bytes = work.input_bytes + work.output_bytes + work.weight_bytes
        if size_bytes > MAX_BYTES or work.macs > self._most_macs:
            return False
        self.taken.add(kernel.kernel_id)
        return True


def usable(samples: Sequence[KernelSample]) -> list[KernelSample]:
    """The samples whose latency a model can learn from: finite and positive."""
    return [s for s in samples if isfinite(s.latency_ms) and s.latency_ms > 0]


def draw_new(make: Callable[[], Kernel | None]) -> Kernel | None:
    """The first layer that `make` gives in `PATIENCE` tries; None where all of them fail."""
    return next((kernel for _ in range(PATIENCE) if (kernel := make()) is not None), None)


def operations(work: Workload) -> int:
    """FLOPs as ANNETTE counts them: multiply-adds, or elements read by the windows of a pool."""
    elements = work.out_channels * work.out_h * work.out_w * work.batch
    return work.macs or elements * work.kernel_h * work.kernel_w


def near(size: int, random: Random, low: float = 0.4, high: float = 1.2) -> int:
    """A number of channels from `low` to `high` times `size`, as nn-Meter draws around a layer."""
    least = max(int(low * size), 1)
    return random.randint(least, max(int(high * size), least))
