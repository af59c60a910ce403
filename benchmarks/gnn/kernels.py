"""Predictors of kernels that the benchmark fits, and networks as sums of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.gnn.encoded import EncodedGraph, encode
from latfarm_predictors.gnn.kernel_graph import KernelSum
from latfarm_predictors.gnn.labelled import Labelled
from latfarm_predictors.gnn.shares import shares_of
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload import Workload, workload_of, workloads_of
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.predict.baseline_sums import BaselineSums
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import NetworkSample

from benchmarks.gnn.networks import BenchNetwork, KernelData

LEAST_SHARE = 0.02
"""A kernel takes at least this share of what its model took, whatever a call is said to take."""
CALIBRATE_WITH = 40
"""Number of training networks that the correction of our sum is fitted to, as in a bundle."""


@dataclass
class FittedKernels:
    """Predictors that were fitted to one fold's kernels.

    Attributes:
        predictor: ours, with nn-Meter's forests among its baselines.
        data: the kernels that it was fitted to.
    """

    predictor: PlatformPredictor
    data: KernelData
    _sums: dict[str, KernelSum] = field(default_factory=dict)
    _encoded: dict[Workload, EncodedGraph] = field(default_factory=dict)

    def sum_of(self, network: BenchNetwork) -> KernelSum:
        """A network as the times of its kernels by our predictors, and the call; not corrected."""
        if network.name not in self._sums:
            parts = find_parts(network.graph, self.predictor.rules)
            fixed_ms = self.predictor.fixed_ms(boundary_mb(network.graph))
            times_ms = self._times_ms(network, parts)
            self._sums[network.name] = KernelSum(network.graph, parts, times_ms, fixed_ms)
        return self._sums[network.name]

    def _times_ms(self, network: BenchNetwork, parts: Sequence[Part]) -> Array:
        """The times of a network's kernels, at their places where these were learned from."""
        if self.data.places:
            answer = self.predictor.predict(network.graph)
            return np.array([kernel.latency_ms for kernel in answer.kernels])
        table = as_table(workloads_of(network.graph, parts))
        return self.predictor.models.predict(table).latency_ms

    def nn_meter_ms(self, networks: Sequence[BenchNetwork]) -> Array:
        """Sums of nn-Meter's predictors of kernels, shape (n,)."""
        sums = BaselineSums(self.predictor, [each.graph for each in networks])
        return np.array(sums.latency_ms("nn-meter"))

    def labelled(self, platform: str) -> list[Labelled]:
        """The measured kernels as NNLP learns from them (its kernel mode, Table 5).

        The call of a model is no part of a kernel, and is taken off where a sample has it.
        """
        found = []
        for sample in self.data.samples:
            call_ms = self.data.call_overhead_ms if sample.insight == "single" else 0.0
            own_ms = sample.latency_ms - call_ms
            latency_ms = max(own_ms, LEAST_SHARE * sample.latency_ms)
            encoded = encode(sample.kernel.graph)
            found.append(Labelled(encoded, platform, latency_ms, sample.kernel.kernel_id))
        return found

    def summed(
        self,
        networks: Sequence[BenchNetwork],
        times_ms: Callable[[Sequence[EncodedGraph]], Array],
    ) -> Array:
        """Sums of the times that a function tells of kernels, shape (n,).

        Equal kernels are asked for once.
        """
        places: list[list[Workload]] = []
        for network in networks:
            parts = find_parts(network.graph, self.predictor.rules)
            works = [workload_of(network.graph, part) for part in parts]
            places.append(works)
            for part, work in zip(parts, works, strict=True):
                if work not in self._encoded:
                    self._encoded[work] = encode(Kernel.of_part(network.graph, part).graph)
        wanted = list(dict.fromkeys(work for works in places for work in works))
        told = times_ms([self._encoded[work] for work in wanted]).tolist()
        time_of = dict(zip(wanted, told, strict=True))
        return np.array([sum(time_of[work] for work in works) for works in places])


def fitted_kernels(
    platform: str, data: KernelData, train: Sequence[BenchNetwork], seed: int
) -> FittedKernels:
    """Fit our predictors of kernels, and those of the literature, to one fold's kernels.

    The correction of the sum is fitted to a part of the fold's training networks.
    """
    shares = shares_of([n.name for n in train], 0.0, min(0.5, CALIBRATE_WITH / len(train)), seed)
    calibration = [train[at] for at in shares.calibration]
    samples = PlatformSamples(
        platform,
        data.rules,
        data.samples,
        [NetworkSample(n.graph, n.latency_ms) for n in calibration],
        data.call_overhead_ms,
        data.transfer_ms_per_mb,
        data.places,
    )
    return FittedKernels(fit_predictor(samples, seed=seed), data)
