"""Probes: kernels of profiled networks measured alone, to compare both times of each.

If the times agree, further kernels are measured alone, and the probes are samples like these. If
they do not, models of single kernels tell little about networks on this platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.samples import KernelSample
from latfarm_predictors.slow_core import corrected_layers

from latfarm_controller.campaigns.kernels.survey import SETTINGS
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign
from latfarm_controller.campaigns.profiles.alone_or_inside import DIFFERENT, difference
from latfarm_controller.campaigns.profiles.profiled_networks import LAYOUT_OPS

PURPOSE = "probe"
"""The purpose, in the store, of these measurements."""


class ProbesCampaign(PlannedCampaign):
    """Measures kernels alone that profiled networks showed.

    Args:
        platform: a platform whose runtime profiles.
        kernels: the kernels.
        inside: the kernels of profiled networks, each as often as networks run it.
        settings: the settings of each measurement.
    """

    kind = "probes"
    stages = ("probes",)

    def __init__(
        self,
        platform: str,
        kernels: Sequence[Kernel],
        inside: Sequence[KernelSample],
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(platform)
        self._kernels = kernels
        self._inside = inside
        self._settings = settings
        self._answers: dict[str, Measurement] = {}

    def plan(self) -> Plan:
        """All kernels in one batch."""
        requests = [
            self.asker.request(k.graph, PURPOSE, self._settings, label=k.type, profile=True)
            for k in self._kernels
        ]
        answers = yield Batch("probes", requests, 0, len(requests))
        self._answers = {hash_of(r.graph): answers[r.request_id] for r in requests}

    @property
    def profiled(self) -> list[tuple[Graph, Measurement]]:
        """The models with their good measurements."""
        found = ((k.graph, self._answers.get(hash_of(k.graph))) for k in self._kernels)
        return [(graph, m) for graph, m in found if m is not None and m.ok]

    def samples(self) -> list[KernelSample]:
        """The kernels with the times of their own layers, as the profiles of their models show."""
        found = []
        for kernel in self._kernels:
            m = self._answers.get(hash_of(kernel.graph))
            own = [] if m is None or not m.ok else corrected_layers(m)
            own_ms = sum(layer.latency_ms for layer in own if layer.op not in LAYOUT_OPS)
            if own_ms > 0:
                found.append(KernelSample(kernel, own_ms, 0.0, None, "profile"))
        return found

    @property
    def difference(self) -> float | None:
        """The share by which times alone are off, see `alone_or_inside.difference`."""
        return difference(self.samples(), self._inside)

    @property
    def differs(self) -> bool:
        """Whether kernels take another time alone than inside a network."""
        found = self.difference
        return found is not None and found > DIFFERENT

    def outcome(self) -> Mapping[str, Any]:
        """The difference, and whether kernels alone tell about networks."""
        found = self.difference
        return {
            "difference": None if found is None else round(found, 4),
            "used": not self.differs,
            "measurements": len(self._answers),
        }
