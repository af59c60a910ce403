"""Fusion detection from few measurements: what profiled networks told, then only what is open.

Full detection (`campaign`) measures every pair of a list in every way, which is right where the
answers themselves are the result, or are scored. A predictor needs the rules of the pairs that
networks contain, and needs them cheaply. So this campaign goes from the cheapest evidence to the
dearest:

1. Profiled networks show how their own edges ran. Pairs that they tell are not tested.
2. Where the runtime profiles, the models of the other pairs are profiled once each.
3. Pairs without a profile are measured along chains, the most frequent ones first. Models that
   pairs share are measured once in a round, and a pair stops as soon as it is decided.
4. Of a class of pairs that runtimes treat alike, a few are tested. If all of these are separate,
   the others are taken for separate too (`pair_classes`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules, with_units

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.call_overhead import PURPOSE
from latfarm_controller.campaigns.fusion.branches import Branches
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign
from latfarm_controller.campaigns.fusion.chain_models import ChainCase
from latfarm_controller.campaigns.fusion.chains import Chained, ChainRounds, chain_rounds
from latfarm_controller.campaigns.fusion.connections import choose_fork, choose_join
from latfarm_controller.campaigns.fusion.decision import Answer
from latfarm_controller.campaigns.fusion.few_rounds import (
    LINKS,
    Entry,
    FewCaseRounds,
    FewChainRounds,
    Noise,
    shared_round,
)
from latfarm_controller.campaigns.fusion.interest import (
    Rule,
    usual_networks,
    weights,
    weights_under,
)
from latfarm_controller.campaigns.fusion.options import FusionOptions
from latfarm_controller.campaigns.fusion.pair_classes import first_tested, grouped, inferred
from latfarm_controller.campaigns.fusion.prior import prior_rules
from latfarm_controller.campaigns.fusion.results import PairResult, score
from latfarm_controller.campaigns.fusion.transfers import transfers_of
from latfarm_controller.campaigns.fusion.verdicts import CONTROL
from latfarm_controller.campaigns.plans import Batch, Plan
from latfarm_controller.campaigns.profiles.branches_in_networks import BranchesSeen
from latfarm_controller.campaigns.profiles.fusion_in_networks import Seen

EMPTIES = 3
"""How often the empty model is measured: a few times, since every round measures it again."""
TRANSFER_ROUNDS = 2
"""Rounds of the chains that tell what a transfer costs."""
NOISE_MODELS = 8
"""Number of models of the first round that are measured twice in it, so that the noise is known."""
_NOTHING_SEEN = BranchesSeen(None, None, 0, 0)


class _FewChains(Chained):
    """One chain for each pair of ops: that of its first operators in the list."""

    def __init__(self, pairs: Sequence[tuple[str, str]], limits: FusionOptions, noise: Noise):
        super().__init__((), limits)
        for first, second in dict.fromkeys(pairs):
            made = chain_rounds(first, second)
            if made is not None and made.case.rule not in self._entries:
                assert isinstance(made.case, ChainCase)
                entry = FewChainRounds(replace(made.case, links=LINKS), left=made.left, noise=noise)
                self._entries[made.case.rule] = [entry]

    def entry(self, rule: Rule) -> ChainRounds | None:
        """The chain of a pair; None where it cannot be chained."""
        found = self._entries.get(rule)
        return found[0] if found else None


class FewFusionCampaign(FusionCampaign):
    """Finds the fusion rules that networks need, from as few measurements as it can.

    Args:
        platform: what is measured.
        options: the configuration; `sizes`, `rounds` and `max_rounds` do not matter.
        exclude_lineages: lineages whose networks do not decide which pairs are tested.
    """

    def __init__(
        self, platform: str, options: FusionOptions, exclude_lineages: Collection[str] = ()
    ) -> None:
        options = options.model_copy(update={"sizes": options.sizes[:1]})
        super().__init__(platform, options)
        self._exclude_lineages = exclude_lineages
        self._weights: Mapping[Rule, float] = {}
        self._noise = Noise()
        pairs = [(case.first.name, case.second.name) for case in self._tested]
        self._chained = self._few_chains = _FewChains(pairs, options, self._noise)
        self._sized: dict[Rule, FewCaseRounds] = {}
        for case in self._tested:
            if case.rule not in self._sized:
                self._sized[case.rule] = FewCaseRounds(case, noise=self._noise)
        self._by_rule = {rule: [entry] for rule, entry in self._sized.items()}
        self._cases = list(self._sized.values())
        self._tested = [entry.case for entry in self._cases]  # type: ignore[misc]
        self._inferred: set[Rule] = set()
        self.seen: Mapping[Rule, Seen] = {}
        self.branches = _NOTHING_SEEN

    def plan(self) -> Plan:
        """A look at the runtime's profiler, then the tests."""
        yield from self.look()
        yield from self.tests()

    def look(self) -> Plan:
        """The empty model, and whether the runtime's profiler shows single layers."""
        requests = [self._ask(self._empty, "empty") for _ in range(EMPTIES)]
        answers = yield Batch("overhead", requests, 0, len(requests))
        self._noise.told(requests, answers)
        self._empties += [
            m.latency_ms for m in answers.values() if m.ok and m.latency_ms is not None
        ]
        if self._options.profile:
            yield from self._profiled.look(
                self._ask_profile,
                lambda asked, _: Batch("overhead", asked, EMPTIES, EMPTIES + len(asked)),
            )

    def tests(self) -> Plan:
        """The pairs that networks have not told: profiled if possible, otherwise by times.

        Where the runtime profiles, pairs that decide about no usual network are left to the prior:
        should a later network have them, its own profile would tell.
        """
        networks = usual_networks(self._exclude_lineages)
        if self.profiles:
            yield from self._settle_what_decides(networks)
        else:
            self._weights = weights(networks)
            yield from self.transfer_rounds()
        yield from self._classes()
        yield from self._few_connections()

    def _settle_what_decides(self, networks: Sequence[Graph]) -> Plan:
        """Profile the pairs that decide how networks are split.

        An answer changes where kernels begin, and so which other pairs decide: a few times over.
        """
        asked: set[Rule] = set()
        while True:
            known = self.rules()
            known = replace(known, pairs={**prior_rules(self.platform).pairs, **known.pairs})
            self._weights = weights_under(with_units(known), networks)
            wanted = {rule for rule in self._open() if rule in self._weights} - asked
            cases = [case for case in self._tested if case.rule in wanted]
            if not cases:
                return
            cases.sort(key=lambda case: -self._weights[case.rule])
            yield from self._profiled.settle(cases, self._ask_profile, self._next)
            yield from self._profiled.settle_inside(cases, self._ask_profile, self._next)
            self._join = self._profiled.join
            asked |= wanted

    def _open(self) -> list[Rule]:
        """The pairs that neither networks nor a profile have told, the most frequent ones first."""
        told = {rule for rule, seen in self.seen.items() if seen.verdict != "undecided"}
        told |= set(self._profiled.truth)
        rules = [rule for rule in self._sized if rule not in told]
        return sorted(rules, key=lambda rule: -self._weights.get(rule, 0.0))

    def transfer_rounds(self) -> Plan:
        """What a transfer costs, see `transfers`."""
        for _ in range(TRANSFER_ROUNDS):
            graphs = [graph for chain in self._chains for graph in (chain.once, chain.twice)]
            requests = [self._ask(graph, f"transfer: {graph.name}") for graph in graphs]
            requests.append(self._ask(self._empty, "empty"))
            answers = yield self._next(requests, len(requests))
            self._noise.told(requests, answers)
            empty = answers[requests[-1].request_id]
            if empty.ok and empty.latency_ms is not None:
                self._empties.append(empty.latency_ms)
            times = {a.graph_hash: a.latency_ms for a in answers.values() if a.ok}
            found = {key: time_ms for key, time_ms in times.items() if time_ms is not None}
            for chain in self._chains:
                chain.told(found, self.call_overhead_ms)
        self._transfers = transfers_of(self._chains)

    def _classes(self) -> Plan:
        """A few pairs of each class, then the others of the classes that are not clear.

        Pairs that occur in networks come first, so that a budget that ends early is spent on them.
        """
        classes = grouped(self._open(), self._weights)
        # Lists, not sets: pairs of equal weight must have the same order in every process, so that
        # a budget that ends here leaves out the same pairs when a campaign is resumed.
        tested = {rule for members in classes for rule in first_tested(members)} | {CONTROL}
        first = [rule for rule in self._open() if rule in tested]
        for occurs in (True,) if self.profiles else (True, False):
            yield from self._rounds([r for r in first if (r in self._weights) is occurs])
            answers = self._answers()
            for members in classes:
                self._inferred.update(inferred(members, answers))
            others = [r for r in self._open() if r not in tested and r not in self._inferred]
            yield from self._rounds([r for r in others if (r in self._weights) is occurs])

    def _answers(self) -> dict[Rule, Answer]:
        return {result.rule: result.time_fused for result in super().results()}

    def _entry(self, rule: Rule) -> Entry | None:
        """How a pair is measured: along a chain, else at a size; None where transfers mislead."""
        chained = self._few_chains.entry(rule)
        if chained is not None:
            assert isinstance(chained, FewChainRounds)
            return chained
        return None if self._transfers.costly else self._sized[rule]

    def _rounds(self, rules: Collection[Rule]) -> Plan:
        """Rounds of these pairs, until all are decided or given up."""
        order = sorted(rules, key=lambda rule: -self._weights.get(rule, 0.0))
        entries = [entry for entry in map(self._entry, order) if entry is not None]
        for entry in entries:
            if isinstance(entry, FewChainRounds):
                entry.call_ms = self.call_overhead_ms
        while True:
            cases = [entry for entry in entries if entry.worth_another(self._options)]
            if not cases:
                return
            requests, slots = shared_round(cases, self._empty, self._ask_few)
            again = [] if self._knows_noise else requests[:NOISE_MODELS]
            twice = [self._ask_few(request.graph, request.label) for request in again]
            answers = yield self._next([*requests, *twice], len(requests) + len(twice))
            self._noise.told([*requests, *twice], answers)
            for entry in cases:
                entry.tries += 1
            for slot in slots:
                slot.take(answers, None, between_pads=False)
            if not any(answer.ok for answer in answers.values()):
                return  # the board is gone, or the budget is spent

    @property
    def _knows_noise(self) -> bool:
        repeated = sum(len(found) > 1 for found in self._noise.times_ms.values())
        return repeated > NOISE_MODELS

    def _ask_few(self, graph: Graph, label: str) -> MeasurementRequest:
        return self.asker.request(graph, PURPOSE, self._chain_settings, label=label)

    def _few_connections(self) -> Plan:
        """A join and a fork: by networks, else by the profile of one each, else by times."""
        used = {r.rule for r in self.results() if r.used}
        fused = [case for case in self._tested if case.rule in used]
        join = None
        if self.branches.inbound is None:
            join = self._join or choose_join(fused)
        fork = None if self.branches.outbound is not None else choose_fork(fused)
        asked = join if self._join is None else None
        left = yield from self._profiled_connections(asked, fork)
        self._join, self._fork = join, fork
        found = Branches(
            self._ask,
            self._next,
            max(self.call_overhead_ms - self._transfers.kernel_ms, 0.0),
            self._pads,
        )
        yield from found.decide_quickly(
            asked if asked in left else None,
            fork if fork in left else None,
            fused,
            self._noise.share,
        )

    def results(self) -> list[PairResult]:
        """What was found about each pair, with what networks told and what classes imply."""
        found = []
        for result in super().results():
            tested = {label: d for label, d in result.cases.items() if d.rounds}
            one = replace(result, cases=tested)
            seen = self.seen.get(one.rule)
            if seen is not None and seen.verdict != "undecided":
                fused = seen.verdict == "fused"
                one = replace(one, graph_fused=fused, used=fused, source="networks", untold="")
            elif one.rule in self._inferred and one.graph_fused is None and not tested:
                one = replace(one, time_fused="separate", used=False, source="class")
            found.append(one)
        known = {result.rule for result in found}
        return found + [
            _told_by_networks(rule, seen)
            for rule, seen in self.seen.items()
            if rule not in known and seen.verdict != "undecided"
        ]

    def _rules(self, pairs: Mapping[Rule, Answer]) -> FusionRules:
        """Rules with these pairs, and with what networks show about branches."""
        rules = super()._rules(pairs)
        inbound, outbound = self.branches.inbound, self.branches.outbound
        return replace(
            rules,
            multi_inbound=rules.multi_inbound if inbound is None else inbound,
            multi_outbound=rules.multi_outbound if outbound is None else outbound,
        )

    def outcome(self) -> Mapping[str, Any]:
        """See `FusionCampaign.outcome`; only pairs that were timed or inferred are scored."""
        timed = [r for r in self.results() if r.cases or r.source == "class"]
        return {
            **super().outcome(),
            "black_box": score(timed),
            "paper": score([r for r in timed if r.cases], paper=True),
            "tests": "few",
            "noise": round(self._noise.share, 4),
            "branches_seen": {"joins": self.branches.joins, "forks": self.branches.forks},
        }


def _told_by_networks(rule: Rule, seen: Seen) -> PairResult:
    """A pair outside the list that networks show."""
    fused = seen.verdict == "fused"
    return PairResult(rule, {}, "undecided", False, fused, fused, "networks")
