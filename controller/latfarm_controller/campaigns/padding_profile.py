"""Profiled kernels between pads: where a kernel alone is another thing than inside a network.

A profile of a kernel's own model shows what it takes from the slow memory that a model's inputs and
outputs live in. A compiler that keeps tensors between layers in fast memory (as Vela does for the
Ethos-U) charges the same kernel half of that inside a network. Between pads its inputs and outputs
are tensors of a network, and the profiler tells its own layers by their names: no padding-only
model is needed. A few kernels tell whether it matters; only then are all measured so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.fusion import FusionRules
from latfarm_predictors.graph import Graph
from latfarm_predictors.kernels import Kernel
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.insight import LEAST_SHARE
from latfarm_controller.campaigns.kernels import SETTINGS
from latfarm_controller.campaigns.padding_models import Padded, Separator, padded
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign

PURPOSE = "padding"
PROBES = 16
LEAST_PROBES = 6
DIFFERENT = 0.25
"""Where a kernel alone is off by more than this from what it takes between pads, in the median."""


def own_share(model: Padded, measurement: Measurement) -> float | None:
    """Share of the layers' time that is the kernel's own; None where a layer also covers a pad.

    A layer is named by the nodes that it covers, joined with "+".
    """
    total_ms = own_ms = 0.0
    nodes = {node.name for node in model.graph.nodes}
    for layer in measurement.layers:
        total_ms += layer.latency_ms
        covered = set(layer.name.split("+")) & nodes
        if covered & model.own:
            if covered - model.own:
                return None
            own_ms += layer.latency_ms
    return own_ms / total_ms if total_ms > 0 else None


class WithinPadsCampaign(PlannedCampaign):
    """Kernels that were profiled alone, profiled between pads: some, and all if that differs."""

    kind = "within-pads"
    stages = ("padding",)

    def __init__(
        self,
        platform: str,
        rules: FusionRules,
        alone: Sequence[KernelSample],
        overhead_ms: float,
        *,
        settings: Settings = SETTINGS,
        seed: int = 0,
    ) -> None:
        """A survey of the kernels of `alone`, whose times hold no call overhead.

        Args:
            platform: the name of the platform.
            rules: tell which kernels would run within a pad.
            alone: kernels by their profiles alone.
            overhead_ms: latency of an empty model.
            settings: of each measurement.
            seed: of the draw of the probes.
        """
        super().__init__(platform)
        self._rules = rules
        self._alone = {s.kernel.kernel_id: s for s in alone if s.insight == "profile"}
        self._overhead_ms = overhead_ms
        self._settings = settings
        self._seed = seed
        self._models: dict[str, Padded] = {}
        self._found: dict[str, KernelSample] = {}
        self._hidden: set[str] = set()
        self._asked = 0
        self._board_ms = 0.0

    def plan(self) -> Plan:
        """The probes; then the others, where the probes differ from what they take alone."""
        order = list(self._alone)
        Random(self._seed).shuffle(order)
        yield from self._measure(order[:PROBES], len(order[:PROBES]))
        if self.differs:
            yield from self._measure(order[PROBES:], len(order))

    @property
    def differs(self) -> bool:
        """Whether kernels alone are another thing than inside a network."""
        return self.difference is not None and self.difference > DIFFERENT

    @property
    def difference(self) -> float | None:
        """By which share kernels alone are off in the median; None for too few to tell."""
        gaps = [
            abs(self._alone[key].latency_ms / sample.latency_ms - 1.0)
            for key, sample in self._found.items()
        ]
        return median(gaps) if len(gaps) >= LEAST_PROBES else None

    def _measure(self, keys: Sequence[str], total: int) -> Plan:
        requests = {}
        for key in keys:
            model = self._model(self._alone[key].kernel)
            if model is not None:
                self._models[key] = model
                requests[key] = self.asker.request(
                    model.graph, PURPOSE, self._settings, label="within pads", profile=True
                )
        answers = yield Batch("padding", list(requests.values()), self._asked, total)
        self._asked += len(requests)
        for key, request in requests.items():
            answer = answers[request.request_id]
            self._board_ms += answer.board_ms
            if answer.ok:
                self._take(key, answer)

    def _model(self, kernel: Kernel) -> Padded | None:
        separators: tuple[Separator, ...] = ("", "MaxPool", "AveragePool")
        for separator in separators:
            try:
                model = padded(kernel, separator=separator)
            except GraphError:
                return None
            if not model.fuses(self._rules):
                return model
        return None

    def _take(self, key: str, answer: Measurement) -> None:
        share = own_share(self._models[key], answer)
        if share is None:
            self._hidden.add(key)
            return
        shown_ms = sum(layer.latency_ms for layer in answer.layers)
        # Profiling slows layers down, and never speeds them up: the call bounds their sum.
        inside_ms = min(shown_ms, max((answer.latency_ms or 0.0) - self._overhead_ms, 0.0))
        alone = self._alone[key]
        least_ms = LEAST_SHARE * alone.latency_ms
        own_ms = max(share * max(inside_ms, least_ms), least_ms)
        spread = (answer.mad_ms or 0.0) / (answer.latency_ms or 1.0)
        self._found[key] = KernelSample(alone.kernel, own_ms, own_ms * spread, None, "profile")

    def samples(self) -> list[KernelSample]:
        """Kernels between pads where that matters; the others as they are alone."""
        found = self._found if self.differs else {}
        return [found.get(key, sample) for key, sample in self._alone.items()]

    def outcome(self) -> Mapping[str, Any]:
        """Whether it matters, and each kernel's time between pads where it does."""
        difference = self.difference
        return {
            "difference": None if difference is None else round(difference, 4),
            "used": self.differs,
            "measurements": self._asked,
            "board_ms": self._board_ms,
            "hidden": len(self._hidden),
            "times": {
                key: {"latency_ms": sample.latency_ms, "mad_ms": sample.mad_ms}
                for key, sample in (self._found if self.differs else {}).items()
            },
        }


def within_samples(
    outcome: Mapping[str, Any], graph_of: Callable[[str], Graph | None]
) -> list[KernelSample]:
    """The kernels that a campaign's outcome knows between pads by their profile.

    Args:
        outcome: of a characterisation.
        graph_of: a stored graph by its hash; kernels whose graph is lost are left out.
    """
    found = []
    for key, row in outcome.get("within_pads", {}).get("times", {}).items():
        graph = graph_of(key)
        if graph is not None:
            sample = KernelSample(Kernel(graph), row["latency_ms"], row["mad_ms"], None, "profile")
            found.append(sample)
    return found
