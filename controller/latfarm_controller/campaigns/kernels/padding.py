"""Smart padding: times of kernels inside networks, without a profiler (Wess et al. 2024, III-B).

Algorithm 1 of the paper: padding-only models of every needed shape make a look-up table, then each
layer under measurement (LUM) is timed between pads, and the pads' time is taken off. The data's way
in and out, which a kernel alone pays for in full, cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from random import Random
from statistics import median
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.samples import KernelSample
from pydantic import Field, model_validator

from latfarm_controller.campaigns.fusion.cases import empty_model
from latfarm_controller.campaigns.fusion.fusion import OVERHEAD_REPEATS
from latfarm_controller.campaigns.fusion.fusion import SETTINGS as FUSION_SETTINGS
from latfarm_controller.campaigns.fusion.prior import rules_for
from latfarm_controller.campaigns.kernels.kernels import PURPOSE as KERNEL
from latfarm_controller.campaigns.kernels.kernels import SETTINGS, pooled
from latfarm_controller.campaigns.kernels.padding_results import PaddedTime, padded_sample, verdict
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
from latfarm_controller.campaigns.sampling.samplers import Excluded, PriorSampler

PURPOSE = "padding"


class PaddingOptions(CampaignOptions):
    """Configuration of a padded survey.

    `graphs` are the kernels as JSON; without any, `count` of them are drawn as networks have them.
    Every model is measured `repeats` times, those of a kernel up to `most_repeats` times while
    noise makes its interval wider than `precision` either way. `coverage`: of noise, for one
    kernel. `widest`: an interval that reaches further than this share either way is rejected.
    `single`: kernels are measured alone too, for what cannot be padded and to compare; `profile`:
    at the first time with layer times, so that the profiler's word stands beside both.
    """

    graphs: list[dict[str, Any]] = Field(default_factory=list)
    count: int = Field(default=450, ge=1)
    seed: int = 0
    families: list[str] = Field(default_factory=list)
    rules: dict[str, Any] | None = None
    exclude: list[str] = Field(default_factory=list)
    exclude_graphs: list[dict[str, Any]] = Field(default_factory=list)
    bounds: Bounds = "paper"
    repeats: int = Field(default=3, ge=2)
    most_repeats: int = Field(default=9, ge=2)
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
    """A LUM with its padded model, or the reason for which it has none."""

    kernel: Kernel
    model: Padded | None = None
    sums: tuple[Sum, ...] = ()
    refused: str = ""
    separated: bool = False

    def models(self) -> set[Model]:
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
        """A survey of what `options` name, or of kernels whose times alone are known already."""
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
        """All models in as many passes, each in another order; then what is too noisy yet."""
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
        for _ in range(self._options.repeats, self._options.most_repeats):
            noisy = self._noisy()
            if not noisy:
                break
            yield from self._pass(noisy, random, single=False)

    def _kernels(self) -> list[Kernel]:
        options = self._options
        if self._given or self._known:
            return self._given or [sample.kernel for sample in self._known.values()]
        excluded = Excluded.of(self._held_out, self.rules, options.exclude)
        families = options.families or None
        sampler = PriorSampler(
            options.count, self.rules, excluded, seed=options.seed, families=families
        )
        return sampler.next_batch([])

    def _case(self, kernel: Kernel) -> _Case:
        """Between plain pads, as the paper; behind a separator where it would join the pad."""
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
        empty = empty_model()
        requests = [
            self.asker.request(empty, "fusion", FUSION_SETTINGS, label="empty")
            for _ in range(OVERHEAD_REPEATS)
        ]
        answers = yield Batch("padding", requests, 0, self._planned())
        self._asked += len(requests)
        times = [m.latency_ms for m in answers.values() if m.latency_ms is not None and m.ok]
        self.call_overhead_ms = median(times) if times else 0.0

    def _planned(self) -> int:
        padded_models = sum(case.model is not None for case in self._cases.values())
        models = len(self._graphs) + padded_models
        if not self._options.single:
            return models * self._options.repeats
        return (models + len(self._cases)) * self._options.repeats + OVERHEAD_REPEATS

    def _pass(self, cases: Sequence[_Case], random: Random, *, single: bool) -> Plan:
        """Each model of `cases` once."""
        models = sorted({m for case in cases for m in case.models()}, key=repr)
        jobs = [(self._graphs[model], PURPOSE, "padding_only") for model in models]
        jobs += [(case.model.graph, PURPOSE, "padded") for case in cases if case.model is not None]
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
                # Another try gives the same: no further pass for it.
                self._failed[hash_of(request.graph)] = answer.error_message or answer.error_code

    def _noisy(self) -> list[_Case]:
        """Kernels whose interval more repeats would make good use of."""
        times = {time.kernel.kernel_id: time.interval for time in self.times()}
        noisy = []
        for key, case in self._cases.items():
            found = times.get(key)
            if found is not None and found.noise_ms > self._options.precision * found.middle_ms:
                noisy.append(case)
        return noisy

    def times(self) -> list[PaddedTime]:
        """What padding says of each kernel so far, in the order in which they were drawn."""
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
        """The best that is known of each kernel: padded, else measured alone.

        Alone it takes its own time and the data's way in and out. A wide interval that ends below
        that time is nearer to the truth, and its width tells how little is known.
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
        """Kernels measured alone, by id: the baseline that padding improves on."""
        found = dict(self._known)
        for key, case in self._cases.items():
            answers = [replace(m, layers=()) for m in self._alone.get(key, [])]
            sample = pooled(case.kernel, answers)
            if sample is not None:
                found[key] = sample
        return found

    def profiled(self) -> Mapping[str, KernelSample]:
        """The same freed of what the profiler shows to be none of theirs, where it was asked."""
        found = {}
        for key, case in self._cases.items():
            sample = pooled(case.kernel, self._alone.get(key, []), self.call_overhead_ms or 0.0)
            if sample is not None and sample.insight == "profile":
                found[key] = sample
        return found

    def outcome(self) -> Mapping[str, Any]:
        """Each kernel's interval or why it has none; how many models that took, and what time."""
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
