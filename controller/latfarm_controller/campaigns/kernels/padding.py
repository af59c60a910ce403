"""Smart padding: times of kernels inside networks, without a profiler (Wess et al. 2024, III-B).

It is Algorithm 1 of the paper. Padding-only models of every needed shape are measured first. Then
each layer under measurement (LUM) is measured between pads, and the time of its pads is subtracted.
The cost of moving data into a model and out of it, which a kernel alone pays in full, cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from random import Random
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.samples import KernelSample
from pydantic import Field, model_validator

from latfarm_controller.campaigns import call_overhead
from latfarm_controller.campaigns.fusion.prior import rules_for
from latfarm_controller.campaigns.kernels.padding_results import PaddedTime, padded_sample, verdict
from latfarm_controller.campaigns.kernels.survey import PURPOSE as KERNEL
from latfarm_controller.campaigns.kernels.survey import SETTINGS, pooled
from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange, read_graphs
from latfarm_controller.campaigns.pads.bounds import (
    Bounds,
    Model,
    Sum,
    interval,
    needed,
    readings,
)
from latfarm_controller.campaigns.pads.models import (
    Padded,
    Separator,
    padded,
    padding_only,
)
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.prior import PriorSampler

PURPOSE = "padding"
"""The purpose, in the store, of padded and padding-only models."""


class PaddingOptions(CampaignOptions):
    """Configuration of a survey of kernels between pads.

    Attributes:
        graphs: the kernels, as graphs in JSON form.
        count: without `graphs`, how many kernels to draw as networks contain them.
        seed: random seed of the draw and of the order of measurements.
        families: names of the zoo families to draw from; empty: all that calibration may use.
        rules: fusion rules in JSON form; without them the usual rules hold.
        exclude: ids of kernels that must not be drawn.
        exclude_graphs: networks, in JSON form, whose kernels must not be drawn.
        bounds: how the cost of pads is bounded.
        repeats: how often every model is measured; with 1, padding-only models are measured twice,
            because many kernels share them and their repeats tell the noise.
        most_repeats: how often the models of a kernel are measured at most while noise makes its
            interval too wide.
        precision: largest part of an interval's half width that may come from noise, as a share of
            its middle, before its models are measured again.
        coverage: two-sided probability with which the noise lies within one kernel's interval.
        widest: largest half width of an interval as a share of its middle; wider ones are rejected.
        single: also measure the kernels alone: for those that cannot be padded, and to compare.
        profile: ask for layer times when kernels are measured alone for the first time.
        settings: changes of the measurement settings.
    """

    graphs: list[dict[str, Any]] = Field(default_factory=list)
    count: int = Field(default=450, ge=1)
    seed: int = 0
    families: list[str] = Field(default_factory=list)
    rules: dict[str, Any] | None = None
    exclude: list[str] = Field(default_factory=list)
    exclude_graphs: list[dict[str, Any]] = Field(default_factory=list)
    bounds: Bounds = "paper"
    repeats: int = Field(default=3, ge=1)
    most_repeats: int = Field(default=9, ge=1)
    precision: float = Field(default=0.1, gt=0)
    coverage: float = Field(default=0.98, gt=0, lt=1)
    widest: float = Field(default=0.5, gt=0)
    single: bool = True
    profile: bool = False
    settings: SettingsChange = SettingsChange()

    @model_validator(mode="after")
    def _repeats_fit(self) -> PaddingOptions:
        if self.most_repeats < self.repeats:
            raise ValueError(f"most_repeats {self.most_repeats} is below repeats {self.repeats}")
        return self


@dataclass(frozen=True)
class _Case:
    """A LUM with its padded model.

    Attributes:
        kernel: the LUM.
        model: its padded model; None where it has none.
        sums: what may be subtracted from the padded model's time.
        refused: why there is no padded model.
        separated: whether a separator stands between the pads and the LUM.
    """

    kernel: Kernel
    model: Padded | None = None
    sums: tuple[Sum, ...] = ()
    refused: str = ""
    separated: bool = False

    def models(self) -> set[Model]:
        """All padding-only models in its sums."""
        return {model for terms in self.sums for model in terms}


class PaddingCampaign(PlannedCampaign):
    """Measures kernels between pads, and the pads alone."""

    kind = "padding"
    stages = ("padding",)

    def __init__(
        self,
        platform: str,
        options: PaddingOptions,
        rules: FusionRules | None = None,
        alone: Sequence[KernelSample] = (),
    ) -> None:
        """A survey of the kernels that `options` names, or of those in `alone`.

        Args:
            platform: what is measured.
            options: the configuration.
            rules: fusion rules that are known already.
            alone: kernels whose times alone are known already.
        """
        super().__init__(platform)
        self._options = options
        self._settings = options.settings.apply(SETTINGS)
        self.rules = rules_for(self.kind, platform, rules, options.rules)
        self._given = [Kernel(graph) for graph in read_graphs(self.kind, "graphs", options.graphs)]
        self._known = {sample.kernel.kernel_id: sample for sample in alone}
        self._held_out = read_graphs(self.kind, "exclude_graphs", options.exclude_graphs)
        self.call_overhead_ms: float | None = None
        self._cases: dict[str, _Case] = {}
        self._graphs: dict[Model, Graph] = {}
        self._answers: dict[str, list[Measurement]] = {}
        self._alone: dict[str, list[Measurement]] = {}
        self._failed: dict[str, str] = {}
        self._asked = 0
        self._asks_profile = False
        self._board_ms = {"padding_only": 0.0, "padded": 0.0, "single": 0.0}

    def plan(self) -> Plan:
        """All models in several passes, each in another order; then those that are too noisy."""
        for kernel in self._kernels():
            case = self._case(kernel)
            self._cases[kernel.kernel_id] = case
            for pad, form in sorted(case.models(), key=repr):
                self._graphs.setdefault((pad, form), padding_only(pad, form))
        if self._options.single:
            yield from self._overhead()
        random = Random(self._options.seed)
        for number in range(self._options.repeats):
            self._asks_profile = self._options.profile and number == 0
            yield from self._pass(list(self._cases.values()), random, single=self._options.single)
        if self._options.repeats == 1:
            yield from self._pass(list(self._cases.values()), random, single=False, pads_only=True)
        for _ in range(self._options.repeats, self._options.most_repeats):
            noisy = self._noisy()
            if not noisy:
                break
            yield from self._pass(noisy, random, single=False)

    def _kernels(self) -> list[Kernel]:
        """The kernels to measure: those given, those known alone, or a draw."""
        options = self._options
        if self._given or self._known:
            return self._given or [sample.kernel for sample in self._known.values()]
        excluded = Excluded.of(self._held_out, self.rules, options.exclude)
        families = options.families or None
        task = SamplingTask(
            options.count, self.rules, excluded, seed=options.seed, families=families
        )
        return PriorSampler(task).next_batch([])

    def _case(self, kernel: Kernel) -> _Case:
        """A kernel's padded model; it has a separator only where the kernel fuses with a pad."""
        separators: tuple[Separator, ...] = ("", "MaxPool", "AveragePool")
        for separator in separators:
            try:
                model = padded(kernel, separator=separator)
                sums = needed(model.pads_in, model.pads_out, self._options.bounds)
            except GraphError as error:
                return _Case(kernel, refused=f"cannot be padded: {error}")
            if not model.fuses(self.rules):
                return _Case(kernel, model, sums, separated=bool(separator))
        return _Case(kernel, refused="fuses with a pad")

    def _overhead(self) -> Plan:
        requests = call_overhead.overhead_requests(self.asker)
        answers = yield Batch("padding", requests, 0, self._planned())
        self._asked += len(requests)
        self.call_overhead_ms = call_overhead.overhead_ms(answers.values())

    def _planned(self) -> int:
        """The number of measurements without further repeats of noisy models."""
        padded_models = sum(case.model is not None for case in self._cases.values())
        models = len(self._graphs) + padded_models
        if not self._options.single:
            return models * self._options.repeats
        return (models + len(self._cases)) * self._options.repeats + call_overhead.REPEATS

    def _pass(
        self, cases: Sequence[_Case], random: Random, *, single: bool, pads_only: bool = False
    ) -> Plan:
        """Measure each model of these cases once, in random order."""
        models = sorted({m for case in cases for m in case.models()}, key=repr)
        jobs = [(self._graphs[model], PURPOSE, "padding_only") for model in models]
        if not pads_only:
            jobs += [(c.model.graph, PURPOSE, "padded") for c in cases if c.model is not None]
        if single:
            jobs += [(case.kernel.graph, KERNEL, "single") for case in cases]
        jobs = [job for job in jobs if hash_of(job[0]) not in self._failed]
        random.shuffle(jobs)
        requests = [
            self.asker.request(
                graph,
                purpose,
                self._settings,
                label=label,
                profile=self._asks_profile and label == "single",
            )
            for graph, purpose, label in jobs
        ]
        total = max(self._planned(), self._asked + len(requests))
        answers = yield Batch("padding", requests, self._asked, total)
        self._asked += len(requests)
        for request in requests:
            answer = answers[request.request_id]
            self._board_ms[request.label] += answer.board_ms
            if answer.ok:
                found = self._alone if request.label == "single" else self._answers
                found.setdefault(hash_of(request.graph), []).append(answer)
            elif answer.outcome is Outcome.MODEL_ERROR:
                # Another try would fail in the same way: there is no further pass for it.
                self._failed[hash_of(request.graph)] = answer.error_message or answer.error_code

    def _noisy(self) -> list[_Case]:
        """Kernels whose interval is too wide because of noise, so that more repeats help."""
        times = {time.kernel.kernel_id: time.interval for time in self.times()}
        noisy = []
        for key, case in self._cases.items():
            found = times.get(key)
            if found is not None and found.noise_ms > self._options.precision * found.middle_ms:
                noisy.append(case)
        return noisy

    def times(self) -> list[PaddedTime]:
        """What padding says about each kernel so far, in the order in which they were drawn."""
        known = readings(
            {
                key: [m.latency_ms for m in found if m.latency_ms and isfinite(m.latency_ms)]
                for key, found in self._answers.items()
            }
        )
        table = {
            model: known[hash_of(graph)]
            for model, graph in self._graphs.items()
            if hash_of(graph) in known
        }
        result = []
        for case in self._cases.values():
            if case.model is None:
                result.append(PaddedTime(case.kernel, None, case.refused))
                continue
            keys = [hash_of(case.model.graph), *(hash_of(self._graphs[m]) for m in case.models())]
            errors = sorted(self._failed[key] for key in keys if key in self._failed)
            if errors or any(key not in known for key in keys):
                reason = f"model error: {errors[0]}" if errors else "not measured"
                result.append(PaddedTime(case.kernel, None, reason))
                continue
            coverage = self._options.coverage
            found = interval(known[keys[0]], case.sums, table, coverage)
            result.append(
                PaddedTime(
                    case.kernel,
                    found.clipped(),
                    verdict(found, self._options.widest),
                    case.separated,
                )
            )
        return result

    def samples(self) -> list[KernelSample]:
        """The best that is known about each kernel: its time between pads, otherwise that alone.

        The time alone includes moving data in and out. So a rejected, wide interval is still used
        where it ends below the time alone: it is closer to the truth, and its width becomes the
        sample's deviation.
        """
        overhead_ms = self.call_overhead_ms or 0.0
        alone = self.single()
        found = []
        for time in self.times():
            own = alone.get(time.kernel.kernel_id)
            limits = time.interval
            if limits is not None and limits.upper_ms > 0:
                longer = own is not None and own.latency_ms - overhead_ms > limits.upper_ms
                if not time.rejected or longer:
                    own = padded_sample(time.kernel, limits)
            if own is not None:
                found.append(own)
        return found

    def single(self) -> Mapping[str, KernelSample]:
        """The kernels measured alone, by id: the baseline that padding improves on."""
        found = dict(self._known)
        for key, case in self._cases.items():
            answers = [replace(m, layers=()) for m in self._alone.get(key, [])]
            sample = pooled(case.kernel, answers)
            if sample is not None:
                found[key] = sample
        return found

    def profiled(self) -> Mapping[str, KernelSample]:
        """The kernels measured alone, without what the profiler shows not to be theirs, by id."""
        found = {}
        for key, case in self._cases.items():
            sample = pooled(case.kernel, self._alone.get(key, []), self.call_overhead_ms or 0.0)
            if sample is not None and sample.insight == "profile":
                found[key] = sample
        return found

    def outcome(self) -> Mapping[str, Any]:
        """Each kernel's interval or why it has none, the number of models, the boards' time."""
        times = self.times()
        reasons: dict[str, int] = {}
        for time in times:
            if time.rejected:
                reason = time.rejected.partition(":")[0]
                reasons[reason] = reasons.get(reason, 0) + 1
        known = {} if self.call_overhead_ms is None else {"call_overhead_ms": self.call_overhead_ms}
        beside = (("single", self.single()), ("profile", self.profiled()))
        best = {sample.kernel.kernel_id: sample.insight for sample in self.samples()}
        return {
            **known,
            "rules": self.rules.to_json(),
            "kernels": len(times),
            "padded": sum(not time.rejected for time in times),
            "rejected": dict(sorted(reasons.items())),
            "padding_only_models": len(self._graphs),
            "measurements": self._asked,
            "board_ms": dict(self._board_ms),
            "times": {
                key: {
                    **time.to_json(),
                    "insight": best.get(key),
                    **{
                        name: {
                            "latency_ms": found[key].latency_ms,
                            "mad_ms": found[key].mad_ms,
                        }
                        for name, found in beside
                        if key in found
                    },
                }
                for time in times
                for key in (time.kernel.kernel_id,)
            },
        }
