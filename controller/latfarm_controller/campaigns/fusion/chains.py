"""Chains of tiny ops: how many kernels a pair runs as, whatever its arithmetic costs or saves.

A fused activation may be slower than one that runs by itself: onnxruntime's convolution with a
clamp in it is, so that times of a large tensor say "apart" of what the graph says is one kernel. On
a tensor of a few hundred numbers arithmetic hardly counts, and each kernel costs its dispatch. A
pair is repeated along a chain, cut off from its next repetition by a separator that fuses with
nothing, as are Op1 and Op2 by themselves, and the separators alone. Calls, transfers and changes of
layout at the ends are those of all four chains, so that

    T(Op1) + T(Op2) - T(Op1, Op2) - T(separators)

is what fusing saves, once for each link: inequation 1 with the separators as the empty model.

A runtime passes the layout of a convolution on to what follows it, where a separator may be twice
as fast. The windowed ops of a pair stand once at the head of all four chains, so that layouts are
the same in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from latfarm_predictors.measurement import Settings

from latfarm_controller.campaigns.fusion.chain_models import LINKS, ChainCase, Divider, dividers
from latfarm_controller.campaigns.fusion.decision import Decision, Thresholds, decide, student
from latfarm_controller.campaigns.fusion.operators import OPERATORS
from latfarm_controller.campaigns.fusion.results import chain_answer, combined
from latfarm_controller.campaigns.fusion.rounds import (
    Ask,
    CaseRounds,
    DecisionLimits,
    Next,
    PadBook,
    chained_round,
)
from latfarm_controller.campaigns.plans import Plan

_SURENESS = 3.0  # many pairs are looked at after each round: two standard errors err too often
_GATE = 3.0
_SLACK = 1.5
_LEAST_KERNEL = 0.08  # of a separator: what takes less by itself was merged into that


def chain_settings(settings: Settings) -> Settings:
    """Chains take microseconds: more runs of one cost nothing beside its loading."""
    return replace(settings, max_runs=4 * settings.max_runs)


@dataclass
class ChainRounds(CaseRounds):
    """A chained pair with its rounds.

    `left`: separators to try where an op joins the first. `call_ms`: what a call costs.
    """

    left: tuple[Divider, ...] = ()
    tries: int = 0
    call_ms: float = 0.0

    @property
    def least_base_ms(self) -> float:
        """What an op of its own takes at the least along the chain."""
        if not self.plain:
            return 0.0
        separators_ms = median(t.empty_ms for t in self.plain) - self.call_ms
        return max(_LEAST_KERNEL * separators_ms * LINKS / (LINKS + 2), 0.0)

    def decision(self, limits: DecisionLimits, book: PadBook | None = None) -> Decision:  # noqa: ARG002
        """What the chains say; the times of all four count, so that their spreads do.

        Nothing where the connected chain takes no longer than its separators alone: the runtime
        took those in, and what it saved is theirs.
        """
        thresholds = Thresholds(
            limits.alpha,
            gate=max(_GATE, limits.sureness),
            sureness=max(_SURENESS, limits.sureness) * student(len(self.plain)),
            paired=True,
            least_base_ms=self.least_base_ms,
        )
        found = decide(self.plain, thresholds)
        if found.answer != "undecided" and found.connected_ms <= self.least_base_ms:
            return replace(found, answer="undecided", log_odds=0.0)
        return found

    def merged(self, found: Decision) -> bool:
        """Whether an op, or both of them, take no time beside the separators."""
        return min(found.base_ms, found.connected_ms) <= self.least_base_ms

    def worth_another(self, limits: DecisionLimits) -> bool:
        """Whether it is open, and rounds could settle it; sets up another separator if need be.

        A spread that a few rounds show is itself hardly known: an open question is not given up
        before `max_rounds`, unless an op takes no time in the middle of `rounds` of them.
        """
        if self.error or self.tries >= 4 * limits.max_rounds:
            return False
        found = self.decision(limits)
        if found.rounds < 2 or (found.rounds <= limits.rounds and found.answer != "undecided"):
            return True
        if found.answer != "undecided":
            return False
        if found.rounds < limits.rounds:
            return True
        merged = self.merged(found)
        if not merged and (found.rounds < limits.max_rounds or self._could_settle(found, limits)):
            return True
        if not self.left or not (merged or found.base_ms <= _GATE * found.base_spread_ms):
            return False
        assert isinstance(self.case, ChainCase)
        self.case = ChainCase(self.case.first, self.case.second, self.left[0])
        self.left, self.plain = self.left[1:], []
        return True

    def _could_settle(self, found: Decision, limits: DecisionLimits) -> bool:
        """Whether the rounds that are left could: errors shrink with their root."""
        most = 3 * limits.max_rounds
        hope = _SLACK * math.sqrt(most / found.rounds)
        sure = abs(found.gain_ms - limits.alpha * found.base_ms) * hope
        return (
            found.rounds < most
            and found.base_ms * hope > _GATE * found.base_spread_ms
            and sure > _SURENESS * found.score_spread_ms
        )


def chain_rounds(first: str, second: str) -> ChainRounds | None:
    """A pair's chains with no round yet; None where it cannot be chained."""
    found = dividers(first, second)
    if not found:
        return None
    case = ChainCase(OPERATORS[first], OPERATORS[second], found[0])
    return ChainRounds(case, left=found[1:])


class Chained:
    """The chains of all pairs that have one, and what they tell."""

    def __init__(self, pairs: Iterable[tuple[str, str]], limits: DecisionLimits) -> None:
        self._limits = limits
        self._entries: dict[tuple[str, str], list[ChainRounds]] = {}
        for first, second in dict.fromkeys(pairs):
            entry = chain_rounds(first, second)
            if entry is not None:
                self._entries.setdefault(entry.case.rule, []).append(entry)

    def rounds(self, ask: Ask, next_batch: Next, call_ms: float) -> Plan:
        """Measure each pair along a chain, until all are settled or no round would help."""
        entries = [entry for found in self._entries.values() for entry in found]
        for entry in entries:
            entry.call_ms = call_ms
        while True:
            cases = []
            for entry in entries:
                if entry.worth_another(self._limits):
                    assert isinstance(entry.case, ChainCase)
                    cases.append((entry, entry.case.bare))
            if not cases:
                return
            left = max(1, self._limits.rounds + 1 - min(entry.tries for entry, _ in cases))
            requests, slots = chained_round(cases, ask)
            answers = yield next_batch(requests, len(requests) * left)
            for entry, _ in cases:
                entry.tries += 1
            for slot in slots:
                slot.take(answers, None, between_pads=False)

    def decisions(self, rule: tuple[str, str]) -> dict[str, Decision]:
        """What the chains of a pair of ops say, by their labels."""
        found = self._entries.get(rule, ())
        return {c.case.label: c.decision(self._limits) for c in found if c.plain}

    def settled(self, sized: Mapping[tuple[str, str], Sequence[Decision]]) -> set[tuple[str, str]]:
        """Pairs that chains tell of, but for those of which a large tensor says otherwise.

        Args:
            sized: what each pair's times at its sizes say, the larger ones last.
        """
        found = set()
        for rule in self._entries:
            answer = chain_answer(list(self.decisions(rule).values()))
            doubted = combined(sized[rule])[1] and sized[rule][-1].answer == "fused"
            if answer == "fused" or (answer == "separate" and not doubted):
                found.add(rule)
        return found
