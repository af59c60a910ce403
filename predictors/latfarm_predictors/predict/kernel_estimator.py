"""Which estimates a predictor makes of kernels: of kernels alone, or of kernels at their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.context import Marks, marks_of
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.reuse import spills_of
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.learned.absent_kernels import AbsentKernels, without_absent
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import KernelEstimates, KernelModels
from latfarm_predictors.learned.reuse_cost import ReuseCost
from latfarm_predictors.predict.kernel_estimates import (
    estimate,
    estimate_placed,
    estimate_reused,
)
from latfarm_predictors.samples import Measured

Places = Callable[[Graph, Sequence[Part]], Sequence[Marks]]
"""Tells what decides about the place of each kernel of a network: its marks, or its spills."""


@dataclass(frozen=True, slots=True)
class KernelEstimator:
    """Estimates kernels as a platform was learned. Thread-safe.

    Attributes:
        models: predict kernels.
        measured: kernels whose very configuration was measured.
        context: what a kernel's neighbours change in its latency; None where they change nothing.
        reuse: what data that caches have lost cost a kernel; None where that costs nothing. Then
            `context` decides.
        absent: which kernels take no time inside networks.
    """

    models: KernelModels
    measured: Measured
    context: ContextModel | None = None
    reuse: ReuseCost | None = None
    absent: AbsentKernels = field(default_factory=AbsentKernels)

    @property
    def places(self) -> Places | None:
        """Tells the places of a network's kernels; None where a place changes no latency."""
        if self.reuse is not None:
            return spills_of
        return None if self.context is None else marks_of

    def estimate(
        self, rows: Sequence[Workload], places: Sequence[Marks] | None = None
    ) -> KernelEstimates:
        """Estimates of kernels.

        Args:
            rows: their workloads.
            places: what `places` tells of each of them; None where that is None.

        Raises:
            GraphError: a kernel has a size that no board could run.
        """
        if places is None:
            return estimate(self.models, self.measured, rows)
        if self.reuse is not None:
            return estimate_reused(self.models, self.measured, self.reuse, rows, places)
        assert self.context is not None, "nothing was learned about places"
        return estimate_placed(self.models, self.measured, self.context, rows, places)

    def of_network(self, graph: Graph, parts: Sequence[Part]) -> KernelEstimates:
        """Estimates of all kernels of a network, in their order.

        Args:
            graph: the network.
            parts: its kernels' nodes, in the order in which they run.
        """
        rows = workloads_of(graph, parts)
        found = self.estimate(rows, None if self.places is None else self.places(graph, parts))
        return without_absent(found, self.absent.among(parts), self.models.floor_ms)
