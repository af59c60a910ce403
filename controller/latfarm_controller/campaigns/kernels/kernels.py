"""Kernel survey: times of kernels as networks contain them, each measured at different times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from random import Random
from statistics import median
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, Settings
from latfarm_predictors.samples import KernelSample
from pydantic import Field, model_validator

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.cases import empty_model
from latfarm_controller.campaigns.fusion.fusion import OVERHEAD_REPEATS
from latfarm_controller.campaigns.fusion.fusion import SETTINGS as FUSION_SETTINGS
from latfarm_controller.campaigns.fusion.prior import rules_for
from latfarm_controller.campaigns.networks.energy import TRIES, energy_story
from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange, read_graphs
from latfarm_controller.campaigns.plans import Answers, Batch, Plan, PlannedCampaign
from latfarm_controller.campaigns.profiles.insight import layout_share, sample_of
from latfarm_controller.campaigns.sampling.latfarm import Guide
from latfarm_controller.campaigns.sampling.samplers import Excluded
from latfarm_controller.campaigns.sampling.sampling import (
    REGRESSORS,
    Judge,
    SamplerName,
    make_sampler,
)
from latfarm_controller.campaigns.sampling.sibling import StartedFrom, sibling_of
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.campaigns.sentinels import (
    drift_of,
    interleave,
    sentinel_kernel,
    void_shifts,
)

SETTINGS = Settings(
    sessions=1, warmup_runs=3, warmup_ms=20.0, min_runs=8, max_runs=200, max_ms=80.0, cold_runs=3
)
PURPOSE = "kernel"


class KernelOptions(CampaignOptions):
    """Configuration of a kernel survey.

    `exclude` holds ids of kernels that must not be measured, `exclude_graphs` networks (as JSON)
    none of whose kernels may be. `rules` are fusion rules as JSON; without them the usual ones of
    convolutional runtimes hold. `remeasure` caps the share of measurements asked again for drift.
    `profile` asks for layer times in the first pass, where the platform is known to give them.

    The budget is `count` kernels and, where given, `board_minutes` of the boards' time. With a
    `target` the survey also ends as soon as that share of the kernels kept back (`held_out` of
    them, which no sampler is shown) is predicted within 10 %. `families` are those that samplers
    draw from; `random` and `annette` draw from none. `guide` says what `latfarm` picks layers of
    networks by, and `started_from` names a sibling board's bundle that it starts from.
    """

    count: int = Field(default=450, ge=1)
    passes: int = Field(default=2, ge=1)
    seed: int = 0
    sampler: SamplerName = "prior"
    guide: Guide = "variance"
    started_from: StartedFrom | None = None
    board_minutes: float | None = Field(default=None, gt=0)
    target: float | None = Field(default=None, gt=0, le=1)
    held_out: float = Field(default=0.2, gt=0, lt=1)
    initial: int = Field(default=100, ge=1)
    batch: int = Field(default=50, ge=2)
    families: list[str] = Field(default_factory=list)
    rules: dict[str, Any] | None = None
    exclude: list[str] = Field(default_factory=list)
    exclude_graphs: list[dict[str, Any]] = Field(default_factory=list)
    sentinel_every: int = Field(default=10, ge=1)
    remeasure: float = Field(default=0.25, ge=0, le=1)
    profile: bool = False
    settings: SettingsChange = SettingsChange()

    @model_validator(mode="after")
    def _counts_fit(self) -> KernelOptions:
        if self.sampler in ("adaptive", "latfarm", "nn-meter") and self.initial > self.count:
            raise ValueError(f"initial {self.initial} exceeds count {self.count}")
        if self.families and self.sampler in ("random", "annette"):
            raise ValueError(f"sampler {self.sampler!r} draws from no families")
        if self.started_from is not None and self.sampler not in ("adaptive", "latfarm"):
            raise ValueError(f"sampler {self.sampler!r} starts from no bundle; 'latfarm' does")
        return self


def pooled(
    kernel: Kernel, passes: Sequence[Measurement], overhead_ms: float = 0.0
) -> KernelSample | None:
    """One sample of a kernel's good measurements: medians over the passes; None without any.

    The deviation is the larger of the passes' own and of what lies between them.
    """
    good = [m for m in passes if m.ok and m.latency_ms is not None]
    if not good:
        return None
    share = layout_share(good, overhead_ms)
    samples = [sample_of(kernel, m, overhead_ms, share) for m in good]
    middle = median(s.latency_ms for s in samples)
    own = median(s.mad_ms for s in samples)
    between = median(abs(s.latency_ms - middle) for s in samples)
    cold = [s.cold_ms for s in samples if s.cold_ms is not None]
    return replace(
        samples[0],
        latency_ms=middle,
        mad_ms=max(own, between),
        cold_ms=median(cold) if cold else None,
    )


class KernelCampaign(PlannedCampaign):
    """Measures the kernels that a sampler asks for."""

    kind = "kernels"
    stages: tuple[str, ...] = ("kernels",)

    def __init__(
        self, platform: str, options: KernelOptions, rules: FusionRules | None = None
    ) -> None:
        super().__init__(platform)
        self._options = options
        self._settings = options.settings.apply(SETTINGS)
        # Within a characterisation the call's cost is known already, as are the rules.
        self._measures_overhead = rules is None
        self.call_overhead_ms: float | None = None
        self.call_overhead_mj: float | None = None
        self._energy_answers: list[Measurement] = []
        self.rules = rules_for(self.kind, platform, rules, options.rules)
        self._held_out = read_graphs(self.kind, "exclude_graphs", options.exclude_graphs)
        self._sentinel = sentinel_kernel()
        self._sentinels: list[Measurement] = []
        self._kernels: dict[str, Kernel] = {}
        self._answers: dict[str, list[Measurement]] = {}
        self._failed: dict[str, str] = {}
        self._void: list[str] = []
        self._excluded = Excluded()
        self._asked = 0
        self._reasked = 0
        self._board_ms = 0.0
        self._stopped = ""
        self._sibling = sibling_of(options.started_from, platform)
        self._judge = Judge(options.held_out, REGRESSORS[options.sampler], self._sibling)

    def _batches(self) -> Iterator[Sequence[Kernel]]:
        """The sampler's batches, in parts where a target or the boards' time may end them."""
        options = self._options
        sampler = make_sampler(
            options.sampler,
            options.count,
            self.rules,
            self._excluded,
            seed=options.seed,
            families=options.families or None,
            initial=options.initial,
            batch=options.batch,
            target=options.target,
            guide=options.guide,
            sibling=self._sibling,
        )
        parted = options.target is not None or options.board_minutes is not None
        while kernels := sampler.next_batch(self._shown()):
            left = kernels
            while left:
                size = min(options.batch, self._affordable()) if parted else len(left)
                if size == 0 or self._is_accurate():
                    self._stopped = "target" if size else "board_minutes"
                    return
                yield left[:size]
                left = left[size:]
        self._stopped = "target" if self._is_accurate() else "count"

    def _shown(self) -> list[KernelSample]:
        samples = self.samples()
        return samples if self._options.target is None else self._judge.shown(samples)

    def _is_accurate(self) -> bool:
        target = self._options.target
        reached = None if target is None else self._judge.accuracy(self.samples())
        return target is not None and reached is not None and reached >= target

    def _affordable(self) -> int:
        """How many kernels the boards have time for, at what one has cost so far."""
        if self._options.board_minutes is None:
            return self._options.count
        left_ms = self._options.board_minutes * 60_000 - self._board_ms
        if left_ms <= 0:
            return 0
        if not self._kernels:
            return self._options.count
        return int(left_ms * len(self._kernels) / max(self._board_ms, 1e-9))

    def plan(self) -> Plan:
        """The sampler's batches, each in as many passes; then the void windows once more."""
        self._excluded = Excluded.of(self._held_out, self.rules, self._options.exclude)
        if self._measures_overhead:
            yield from self._overhead()
        if self._settings.energy_ms:
            yield from self._energy_overhead()
        random = Random(self._options.seed)
        for kernels in self._batches():
            for kernel in kernels:
                self._kernels[kernel.kernel_id] = kernel
            for number in range(self._options.passes):
                # Another order in each pass: neighbours in time differ, and so does their drift.
                order = [k for k in kernels if k.kernel_id not in self._failed]
                random.shuffle(order)
                yield from self._measure(order, profile=self._options.profile and number == 0)
        yield from self._measure_again()

    def _overhead(self) -> Plan:
        empty = empty_model()
        requests = [
            self.asker.request(empty, "fusion", FUSION_SETTINGS, label="empty")
            for _ in range(OVERHEAD_REPEATS)
        ]
        answers = yield Batch("kernels", requests, 0, self._planned())
        self._asked += len(requests)
        self._board_ms += sum(m.board_ms for m in answers.values())
        times = [m.latency_ms for m in answers.values() if m.latency_ms is not None and m.ok]
        self.call_overhead_ms = median(times) if times else 0.0

    def _energy_overhead(self) -> Plan:
        """What a call takes, and whether this platform tells energies at all."""
        requests = [
            self.asker.request(graph, SENTINEL, self._settings, label=f"energy of {graph.name}")
            for graph in (empty_model(), self._sentinel)
            for _ in range(TRIES)
        ]
        answers = yield Batch("kernels", requests, self._asked, self._planned())
        self._asked += len(requests)
        found = [answers[request.request_id] for request in requests]
        self._board_ms += sum(m.board_ms for m in found)
        energies = [m.energy_mj for m in found[:TRIES] if m.energy_mj is not None]
        self.call_overhead_mj = median(energies) if energies else None
        self._energy_answers += found
        if all(m.energy_mj is None for m in found[TRIES:]):
            # No rail, or one that is too coarse: more of the boards' time would tell no more.
            self._settings = replace(self._settings, energy_ms=0.0)

    def _planned(self) -> int:
        kernels = self._options.count * self._options.passes
        sentinels = kernels // self._options.sentinel_every + 2 * self._options.passes
        energy = 2 * TRIES if self._energy_answers or self._settings.energy_ms else 0
        overhead = OVERHEAD_REPEATS if self._measures_overhead else 0
        return kernels + sentinels + energy + overhead

    def _measure(self, kernels: Sequence[Kernel], *, profile: bool = False) -> Plan:
        own = [
            self.asker.request(k.graph, PURPOSE, self._settings, label=k.type, profile=profile)
            for k in kernels
        ]
        requests = interleave(own, self._sentinel_requests(), self._options.sentinel_every)
        total = self._planned() if not self._reasked else self._asked + len(requests)
        answers = yield Batch("kernels", requests, self._asked, total)
        self._asked += len(requests)
        self._take(requests, answers)

    def _sentinel_requests(self) -> Iterator[MeasurementRequest]:
        settings = replace(self._settings, energy_ms=0.0)
        for _ in repeat(None):
            yield self.asker.request(self._sentinel, SENTINEL, settings, label="sentinel")

    def _take(self, requests: Sequence[MeasurementRequest], answers: Answers) -> None:
        for request in requests:
            answer = answers[request.request_id]
            self._board_ms += answer.board_ms
            if request.purpose == SENTINEL:
                self._sentinels.append(answer)
                continue
            key = hash_of(request.graph)
            if request.settings.energy_ms:
                self._energy_answers.append(answer)
            if answer.ok:
                self._answers.setdefault(key, []).append(answer)
            elif answer.outcome is Outcome.MODEL_ERROR:
                # Another try gives the same: no further pass for it.
                self._failed[key] = answer.error_message or answer.error_code
            else:
                self._answers.setdefault(key, [])

    def _measure_again(self) -> Plan:
        measured = {
            answer.request_id: (key, answer)
            for key, answers in self._answers.items()
            for answer in answers
        }
        shifts = void_shifts(self._sentinels, [answer for _, answer in measured.values()])
        worst = sorted(shifts, key=lambda request_id: -shifts[request_id])
        self._void = worst[: int(self._options.remeasure * len(measured))]
        self._reasked = len(self._void)
        if self._void:
            yield from self._measure([self._kernels[measured[i][0]] for i in self._void])

    @property
    def told_no_energy(self) -> bool:
        """Whether energies were asked for, and the platform had none to tell."""
        return bool(self._energy_answers) and not self._settings.energy_ms

    def samples(self) -> list[KernelSample]:
        """What is known of each kernel, in the order in which they were drawn."""
        void = set(self._void)
        found = []
        for key, kernel in self._kernels.items():
            answers = self._answers.get(key, [])
            # A void measurement is only replaced by a good one: better a drifted time than none.
            kept = [m for m in answers if m.request_id not in void] or answers
            sample = pooled(kernel, kept, self.call_overhead_ms or 0.0)
            if sample is not None:
                found.append(sample)
        return found

    def outcome(self) -> Mapping[str, Any]:
        """Counts by kernel type, failures, drift and what it voided."""
        types: dict[str, int] = {}
        samples = self.samples()
        for sample in samples:
            types[sample.kernel.type] = types.get(sample.kernel.type, 0) + 1
        known: dict[str, Any] = {}
        if self.call_overhead_ms is not None:
            known["call_overhead_ms"] = self.call_overhead_ms
        if self._energy_answers:
            known["call_overhead_mj"] = self.call_overhead_mj
            known["energy"] = energy_story(self._energy_answers)
        if self._options.started_from is not None:
            known["started_from"] = self._options.started_from.to_json()
        return {
            **known,
            "rules": self.rules.to_json(),
            "kernels": len(samples),
            "board_ms": self._board_ms,
            "stopped": self._stopped,
            **({} if self._options.target is None else {"accuracy": self._judge.accuracy(samples)}),
            "drawn": len(self._kernels),
            "types": dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
            "excluded": len(self._excluded.ids),
            "failed": {
                key: {"type": self._kernels[key].type, "error": error}
                for key, error in self._failed.items()
            },
            "sentinel": [d.to_json() for d in drift_of(self._sentinels)],
            "void": list(self._void),
            "measured_again": self._reasked,
        }
