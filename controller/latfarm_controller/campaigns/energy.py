"""The energy that a kernel or network takes, from its measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.energy import KernelEnergySample, NetworkEnergySample

from latfarm_controller.campaigns.profiles.profiled_networks import LEAST_SHARE

TRIES = 3
"""How often an energy is asked for before a platform counts as unable to measure energies."""

_MOST_REASONS = 5
"""Number of reasons for missing energies that are reported."""


def energy_sample_of(
    kernel: Kernel, measurement: Measurement, overhead_mj: float | None, share: float | None
) -> KernelEnergySample | None:
    """A measurement as a training sample, without its layout conversions; None without energy.

    The energy of single layers cannot be measured. So layout conversions are assumed to take the
    same share of the energy as of the time. A sample with a profile does not include the overhead
    of the call either, as in `insight.sample_of`.

    Args:
        kernel: what was measured.
        measurement: a good measurement.
        overhead_mj: energy of an empty model; None: not known, and counted as 0.
        share: share of layout conversions in the layers' time; None without a profile.
    """
    energy_mj, latency_ms = measurement.energy_mj, measurement.latency_ms
    if energy_mj is None or not latency_ms:
        return None
    sample = KernelEnergySample(kernel, energy_mj, measurement.energy_spread_mj or 0.0, latency_ms)
    if share is None:
        return sample
    net_mj = max(energy_mj - (overhead_mj or 0.0), LEAST_SHARE * energy_mj) * (1.0 - share)
    spread_mj = sample.spread_mj * (1.0 - share)
    return replace(sample, energy_mj=net_mj, spread_mj=spread_mj, insight="profile")


def network_energy(graph: Graph, passes: Sequence[Measurement]) -> NetworkEnergySample | None:
    """One sample of a network's energy: the median over the passes; None without any."""
    known = [m for m in passes if m.energy_mj is not None]
    if not known:
        return None
    energies = [m.energy_mj or 0.0 for m in known]
    middle = median(energies)
    between = median(abs(energy - middle) for energy in energies)
    own = median(m.energy_spread_mj or 0.0 for m in known)
    return NetworkEnergySample(graph, middle, max(own, between))


def energy_story(measurements: Iterable[Measurement]) -> dict[str, Any]:
    """How many energies were measured, and how often others were missing for which reason."""
    measured = 0
    reasons: Counter[str] = Counter()
    for measurement in measurements:
        if measurement.energy_mj is not None:
            measured += 1
        elif measurement.energy_story:
            reasons[measurement.energy_story] += 1
    return {"measured": measured, "unavailable": dict(reasons.most_common(_MOST_REASONS))}
