"""From measured energies to a platform's predictor of energies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.learned.kernel_models import OnProgress
from latfarm_predictors.predict.energy import (
    EnergyUnit,
    KernelEnergySample,
    NetworkEnergySample,
)
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import EnergyPredictor
from latfarm_predictors.samples import KernelSample, NetworkSample, mad_of


@dataclass(frozen=True)
class EnergySamples:
    """What a predictor of energies is fitted to.

    Attributes:
        platform: name of the platform.
        rules: how the platform fuses ops.
        kernels: measured kernels; repeats of one kernel are pooled.
        networks: networks that were measured as a whole.
        call_overhead_mj: energy of an empty model, in mJ. None, where it was not measured: it is
            then taken for `call_overhead_ms` at the reference power.
        call_overhead_ms: latency of an empty model.
        rail: the power rail by which all of them were measured.
        idle_mw: the power that the board took at rest, in mW.
    """

    platform: str
    rules: FusionRules
    kernels: Sequence[KernelEnergySample]
    networks: Sequence[NetworkEnergySample]
    call_overhead_mj: float | None
    call_overhead_ms: float
    rail: str = ""
    idle_mw: float | None = None


def fit_energy_predictor(
    samples: EnergySamples, *, seed: int = 0, on_progress: OnProgress | None = None
) -> EnergyPredictor:
    """Learn the energies of a platform.

    Energies that are no positive finite numbers are left out.

    Args:
        samples: what was measured.
        seed: random seed; the same samples and the same seed give the same predictor.
        on_progress: called with a stage, how many of its steps are done, and how many there are.

    Raises:
        NotEnoughDataError: fewer than 8 distinct kernels.
    """
    kernels = [sample for sample in samples.kernels if _usable(sample.energy_mj)]
    powers_mw = [s.energy_mj / s.latency_ms * 1e3 for s in kernels if s.latency_ms > 0]
    if not powers_mw:
        raise NotEnoughDataError("no kernel's energy was measured")
    unit = EnergyUnit(median(powers_mw), samples.rail, samples.idle_mw)
    overhead_mj = samples.call_overhead_mj
    equivalent = PlatformSamples(
        samples.platform,
        samples.rules,
        [_kernel_in_ms(sample, unit) for sample in kernels],
        [_network_in_ms(each, unit) for each in samples.networks if _usable(each.energy_mj)],
        call_overhead_ms=(
            samples.call_overhead_ms if overhead_mj is None else unit.ms(overhead_mj)
        ),
    )
    inner = fit_predictor(equivalent, seed=seed, on_progress=on_progress, baselines=False)
    return EnergyPredictor(inner, unit)


def _kernel_in_ms(sample: KernelEnergySample, unit: EnergyUnit) -> KernelSample:
    """A kernel's energy as a latency in equivalent milliseconds."""
    return KernelSample(
        sample.kernel,
        unit.ms(sample.energy_mj),
        mad_of(unit.ms(sample.spread_mj)),
        None,
        sample.insight,
    )


def _network_in_ms(sample: NetworkEnergySample, unit: EnergyUnit) -> NetworkSample:
    """A network's energy as a latency in equivalent milliseconds."""
    return NetworkSample(sample.graph, unit.ms(sample.energy_mj), mad_of(unit.ms(sample.spread_mj)))


def _usable(energy_mj: float) -> bool:
    return bool(np.isfinite(energy_mj)) and energy_mj > 0
