"""Fusion detection: which pairs of ops a runtime executes as one kernel (nn-Meter, section 4).

A round measures, for every pair without an answer, Op1, (Op1, Op2) and Op2 one after the other, so
that a slow drift of the board affects all three alike. Pairs that are undecided because of spread
get further rounds. Where connecting two ops saves a costly transfer, which looks like fusion, the
pairs are measured between pads. Where the runtime can profile, the layers that it really ran are
the truth, and the answers by times alone are scored against it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from statistics import median
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.call_overhead import PURPOSE, REPEATS, SETTINGS, empty_model
from latfarm_controller.campaigns.fusion.branches import Branches
from latfarm_controller.campaigns.fusion.cases import (
    CORE_PAIRS,
    all_pairs,
    pair_case,
)
from latfarm_controller.campaigns.fusion.chains import Chained, chain_settings
from latfarm_controller.campaigns.fusion.connections import ConnectionCase, choose_fork, choose_join
from latfarm_controller.campaigns.fusion.decision import Answer
from latfarm_controller.campaigns.fusion.operators import SIZES
from latfarm_controller.campaigns.fusion.options import FusionOptions
from latfarm_controller.campaigns.fusion.profile import Profiled, Profiler
from latfarm_controller.campaigns.fusion.results import PairResult, score
from latfarm_controller.campaigns.fusion.rounds import (
    CaseRounds,
    PadBook,
    padded_round,
    plain_round,
)
from latfarm_controller.campaigns.fusion.transfers import Transfers, chains, transfers_of
from latfarm_controller.campaigns.fusion.verdicts import FusionEvidence
from latfarm_controller.campaigns.plans import Answers, Batch, Plan, PlannedCampaign
from latfarm_controller.errors import UsageError

__all__ = ["FusionCampaign", "FusionOptions"]


class FusionCampaign(PlannedCampaign):
    """Finds the fusion rules of a platform and the cost of a call to it."""

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
            tested = [
                pair_case(first, second, size) for size in options.sizes for first, second in pairs
            ]
        except GraphError as error:
            raise UsageError(f"campaign fusion: key 'pairs': {error}") from error
        self._tested = tested
        self._cases = [CaseRounds(case) for case in tested]
        self._by_rule: dict[tuple[str, str], list[CaseRounds]] = {}
        for entry in self._cases:
            self._by_rule.setdefault(entry.case.rule, []).append(entry)
        counts = options.chains and options.method == "latfarm"
        self._chained = Chained(pairs if counts else (), options)
        self._chain_settings = chain_settings(self._settings)
        self._empty = empty_model()
        self._empties: list[float] = []
        self._profiled = Profiled(tested, options.sizes[0])
        self._chains = [c for size in options.sizes for c in chains(SIZES[size])]
        self._transfers = Transfers()
        self._book = PadBook()
        self._tries: dict[str, int] = {}
        self._join: ConnectionCase | None = None
        self._fork: ConnectionCase | None = None
        self._asked = 0

    @property
    def call_overhead_ms(self) -> float:
        """The time of the empty model: what a call costs before any op."""
        return median(self._empties) if self._empties else 0.0

    @property
    def profiles(self) -> bool:
        """Whether the runtime's profiler shows single layers."""
        return self._profiled.profiler == "yes"

    @property
    def profile(self) -> Profiler:
        """What the runtime's profiler shows, see `profile.Profiler`."""
        return self._profiled.profiler

    @property
    def profiled(self) -> list[tuple[Graph, Measurement]]:
        """The models that were profiled, each with its layers."""
        return self._profiled.models

    @property
    def transfers(self) -> Transfers:
        """What transfers of inputs and outputs cost, and whether they look like fusion."""
        return self._transfers

    def plan(self) -> Plan:
        """The empty model, profiles, chains, rounds of pairs, then a join and a fork."""
        requests = [self._ask(self._empty, "empty") for _ in range(REPEATS)]
        answers = yield Batch("overhead", requests, 0, len(requests))
        self._empties += _times(requests, answers)
        if self._options.profile:
            yield from self._profiled.plan(self._ask_profile, self._next)
            self._join = self._profiled.join
        yield from self._chained.rounds(self._ask_chain, self._next, self.call_overhead_ms)
        yield from self._plain_rounds()
        if self._transfers.costly:
            yield from self._padded_rounds()
        yield from self._connections()

    def _ask_chain(self, graph: Graph, label: str) -> MeasurementRequest:
        return self.asker.request(graph, PURPOSE, self._chain_settings, label=label)

    def _settled(self) -> set[tuple[str, str]]:
        """Pairs that chains have settled."""
        sized = {
            rule: [c.decision(self._options) for c in cases]
            for rule, cases in self._by_rule.items()
        }
        return self._chained.settled(sized)

    def _plain_rounds(self) -> Plan:
        """The pairs without pads, until they are settled or transfers turn out to be costly."""
        options = self._options
        ours = options.method == "latfarm"
        for number in range(options.max_rounds if ours else options.rounds):
            if self._transfers.costly:
                break
            cases = [c for c in self._cases if not c.error]
            if number >= 2:
                # Pairs settled by a profile or by chains need only two rounds for comparison.
                settled = self._settled()
                if not options.blind:
                    settled |= set(self._profiled.truth)
                cases = [c for c in cases if c.case.rule not in settled]
            if number >= options.rounds:
                cases = [c for c in cases if c.worth_repeating(options)]
            probing = ours and number < options.rounds
            if not cases and not (probing and self._chains):
                break
            requests, slots = plain_round(cases, self._empty, self._ask)
            probes = [
                self._ask(graph, f"transfer: {chain.name}")
                for chain in self._chains
                if probing
                for graph in (chain.once, chain.twice)
            ]
            asked = [*probes, *requests]
            left = max(1, options.rounds - number)
            answers = yield self._next(asked, len(asked) * left)
            self._empties += _times(
                [r for r in requests if hash_of(r.graph) == hash_of(self._empty)], answers
            )
            empty_ms = self.call_overhead_ms
            for slot in slots:
                slot.take(answers, empty_ms, between_pads=False)
            found = _latencies(probes, answers)
            for chain in self._chains if probing else ():
                chain.told(found, empty_ms)
            if number + 1 >= min(options.rounds, 2) and ours:
                self._transfers = transfers_of(self._chains)

    def _padded_rounds(self) -> Plan:
        """The open pairs between pads, until they are settled or no round is left."""
        options, book = self._options, self._book
        settled = self._settled()
        open_ = [c for c in self._cases if c.case.rule not in settled]
        for entry in open_:
            case = entry.case
            try:
                for graph in (case.single_first, case.single_second, case.connected):
                    book.model(graph, entry.separator)
            except GraphError as error:
                entry.error = entry.error or f"cannot be padded: {error}"
        while True:
            cases = [
                c
                for c in open_
                if not c.error
                and (len(c.padded) < options.rounds or c.worth_repeating(options, book))
                and self._tries.get(c.case.label, 0) < 2 * options.max_rounds
            ]
            cases += [c for c in open_ if c not in cases and c.try_again(options, book)]
            if not cases:
                return
            for c in cases:
                self._tries[c.case.label] = self._tries.get(c.case.label, 0) + 1
            requests, slots, pads = padded_round(cases, book, self._ask)
            left = max(1, options.rounds - min(self._tries.values()))
            answers = yield self._next(requests, len(requests) * left)
            for request in pads:
                answer = answers[request.request_id]
                if answer.ok and answer.latency_ms is not None:
                    book.told(hash_of(request.graph), answer.latency_ms)
            for slot in slots:
                slot.take(answers, None, between_pads=True)

    def _ask(self, graph: Graph, label: str, *, profile: bool = False) -> MeasurementRequest:
        return self.asker.request(graph, PURPOSE, self._settings, label=label, profile=profile)

    def _next(self, requests: Sequence[MeasurementRequest], left: int) -> Batch:
        """A batch of requests; `left` estimates how many requests follow, these included."""
        batch = Batch("fusion", requests, self._asked, self._asked + max(left, len(requests)))
        self._asked += len({r.request_id for r in requests})
        return batch

    def _ask_profile(self, graph: Graph, label: str) -> MeasurementRequest:
        return self._ask(graph, label, profile=True)

    def _connections(self) -> Plan:
        """A join and a fork of fused pairs: by their profiles where possible, else by times."""
        used = {r.rule for r in self.results() if r.used}
        fused = [
            case
            for case, c in zip(self._tested, self._cases, strict=True)
            if case.rule in used and case.size_name == self._options.sizes[0] and not c.error
        ]
        join = None if self._join is not None else choose_join(fused)
        fork = choose_fork(fused)
        open_cases = yield from self._profiled_connections(join, fork)
        branches = Branches(
            self._ask,
            self._next,
            max(self.call_overhead_ms - self._transfers.kernel_ms, 0.0),
            self._pads,
        )
        rounds = self._options.max_rounds if self._transfers.costly else self._options.rounds
        yield from branches.decide(open_cases, join if join in open_cases else None, fused, rounds)
        self._join = self._join or join
        self._fork = fork

    def _profiled_connections(
        self, join: ConnectionCase | None, fork: ConnectionCase | None
    ) -> Generator[Batch, Answers, list[ConnectionCase]]:
        """Profile a join and a fork where possible; gives those that are still open."""
        cases = [case for case in (join, fork) if case is not None]
        if not self.profiles:
            return cases
        graphs = [g for c in cases for g in (*c.parts, c.graph)]
        profiles = {hash_of(g): self._ask(g, f"profile: {g.name}", profile=True) for g in graphs}
        answers = yield self._next(list(profiles.values()), len(profiles))
        shown = {key: answers[r.request_id] for key, r in profiles.items()}
        return [
            case
            for case in cases
            if not case.decide_by_profile(
                [shown[hash_of(g)] for g in case.parts], shown[hash_of(case.graph)]
            )
        ]

    def results(self) -> list[PairResult]:
        """What was found so far about each pair of ops, in the order of the operator list."""
        found = FusionEvidence(
            self._options, self._by_rule, self._chained, self._profiled, self._pads
        )
        return found.results()

    @property
    def _pads(self) -> PadBook | None:
        return self._book if self._transfers.costly else None

    def rules(self) -> FusionRules:
        """The rules that cut networks into kernels: each pair is settled by the best evidence."""
        return self._rules({r.rule: "fused" if r.used else "separate" for r in self.results()})

    def detected(self) -> FusionRules:
        """The rules by times alone; `undecided` where times have no answer."""
        return self._rules({r.rule: r.time_fused for r in self.results()})

    def _rules(self, pairs: Mapping[tuple[str, str], Answer]) -> FusionRules:
        return FusionRules(
            pairs=dict(pairs),
            multi_inbound=self._join.answer if self._join else 0,
            multi_outbound=self._fork.answer if self._fork else 0,
            platform=self.platform,
        )

    def outcome(self) -> Mapping[str, Any]:
        """The rules, the evidence for each pair, and how times alone compare with profiles."""
        results = self.results()
        return {
            "rules": self.rules().to_json(),
            "detected": self.detected().to_json(),
            "call_overhead_ms": self.call_overhead_ms,
            "pairs": [r.to_json() for r in results],
            "connections": [c.to_json() for c in (self._join, self._fork) if c is not None],
            "profile": self.profile,
            "method": self._options.method,
            "transfers": self._transfers.to_json(),
            "black_box": score(results),
            "paper": score(results, paper=True),
        }


def _times(requests: Sequence[MeasurementRequest], answers: Answers) -> list[float]:
    """The latencies of the requests that succeeded, in ms."""
    found = [answers[r.request_id] for r in requests]
    return [m.latency_ms for m in found if m.ok and m.latency_ms is not None]


def _latencies(requests: Sequence[MeasurementRequest], answers: Answers) -> dict[str, float]:
    """The latencies of the requests that succeeded, in ms, by the hash of the graph."""
    found = {hash_of(r.graph): answers[r.request_id] for r in requests}
    return {k: m.latency_ms for k, m in found.items() if m.ok and m.latency_ms is not None}
