"""Kernel survey: a sampler chooses kernels, and each is measured alone at several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from random import Random
from statistics import median
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, Settings
from latfarm_predictors.samples import KernelSample, without_call

from latfarm_controller.campaigns import call_overhead
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.energy import TRIES, energy_story
from latfarm_controller.campaigns.fusion.prior import rules_for
from latfarm_controller.campaigns.kernels.survey_options import KernelOptions
from latfarm_controller.campaigns.options import read_graphs
from latfarm_controller.campaigns.plans import Answers, Batch, Plan, PlannedCampaign
from latfarm_controller.campaigns.profiles.insight import layout_share, sample_of
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.by_name import make_sampler
from latfarm_controller.campaigns.sampling.judge import REGRESSORS, Judge
from latfarm_controller.campaigns.sampling.nn_meter import initial_count
from latfarm_controller.campaigns.sampling.sibling import sibling_of
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.campaigns.sentinels import (
    drift_of,
    interleave,
    sentinel_kernel,
    void_shifts,
)

__all__ = ["PURPOSE", "SETTINGS", "KernelCampaign", "KernelOptions", "pooled"]

SETTINGS = Settings(
    sessions=1, warmup_runs=3, warmup_ms=20.0, min_runs=8, max_runs=200, max_ms=80.0, cold_runs=3
)
"""How kernels are measured: one short session in each pass."""
PURPOSE = "kernel"
"""The purpose, in the store, of kernels measured alone."""
LEAST_SPREAD = 0.02
"""Median absolute deviation of a kernel's runs, as a share of their median, from which another
measurement may tell more: `unstable` begins here."""
WIDE_SPREAD = 1.5
"""A spread counts as wide from so many times that of the typical kernel of the survey."""


def pooled(
    kernel: Kernel, passes: Sequence[Measurement], overhead_ms: float = 0.0
) -> KernelSample | None:
    """One sample from a kernel's good measurements: medians over the passes; None without any.

    The deviation is the larger of two: that within the passes, and that between them.

    Args:
        kernel: what was measured.
        passes: all its measurements.
        overhead_ms: latency of an empty model.
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
    """Measures the kernels that a sampler chooses."""

    kind = "kernels"
    stages: tuple[str, ...] = ("kernels",)

    def __init__(
        self,
        platform: str,
        options: KernelOptions,
        rules: FusionRules | None = None,
        *,
        known: Sequence[KernelSample] = (),
        affords: Callable[[], float] | None = None,
    ) -> None:
        """A survey of the kernels that the sampler chooses.

        Args:
            platform: what is measured.
            options: the configuration.
            rules: fusion rules that are known already.
            known: kernels that were measured before, by other means; the sampler sees them.
            affords: how many more kernels may be measured, besides what `options` say; None: any
                number.
        """
        super().__init__(platform)
        self._known = list(known)
        self._affords = affords
        self._options = options
        self._settings = options.settings.apply(SETTINGS)
        # Within a characterisation, the rules and the call's cost are known already.
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
        """The sampler's batches, in parts if a target or the boards' time may end the survey."""
        options = self._options
        task = SamplingTask(
            options.count,
            self.rules,
            self._excluded,
            seed=options.seed,
            families=options.families or None,
            initial=initial_count(options.count, options.initial, options.prior_share),
            batch=options.batch,
            known=[sample.kernel for sample in self._known],
        )
        sampler = make_sampler(
            options.sampler,
            task,
            target=options.target,
            guide=options.guide,
            sibling=self._sibling,
        )
        limits = (options.target, options.board_minutes, self._affords)
        parted = any(limit is not None for limit in limits)
        while kernels := sampler.next_batch(self._shown()):
            left = kernels
            while left:
                size = min(options.batch, self._affordable()) if parted else len(left)
                if size == 0 or self._is_accurate():
                    self._stopped = "target" if size else self._spent_first()
                    return
                yield left[:size]
                left = left[size:]
        self._stopped = "target" if self._is_accurate() else "count"

    def _shown(self) -> list[KernelSample]:
        """The samples that the sampler may see, without the call, as those that are known."""
        samples = self._own_times()
        shown = samples if self._options.target is None else self._judge.shown(samples)
        return [*self._known, *shown]

    def _is_accurate(self) -> bool:
        """Whether there is a target, and the kernels kept back show that it is reached."""
        target = self._options.target
        judged = None if target is None else self._judge.judged(self._own_times())
        return target is not None and judged is not None and judged.shows(target)

    def _own_times(self) -> list[KernelSample]:
        """What is known about each kernel without the call, as a predictor predicts it."""
        call_ms = self.call_overhead_ms or 0.0
        return [without_call(sample, call_ms) for sample in self.samples()]

    def _accuracy(self) -> dict[str, float | int | None]:
        """How well the kernels kept back are predicted, for the outcome; empty without a target."""
        if self._options.target is None:
            return {}
        judged = self._judge.judged(self._own_times())
        if judged is None:
            return {"accuracy": None, "judged": 0}
        return {"accuracy": judged.share, "judged": judged.count}

    def _affordable(self) -> int:
        """How many more kernels the boards have time for, at the average cost so far."""
        allowed = self._options.count
        if self._affords is not None:
            allowed = max(0, int(min(allowed, self._affords())))
        if self._options.board_minutes is None:
            return allowed
        left_ms = self._options.board_minutes * 60_000 - self._board_ms
        if left_ms <= 0:
            return 0
        if not self._kernels:
            return allowed
        return min(allowed, int(left_ms * len(self._kernels) / max(self._board_ms, 1e-9)))

    def _spent_first(self) -> str:
        """What was spent first: the time for kernels, or the budget of all stages together."""
        spent = self._affords is not None and self._affords() < 1
        return "budget" if spent else "board_minutes"

    def plan(self) -> Plan:
        """The sampler's batches, each in several passes; then the void windows once more."""
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
                # Each pass has another order, so that a kernel's passes do not share their drift.
                order = [k for k in kernels if k.kernel_id not in self._failed]
                random.shuffle(order)
                yield from self._measure(order, profile=self._options.profile and number == 0)
        yield from self._measure_spread()
        yield from self._measure_again()

    def _measure_spread(self) -> Plan:
        """Measure the kernels once more whose runs spread most, if the configuration says so."""
        most = int(self._options.repeat_share * len(self._answers))
        spreads = {
            key: (found[0].mad_ms or 0.0) / (found[0].latency_ms or 1.0)
            for key, found in self._answers.items()
            if found
        }
        if not most or not spreads:
            return
        limit = max(LEAST_SPREAD, WIDE_SPREAD * median(spreads.values()))
        wide = sorted((k for k in spreads if spreads[k] > limit), key=lambda k: -spreads[k])
        if wide:
            yield from self._measure([self._kernels[key] for key in wide[:most]])

    def _overhead(self) -> Plan:
        requests = call_overhead.overhead_requests(self.asker)
        answers = yield Batch("kernels", requests, 0, self._planned())
        self._asked += len(requests)
        self._board_ms += sum(m.board_ms for m in answers.values())
        self.call_overhead_ms = call_overhead.overhead_ms(answers.values())

    def _energy_overhead(self) -> Plan:
        """The energy of a call, and whether this platform can measure energies at all."""
        requests = [
            self.asker.request(graph, SENTINEL, self._settings, label=f"energy of {graph.name}")
            for graph in (call_overhead.empty_model(), self._sentinel)
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
            # There is no power rail, or it is too coarse: more time of the boards would not help.
            self._settings = replace(self._settings, energy_ms=0.0)

    def _planned(self) -> int:
        """The number of measurements, without those that drift makes necessary."""
        kernels = self._options.count * self._options.passes
        sentinels = kernels // self._options.sentinel_every + 2 * self._options.passes
        energy = 2 * TRIES if self._energy_answers or self._settings.energy_ms else 0
        overhead = call_overhead.REPEATS if self._measures_overhead else 0
        return kernels + sentinels + energy + overhead

    def _measure(self, kernels: Sequence[Kernel], *, profile: bool = False) -> Plan:
        """Measure each kernel once, with sentinels in between."""
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
        """Keep the answers of one pass."""
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
                # Another try would fail in the same way: there is no further pass for it.
                self._failed[key] = answer.error_message or answer.error_code
            else:
                self._answers.setdefault(key, [])

    def _measure_again(self) -> Plan:
        """Repeat the measurements in void windows, those with the largest shift first."""
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
        """Whether energies were asked for, and the platform could not measure them."""
        return bool(self._energy_answers) and not self._settings.energy_ms

    def samples(self) -> list[KernelSample]:
        """What is known about each kernel, in the order in which they were drawn."""
        void = set(self._void)
        found = []
        for key, kernel in self._kernels.items():
            answers = self._answers.get(key, [])
            # A void measurement is used if no other succeeded: better a drifted time than none.
            kept = [m for m in answers if m.request_id not in void] or answers
            sample = pooled(kernel, kept, self.call_overhead_ms or 0.0)
            if sample is not None:
                found.append(sample)
        return found

    def outcome(self) -> Mapping[str, Any]:
        """Counts by kernel type, failures, drift, and the measurements that drift made void."""
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
            **self._accuracy(),
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
