"""Fusion detection: which pairs of ops a runtime executes as one kernel (nn-Meter, section 4).

A round measures, for every open pair, Op1, (Op1, Op2) and Op2 next to each other, so that a slow
drift of the board hits all three alike; pairs that the spread leaves open get further rounds. Where
the runtime can profile, the layers that it really ran are the truth, and the black-box answers are
scored against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.fusion import FusionRules
from latfarm_predictors.graph import Graph
from latfarm_predictors.measurement import Measurement, Outcome, Settings
from pydantic import Field

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion_cases import (
    CORE_PAIRS,
    WINDOWED,
    JoinCase,
    PairCase,
    all_pairs,
    control_model,
    empty_model,
    pair_case,
)
from latfarm_controller.campaigns.fusion_connections import (
    Connection,
    choose_fork,
    choose_join,
    join_connection,
)
from latfarm_controller.campaigns.fusion_decision import (
    Answer,
    Decision,
    Triple,
    decide,
    prior_log_odds,
    profile_says_fused,
    work_layers,
)
from latfarm_controller.campaigns.fusion_operators import SIZES
from latfarm_controller.campaigns.fusion_results import PairResult, combined, score
from latfarm_controller.campaigns.options import Options, SettingsChange
from latfarm_controller.campaigns.plans import Answers, Batch, Plan, PlannedCampaign
from latfarm_controller.errors import UsageError

SETTINGS = Settings(
    sessions=1, warmup_runs=3, warmup_ms=5.0, min_runs=10, max_runs=100, max_ms=40.0, precision=0.01
)
PURPOSE = "fusion"
OVERHEAD_REPEATS = 5


class FusionOptions(Options):
    """Configuration of fusion detection.

    `pairs`: "core", "all", or pairs of operator names. `undecided`: how a pair that neither profile
    nor times settle is used for splitting: by the larger likelihood, or always fused, or separate.
    """

    pairs: Literal["core", "all"] | list[tuple[str, str]] = "core"
    sizes: list[Literal["small", "large"]] = Field(default=["small", "large"], min_length=1)
    rounds: int = Field(default=3, ge=2)
    max_rounds: int = Field(default=6, ge=2)
    alpha: float = Field(default=0.5, gt=0, lt=1)
    gate: float = Field(default=5.0, gt=0)
    sureness: float = Field(default=2.0, gt=0)
    undecided: Literal["likelihood", "fuse", "separate"] = "likelihood"
    profile: bool = True
    settings: SettingsChange = SettingsChange()


@dataclass
class _Case:
    case: PairCase
    triples: list[Triple] = field(default_factory=list)
    error: str = ""

    def decision(self, options: FusionOptions) -> Decision:
        return decide(
            self.triples, alpha=options.alpha, gate=options.gate, sureness=options.sureness
        )

    def worth_repeating(self, options: FusionOptions) -> bool:
        """Whether the rounds that are left could settle it: errors shrink with their root."""
        if self.error or len(self.triples) >= options.max_rounds:
            return False
        found = self.decision(options)
        if found.answer != "undecided":
            return False
        if found.rounds < 2:
            return True
        hope = math.sqrt(options.max_rounds / found.rounds)
        return found.base_ms * hope > options.gate * found.connected_spread_ms


@dataclass(frozen=True)
class _Slot:
    """The request ids of a case's triple in a round."""

    case: _Case
    first: str
    second: str
    connected: str
    empty: str


class FusionCampaign(PlannedCampaign):
    """Finds the fusion rules of a platform and the cost of a call."""

    kind = "fusion"
    stages = ("overhead", "fusion")

    def __init__(self, platform: str, options: FusionOptions) -> None:
        super().__init__(platform)
        self._options = options
        self._settings = options.settings.apply(SETTINGS)
        names = options.pairs
        if names == "core":
            pairs: Sequence[tuple[str, str]] = CORE_PAIRS
        elif names == "all":
            pairs = all_pairs()
        else:
            pairs = names
        try:
            self._cases = [
                _Case(pair_case(first, second, size))
                for size in options.sizes
                for first, second in pairs
            ]
        except GraphError as error:
            raise UsageError(f"campaign fusion: key 'pairs': {error}") from error
        self._empty = empty_model()
        self._empties: list[float] = []
        self._truth: dict[tuple[str, str], bool] = {}
        self._profiled: Literal["off", "unavailable", "opaque", "yes"] = "off"
        self._join: Connection | None = None
        self._fork: Connection | None = None
        self._asked = 0

    @property
    def call_overhead_ms(self) -> float:
        """Time of the empty model: what a call costs before any op."""
        return median(self._empties) if self._empties else 0.0

    @property
    def profiles(self) -> bool:
        """Whether the runtime's profiler shows single layers."""
        return self._profiled == "yes"

    def plan(self) -> Plan:
        """The empty model, profiles, rounds of triples, then a join and a fork."""
        requests = [self._ask(self._empty, "empty") for _ in range(OVERHEAD_REPEATS)]
        answers = yield Batch("overhead", requests, 0, len(requests))
        self._empties += _times(requests, answers)
        if self._options.profile:
            yield from self._profiles()
        for number in range(self._options.max_rounds):
            if number < self._options.rounds:
                # Where a profile has told the truth, times only serve to be scored against it.
                cases = [
                    c
                    for c in self._cases
                    if not c.error and (number < 2 or c.case.rule not in self._truth)
                ]
            else:
                # More rounds only serve where no profile has settled the pair.
                cases = [
                    c
                    for c in self._cases
                    if c.case.rule not in self._truth and c.worth_repeating(self._options)
                ]
            if not cases:
                break
            requests, slots = self._round(cases)
            left = max(0, self._options.rounds - number)
            answers = yield self._next(requests, len(requests) * max(1, left))
            self._empties += _times(
                [r for r in requests if r.graph.hash == self._empty.hash], answers
            )
            for slot in slots:
                self._take(slot, answers)
        yield from self._connections()

    def _ask(self, graph: Graph, label: str, *, profile: bool = False) -> MeasurementRequest:
        return self.asker.request(graph, PURPOSE, self._settings, label=label, profile=profile)

    def _next(self, requests: Sequence[MeasurementRequest], left: int) -> Batch:
        batch = Batch("fusion", requests, self._asked, self._asked + max(left, len(requests)))
        self._asked += len({r.request_id for r in requests})
        return batch

    def _round(self, cases: Sequence[_Case]) -> tuple[list[MeasurementRequest], list[_Slot]]:
        requests: list[MeasurementRequest] = []
        slots: list[_Slot] = []

        def ask(graph: Graph, label: str) -> str:
            requests.append(self._ask(graph, label))
            return requests[-1].request_id

        empty = ""
        first = ""
        last: PairCase | None = None
        shared = 0
        for entry in cases:
            case = entry.case
            if last is None or case.size_name != last.size_name:
                empty = ask(self._empty, "empty")
            # Op1 is measured anew every three pairs: near in time, yet not once for each.
            if (
                last is None
                or shared == 3
                or (case.first.name, case.size_name) != (last.first.name, last.size_name)
            ):
                first = ask(case.single_first, f"{case.first.name}@{case.size_name}")
                shared = 0
            connected = ask(case.connected, case.label)
            second = ask(case.single_second, f"{case.second.name}@{case.size_name}")
            slots.append(_Slot(entry, first, second, connected, empty))
            shared += 1
            last = case
        return requests, slots

    def _take(self, slot: _Slot, answers: Answers) -> None:
        parts = [answers[i] for i in (slot.first, slot.second, slot.connected)]
        failed = next((m for m in parts if m.outcome is Outcome.MODEL_ERROR), None)
        if failed is not None:
            slot.case.error = failed.error_message or failed.error_code or "failed"
            return
        empty = answers[slot.empty].latency_ms if answers[slot.empty].ok else self.call_overhead_ms
        triple = Triple(parts[0], parts[1], parts[2], empty or 0.0)
        if triple.ok:
            slot.case.triples.append(triple)

    def _profiles(self) -> Plan:
        size = self._options.sizes[0]
        control = self._ask(control_model(SIZES[size]), "profile: control", profile=True)
        answers = yield self._next([control], len(self._cases))
        answer = answers[control.request_id]
        layers = work_layers(answer.layers)
        if len(layers) < 2:
            # None: the runtime does not profile. One for three ops: a delegate hides what it runs.
            self._profiled = "opaque" if layers else "unavailable"
            return
        self._profiled = "yes"
        cases = [c.case for c in self._cases if c.case.size_name == size]
        joins = {
            c.label: join_connection(JoinCase(c.first, c.first, c.second, size))
            for c in cases
            if c.second.binary
        }
        graphs: dict[str, Graph] = {}
        for case in cases:
            for graph in (case.single_first, case.single_second, case.connected):
                graphs.setdefault(graph.hash, graph)
        for join in joins.values():
            graphs.setdefault(join.graph.hash, join.graph)
        requests = {
            key: self._ask(graph, f"profile: {graph.name}", profile=True)
            for key, graph in graphs.items()
        }
        answers = yield self._next(list(requests.values()), len(requests) + len(self._cases))

        def of(graph: Graph) -> Measurement:
            return answers[requests[graph.hash].request_id]

        for case in cases:
            fused = profile_says_fused(
                [of(case.single_first), of(case.single_second)], of(case.connected)
            )
            if case.label in joins:
                # Some runtimes fuse a join only when both its operands come from such ops.
                join = joins[case.label]
                settled = join.decide_by_profile([of(part) for part in join.parts], of(join.graph))
                if settled and join.answer:
                    fused = True
                    if self._join is None or not self._join.clear:
                        self._join = join
            if fused is not None:
                # Dense convolution stands for the op; its depthwise variant comes second.
                self._truth.setdefault(case.rule, fused)

    def _connections(self) -> Plan:
        used = {r.rule for r in self.results() if r.used}
        fused = [
            c.case
            for c in self._cases
            if c.case.rule in used and c.case.size_name == self._options.sizes[0] and not c.error
        ]
        join = None if self._join is not None else choose_join(fused)
        fork = choose_fork(fused)
        profiles = {}
        if self._profiled == "yes":
            graphs = [g for c in (join, fork) if c is not None for g in (*c.parts, c.graph)]
            profiles = {g.hash: self._ask(g, f"profile: {g.name}", profile=True) for g in graphs}
            answers = yield self._next(list(profiles.values()), len(profiles))
            shown = {key: answers[r.request_id] for key, r in profiles.items()}
        open_cases: list[Connection] = []
        for connection in (join, fork):
            if connection is None:
                continue
            if not profiles or not connection.decide_by_profile(
                [shown[g.hash] for g in connection.parts], shown[connection.graph.hash]
            ):
                open_cases.append(connection)
        rounds = self._options.rounds
        asked = [
            (connection, connection.requests(self._ask))
            for _ in range(rounds)
            for connection in open_cases
        ]
        requests = [r for _, batch in asked for r in batch]
        answers = yield self._next(requests, len(requests))
        for connection, batch in asked:
            connection.told(batch, answers)
        for connection in open_cases:
            connection.decide_by_time(self.call_overhead_ms)
        self._join = self._join or join
        self._fork = fork

    def results(self) -> list[PairResult]:
        """What was found so far of each pair of ops, in the order of the operator list.

        (Conv, Conv) is a control: no runtime computes two convolutions in one kernel. Where its
        times say so, they show a change of layout that connecting saves, and the times of all
        pairs of windowed ops are not believed.
        """
        rules: dict[tuple[str, str], list[_Case]] = {}
        for case in self._cases:
            rules.setdefault(case.case.rule, []).append(case)
        control = rules.get(("Conv", "Conv"), [])
        decisions = [c.decision(self._options) for c in control]
        blocked = combined(decisions)[0] == "fused"
        return [
            self._result(rule, cases, layout=blocked and WINDOWED.issuperset(rule))
            for rule, cases in rules.items()
        ]

    def _result(self, rule: tuple[str, str], cases: Sequence[_Case], *, layout: bool) -> PairResult:
        decisions = {c.case.label: c.decision(self._options) for c in cases}
        time_fused, size_dependent = combined(list(decisions.values()))
        layout = layout and time_fused == "fused"
        if layout:
            time_fused = "undecided"
        truth = self._truth.get(rule)
        if truth is not None:
            used, source = truth, "profile"
        elif time_fused != "undecided":
            used, source = time_fused == "fused", "time"
        elif self._options.undecided != "likelihood":
            used, source = self._options.undecided == "fuse", "prior"
        else:
            known = [] if layout else [d for d in decisions.values() if d.rounds]
            evidence = sum(max(-4.0, min(4.0, d.log_odds)) for d in known)
            used = evidence + prior_log_odds(*rule) > 0
            source = "likelihood" if known else "prior"
        error = next((c.error for c in cases if c.error), "")
        return PairResult(
            rule, decisions, time_fused, size_dependent, truth, used, source, layout, error
        )

    def rules(self) -> FusionRules:
        """The rules to cut kernels by: every pair settled, by the best there is."""
        return self._rules({r.rule: "fused" if r.used else "separate" for r in self.results()})

    def detected(self) -> FusionRules:
        """The rules as black-box detection found them, `undecided` where it did not."""
        return self._rules({r.rule: r.time_fused for r in self.results()})

    def _rules(self, pairs: Mapping[tuple[str, str], Answer]) -> FusionRules:
        return FusionRules(
            pairs=dict(pairs),
            multi_inbound=self._join.answer if self._join else 0,
            multi_outbound=self._fork.answer if self._fork else 0,
            platform=self.platform,
        )

    def outcome(self) -> Mapping[str, Any]:
        """Rules, the evidence for each pair, and how black-box detection fares against profiles."""
        results = self.results()
        return {
            "rules": self.rules().to_json(),
            "detected": self.detected().to_json(),
            "call_overhead_ms": self.call_overhead_ms,
            "pairs": [r.to_json() for r in results],
            "connections": [c.to_json() for c in (self._join, self._fork) if c is not None],
            "profile": self._profiled,
            "black_box": score(results),
        }


def _times(requests: Sequence[MeasurementRequest], answers: Answers) -> list[float]:
    found = [answers[r.request_id] for r in requests]
    return [m.latency_ms for m in found if m.ok and m.latency_ms is not None]
