"""Energies: what a campaign measured of them, and the predictor that is fitted to that."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.energy import KernelEnergySample, NetworkEnergySample

from latfarm_controller.campaigns.energy import energy_sample_of, network_energy
from latfarm_controller.campaigns.profiles.insight import layout_share

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import EnergyPredictor

_log = logging.getLogger(__name__)

Answered = Sequence[tuple[Graph, Sequence[Measurement]]]
"""Graphs, each with its good measurements."""


@dataclass
class EnergySet:
    """Energies of one campaign, all measured at one power rail.

    Attributes:
        rail: the rail; empty where no energy was measured.
        idle_mw: median power of the board at rest, in milliwatts; None where it is not known.
        call_overhead_mj: energy of an empty model, in millijoules; None where it is not known.
        kernels: the samples of kernels.
        networks: the samples of whole networks.
        left_out: number of measurements whose energy was not used, by the reason.
    """

    rail: str = ""
    idle_mw: float | None = None
    call_overhead_mj: float | None = None
    kernels: list[KernelEnergySample] = field(default_factory=list)
    networks: list[NetworkEnergySample] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def asked(self) -> bool:
        """Whether the campaign asked for energies."""
        return bool(self.kernels or self.networks or self.left_out)

    def provenance(self) -> dict[str, Any]:
        """Facts for a bundle's provenance, as plain JSON types; empty where none were asked for."""
        if not self.asked:
            return {}
        return {
            "energy": {
                "rail": self.rail,
                "idle_mw": self.idle_mw,
                "call_overhead_mj": self.call_overhead_mj,
                "kernels": len({sample.kernel.kernel_id for sample in self.kernels}),
                "networks": len(self.networks),
                "left_out": dict(self.left_out),
            }
        }


def collect_energy(
    kernels: Answered, networks: Answered, call_overhead_mj: float | None
) -> EnergySet:
    """Collect the energies among measurements that are good for training.

    Energies of different rails are never mixed, because a battery supplies more than a processor
    package. Only those of the rail with the most measurements are used.

    Args:
        kernels: models of single kernels with their measurements.
        networks: whole networks with their measurements.
        call_overhead_mj: energy of an empty model in millijoules; None where it is not known.
    """
    told = [m for rows in (kernels, networks) for _, answers in rows for m in answers]
    rails = Counter(m.energy_source for m in told if m.energy_mj is not None)
    rail = max(sorted(rails), key=lambda name: rails[name]) if rails else ""
    found = EnergySet(rail=rail, call_overhead_mj=call_overhead_mj)
    left_out: Counter[str] = Counter()
    for m in told:
        if m.energy_mj is None and m.settings.energy_ms:
            left_out["unavailable"] += 1
        elif m.energy_mj is not None and m.energy_source != rail:
            left_out["another rail"] += 1
    found.left_out = dict(sorted(left_out.items()))
    used = _by(rail, kernels)
    for graph, answers in used:
        kernel, share = Kernel(graph), layout_share(answers)
        samples = (energy_sample_of(kernel, m, call_overhead_mj, share) for m in answers)
        found.kernels += [sample for sample in samples if sample is not None]
    whole = _by(rail, networks)
    for graph, answers in whole:
        sample = network_energy(graph, answers)
        if sample is not None:
            found.networks.append(sample)
    idle = [m.idle_mw for _, rows in (*used, *whole) for m in rows if m.idle_mw is not None]
    found.idle_mw = median(idle) if idle else None
    return found


def fit_energy(
    platform: str,
    rules: FusionRules,
    data: EnergySet,
    call_overhead_ms: float,
    *,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> EnergyPredictor | None:
    """Fit a predictor of energies.

    Returns:
        None, where no energies were asked for; None and a warning, where too few were measured.
    """
    if not data.asked:
        return None
    # Commands that train nothing need not wait for the regressors.
    from latfarm_predictors.predict.energy_fitting import EnergySamples, fit_energy_predictor

    try:
        return fit_energy_predictor(
            EnergySamples(
                platform,
                rules,
                data.kernels,
                data.networks,
                call_overhead_mj=data.call_overhead_mj,
                call_overhead_ms=call_overhead_ms,
                rail=data.rail,
                idle_mw=data.idle_mw,
            ),
            seed=seed,
            on_progress=on_progress,
        )
    except NotEnoughDataError as error:
        _log.warning("%s: the bundle will not predict energies: %s", platform, error)
        return None


def _by(
    rail: str, rows: Iterable[tuple[Graph, Sequence[Measurement]]]
) -> list[tuple[Graph, list[Measurement]]]:
    """The graphs that have measurements of one rail, with these measurements."""
    kept = [
        (graph, [m for m in answers if m.energy_mj is not None and m.energy_source == rail])
        for graph, answers in rows
    ]
    return [(graph, answers) for graph, answers in kept if answers]
