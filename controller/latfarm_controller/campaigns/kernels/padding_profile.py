"""Profiled kernels between pads: where a kernel alone is another thing than inside a network.

A profile of a kernel's own model shows what it takes from the slow memory that a model's inputs and
outputs live in. A compiler that keeps tensors between layers in fast memory (as Vela does for the
Ethos-U) charges the same kernel half of that inside a network. Between pads its inputs and outputs
are tensors of a network, and the profiler tells its own layers by their names: no padding-only
model is needed. An image stays the model's input: a network's first kernel, too, reads it from
outside. A few kernels of each kind tell whether it matters; only then are all measured so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, expm1, log
from random import Random
from statistics import fmean, median, pstdev
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.features.groups import family_group
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.samples import KernelSample, mad_of

from latfarm_controller.campaigns.kernels.survey import SETTINGS
from latfarm_controller.campaigns.pads.models import Padded, Separator, padded
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign
from latfarm_controller.campaigns.profiles.profiled_networks import LEAST_SHARE, with_steps

PURPOSE = "padding"
PROBES = 32
LEAST_PROBES = 6
LEAST_OF_GROUP = 3
"""Probes of each group of kernels, where it has so many."""
DIFFERENT = 0.25
"""Where kernels alone are off by more than this from what they take between pads."""
_MOST_GAP = 1.0
_LEAST_SPREAD = 0.1


def draw(groups: Mapping[str, Sequence[str]], count: int, seed: int) -> list[str]:
    """Keys drawn from each group by its size, but at least `LEAST_OF_GROUP`, where there are any.

    Whether a kernel alone is another thing depends on what kind it is: some draws of a few out of
    all would miss the kinds that differ.

    Args:
        groups: keys by group.
        count: how many to draw; more where the groups' least are more.
        seed: of the draw within each group.
    """
    random = Random(seed)
    shuffled = {name: random.sample(list(keys), len(keys)) for name, keys in groups.items()}
    taken = {name: min(LEAST_OF_GROUP, len(keys)) for name, keys in shuffled.items()}
    while sum(taken.values()) < count:
        left = [name for name, keys in shuffled.items() if taken[name] < len(keys)]
        if not left:
            break
        taken[max(left, key=lambda name: len(shuffled[name]) / (taken[name] + 1))] += 1
    return [key for name, keys in shuffled.items() for key in keys[: taken[name]]]


def own_share(model: Padded, measurement: Measurement) -> float | None:
    """Share of the layers' time that is the kernel's own; None where a layer also covers a pad.

    A layer is named by the nodes that it covers, joined with "+".
    """
    total_ms = own_ms = 0.0
    nodes = {node.name for node in model.graph.nodes}
    for layer in with_steps(measurement.layers):
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
        self._groups: dict[str, list[str]] = {}
        for key, sample in self._alone.items():
            kernel = sample.kernel
            name = family_group(workload(kernel).family, kernel.type)
            self._groups.setdefault(name, []).append(key)
        self._overhead_ms = overhead_ms
        self._settings = settings
        self._seed = seed
        self._models: dict[str, Padded] = {}
        self._found: dict[str, KernelSample] = {}
        self._hidden: set[str] = set()
        self._silent: set[str] = set()
        self._asked = 0
        self._board_ms = 0.0

    def plan(self) -> Plan:
        """The probes; then the others, where the probes differ from what they take alone."""
        probes = draw(self._groups, PROBES, self._seed)
        yield from self._measure(probes, len(probes))
        if self.differs:
            probed = set(probes)
            others = [key for key in self._alone if key not in probed]
            yield from self._measure(others, len(self._alone))

    @property
    def differs(self) -> bool:
        """Whether kernels alone are another thing than inside a network."""
        return self.difference is not None and self.difference > DIFFERENT

    @property
    def difference(self) -> float | None:
        """By which share kernels alone are off, noise left out; None for too few to tell.

        What a network's sum of kernels would be off by: the mean of each group's kernels, up and
        down together, since noise goes both ways; over the groups by their sizes, up or down. One
        kernel counts for a factor of e at most.
        """
        gaps = {
            name: [max(-_MOST_GAP, min(_MOST_GAP, gap)) for gap in self._gaps(keys)]
            for name, keys in self._groups.items()
        }
        if sum(len(found) for found in gaps.values()) < LEAST_PROBES:
            return None
        sizes = {name: len(self._groups[name]) for name, found in gaps.items() if found}
        mean = sum(size * abs(fmean(gaps[name])) for name, size in sizes.items())
        return expm1(mean / sum(sizes.values()))

    def _gaps(self, keys: Sequence[str]) -> list[float]:
        """Log of alone over between pads, for those of some kernels that are known.

        One that no layer shows costs next to nothing there; how much less, no profile says.
        """
        return [
            log(self._alone[key].latency_ms / self._found[key].latency_ms)
            for key in keys
            if key in self._found and key not in self._silent
        ]

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
                model = padded(kernel, separator=separator, images=True)
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
        own_ms = share * max(inside_ms, least_ms)
        if own_ms < least_ms:
            self._silent.add(key)
            own_ms = least_ms
        spread = (answer.mad_ms or 0.0) / (answer.latency_ms or 1.0)
        self._found[key] = KernelSample(alone.kernel, own_ms, own_ms * spread, None, "profile")

    def samples(self) -> list[KernelSample]:
        """Kernels between pads where that matters; the others as they are alone.

        Where it matters, what pads cannot isolate is scaled as its group's others were, and as
        doubtful as these were different.
        """
        if not self.differs:
            return list(self._alone.values())
        found = []
        for name, keys in self._groups.items():
            gaps = self._nearest_gaps(name)
            middle, spread = median(gaps), max(pstdev(gaps), _LEAST_SPREAD)
            for key in keys:
                sample = self._found.get(key)
                if sample is None:
                    own_ms = self._alone[key].latency_ms * exp(-middle)
                    sample = replace(
                        self._alone[key],
                        latency_ms=own_ms,
                        mad_ms=own_ms * mad_of(spread),
                        cold_ms=None,
                    )
                found.append(sample)
        return found

    def _nearest_gaps(self, name: str) -> list[float]:
        """The gaps of a group; of all kernels, where few of the group are known."""
        gaps = self._gaps(self._groups[name])
        return gaps if len(gaps) >= LEAST_OF_GROUP else self._gaps(list(self._alone))

    def outcome(self) -> Mapping[str, Any]:
        """Whether it matters, and each kernel's time between pads where it does."""
        difference = self.difference
        return {
            "difference": None if difference is None else round(difference, 4),
            "used": self.differs,
            "measurements": self._asked,
            "board_ms": self._board_ms,
            "hidden": len(self._hidden),
            "scaled": len(self._alone) - len(self._found) if self.differs else 0,
            "times": {
                sample.kernel.kernel_id: {
                    "latency_ms": sample.latency_ms,
                    "mad_ms": sample.mad_ms,
                }
                for sample in (self.samples() if self.differs else ())
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
