"""Profiled kernels between pads, for platforms where kernels take another time inside a network.

The profile of a kernel's own model shows its time with inputs and outputs in slow memory. A
compiler may keep tensors between layers in fast memory, as Vela does for the Ethos-U, so that the
same kernel takes half the time inside a network. Between pads the kernel's inputs and outputs are
tensors inside a network. The profiler names the kernel's own layers, so that no padding-only model
is needed. Images stay inputs of the model, because a network's first kernel reads them from outside
as well. First a few kernels of each kind are measured. All others follow only if these differ from
their times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, expm1, log
from random import Random
from statistics import fmean, median, pstdev
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.features.groups import broad_group
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.samples import KernelSample, mad_of
from latfarm_predictors.slow_core import corrected_layers

from latfarm_controller.campaigns.kernels.survey import SETTINGS
from latfarm_controller.campaigns.pads.models import Padded, Separator, padded
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign
from latfarm_controller.campaigns.profiles.profiled_networks import LEAST_SHARE, with_steps

PURPOSE = "padding"
"""The purpose, in the store, of padded models."""
PROBES = 32
"""Number of kernels that are measured first, to see whether pads make a difference."""
LEAST_PROBES = 6
"""Number of probes with a result from which the difference is judged."""
LEAST_OF_GROUP = 3
"""Number of probes of each group of kernels, where it has so many."""
DIFFERENT = 0.25
"""All kernels are measured between pads if times alone are off by more than this share."""
_MOST_GAP = 1.0
"""Largest logarithm of a kernel's time alone over that between pads which counts: a factor of e."""
_LEAST_SPREAD = 0.1
"""Least deviation, in logarithms, of a kernel's time that is scaled instead of measured."""


def draw(groups: Mapping[str, Sequence[str]], count: int, seed: int) -> list[str]:
    """Keys drawn from each group in proportion to its size, but at least `LEAST_OF_GROUP`.

    Whether pads make a difference depends on the kind of kernel, and a draw from all kernels
    together might miss the kinds that differ.

    Args:
        groups: keys by group.
        count: how many keys to draw; more are drawn where `LEAST_OF_GROUP` of each group are more.
        seed: random seed of the draw within each group.
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
    """The kernel's share of the layers' time; None where a layer covers the kernel and a pad.

    Args:
        model: the padded model.
        measurement: its profile, whose layers are named by the nodes that they cover, joined with
            "+".
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
    """Profiles kernels between pads that were profiled alone: some, and all if these differ."""

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
        """A survey of the kernels in `alone`, whose times do not include the call overhead.

        Args:
            platform: the name of the platform.
            rules: the fusion rules, which say whether a kernel fuses with a pad.
            alone: the kernels with their times alone; those without a profile are left out.
            overhead_ms: latency of an empty model.
            settings: the settings of each measurement.
            seed: random seed of the draw of the probes.
        """
        super().__init__(platform)
        self._rules = rules
        self._alone = {s.kernel.kernel_id: s for s in alone if s.insight == "profile"}
        self._groups: dict[str, list[str]] = {}
        for key, sample in self._alone.items():
            kernel = sample.kernel
            name = broad_group(workload(kernel).family, kernel.type)
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
        """The probes; then all other kernels, if the probes differ from their times alone."""
        probes = draw(self._groups, PROBES, self._seed)
        yield from self._measure(probes, len(probes))
        if self.differs:
            probed = set(probes)
            others = [key for key in self._alone if key not in probed]
            yield from self._measure(others, len(self._alone))

    @property
    def differs(self) -> bool:
        """Whether kernels take another time alone than inside a network."""
        return self.difference is not None and self.difference > DIFFERENT

    @property
    def difference(self) -> float | None:
        """Return the share by which times alone are off; None where too few kernels are known.

        It estimates the error of a network's sum of kernels. Within each group, differences up and
        down cancel, since noise goes both ways; the groups' means are then added up by absolute
        value, weighted by the sizes of the groups. One kernel counts for a factor of e at most.
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
        """Logarithms of the times alone over those between pads, of the kernels that have both.

        A kernel that no layer shows between pads is left out: it costs next to nothing there, but
        the profile does not say how little.
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
        """The kernel's padded model if there is one that does not fuse with its pads."""
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
        """Keep the kernel's time between pads, by its share of the layers' time."""
        share = own_share(self._models[key], answer)
        if share is None:
            self._hidden.add(key)
            return
        shown_ms = sum(layer.latency_ms for layer in corrected_layers(answer))
        # Profiling slows layers down and never speeds them up: the call's latency bounds their sum.
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
        """The kernels with their times between pads if pads make a difference, otherwise alone.

        If pads make a difference, kernels that pads cannot isolate are scaled like the others of
        their group; the deviation of their time is the spread of the group's differences.
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
        """The gaps of a group; those of all kernels, where too few of the group are known."""
        gaps = self._gaps(self._groups[name])
        return gaps if len(gaps) >= LEAST_OF_GROUP else self._gaps(list(self._alone))

    def outcome(self) -> Mapping[str, Any]:
        """Whether pads make a difference; if so, each kernel's time between pads."""
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
    """The kernels of a campaign's outcome that were profiled between pads, as samples.

    Args:
        outcome: the outcome of a characterisation.
        graph_of: gives a stored graph by its hash; kernels whose graph is lost are left out.
    """
    found = []
    for key, row in outcome.get("within_pads", {}).get("times", {}).items():
        graph = graph_of(key)
        if graph is not None:
            sample = KernelSample(Kernel(graph), row["latency_ms"], row["mad_ms"], None, "profile")
            found.append(sample)
    return found
