"""Chains of tiny ops: as how many kernels a pair runs, whatever its arithmetic costs or saves.

A fused activation may be slower than a separate one. For example, onnxruntime's convolution with a
clamp in it is slower, so that times at a large tensor say "separate" although it is one kernel. On
a tensor of a few hundred numbers the arithmetic hardly matters, and each kernel costs the time of
its dispatch. So a pair is repeated along a chain, with a separator between repetitions that fuses
with nothing. Three more chains hold Op1 between separators, Op2 between separators, and the
separators alone. All four chains pay the same for the call, for transfers and for changes of layout
at their ends, so that

    T(Op1) + T(Op2) - T(Op1, Op2) - T(separators)

is what fusing saves, once for each link. It is inequation 1 with the separators as the empty model.

A runtime passes the layout of a convolution on to the ops after it, and a separator may be twice as
fast in that layout. So the windowed ops of a pair stand once at the head of all four chains, which
makes their layouts the same.
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

_SURENESS = 3.0
"""Standard errors that an answer needs. Many pairs are judged after each round, so that two
standard errors would be wrong too often."""
_GATE = 3.0
"""Standard errors that the time of the cheaper op must exceed."""
_SLACK = 1.5
"""Factor on the hope that further rounds settle a pair, because spreads are only estimates."""
_LEAST_KERNEL = 0.08
"""An op that takes less than this share of a separator's time was merged into the separator."""
_MOST_TRIES = 4
"""A pair is asked for at most so many times `max_rounds`, separators and failures included."""
_MOST_ROUNDS = 3
"""A pair is measured with one separator at most so many times `max_rounds`."""
_MOST_RUNS = 4
"""Factor by which the largest number of runs grows for chains."""


def chain_settings(settings: Settings) -> Settings:
    """The settings for chains, with more runs: they take microseconds, loading takes longer."""
    return replace(settings, max_runs=_MOST_RUNS * settings.max_runs)


@dataclass
class ChainRounds(CaseRounds):
    """A chained pair with its rounds.

    Attributes:
        left: separators to try next, where an op is merged into the present one.
        tries: how often the pair was asked for.
        call_ms: what a call costs.
    """

    left: tuple[Divider, ...] = ()
    tries: int = 0
    call_ms: float = 0.0

    @property
    def least_base_ms(self) -> float:
        """The least time along the chain of an op that runs as a kernel of its own, in ms."""
        if not self.plain:
            return 0.0
        separators_ms = median(t.empty_ms for t in self.plain) - self.call_ms
        links = self.case.links if isinstance(self.case, ChainCase) else LINKS
        return max(_LEAST_KERNEL * separators_ms * links / (links + 2), 0.0)

    def decision(self, limits: DecisionLimits, book: PadBook | None = None) -> Decision:  # noqa: ARG002
        """What the chains say, with the spreads of all four chains taken into account.

        It is undecided where the connected chain takes no longer than its separators alone: then
        the runtime fused the pair with the separators, and what was saved is their time.
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
        """Whether one op or both take no time besides that of the separators."""
        return min(found.base_ms, found.connected_ms) <= self.least_base_ms

    def worth_another(self, limits: DecisionLimits) -> bool:
        """Whether the pair is undecided and another round could settle it.

        Where an op is merged into the separator, this replaces the separator by the next one. The
        spread of a few rounds is itself hardly known, so that an undecided pair is not given up
        before `max_rounds` unless one of its ops takes no time after `rounds`.
        """
        if self.error or self.tries >= _MOST_TRIES * limits.max_rounds:
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
        """Whether more rounds could settle it: errors shrink with the root of their number."""
        most = _MOST_ROUNDS * limits.max_rounds
        hope = _SLACK * math.sqrt(most / found.rounds)
        sure = abs(found.gain_ms - limits.alpha * found.base_ms) * hope
        return (
            found.rounds < most
            and found.base_ms * hope > _GATE * found.base_spread_ms
            and sure > _SURENESS * found.score_spread_ms
        )


def chain_rounds(first: str, second: str) -> ChainRounds | None:
    """The chains of two operators, without rounds; None where they cannot be chained."""
    found = dividers(first, second)
    if not found:
        return None
    case = ChainCase(OPERATORS[first], OPERATORS[second], found[0])
    return ChainRounds(case, left=found[1:])


class Chained:
    """The chains of all pairs that can be chained, and what they say."""

    def __init__(self, pairs: Iterable[tuple[str, str]], limits: DecisionLimits) -> None:
        self._limits = limits
        self._entries: dict[tuple[str, str], list[ChainRounds]] = {}
        for first, second in dict.fromkeys(pairs):
            entry = chain_rounds(first, second)
            if entry is not None:
                self._entries.setdefault(entry.case.rule, []).append(entry)

    def rounds(self, ask: Ask, next_batch: Next, call_ms: float) -> Plan:
        """Measure each pair along its chains, until all are settled or no round would help."""
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
        """What the chains of a pair of ops say, by the labels of the chains."""
        found = self._entries.get(rule, ())
        return {c.case.label: c.decision(self._limits) for c in found if c.plain}

    def settled(self, sized: Mapping[tuple[str, str], Sequence[Decision]]) -> set[tuple[str, str]]:
        """Pairs that chains settle, without those for which a large tensor says otherwise.

        Args:
            sized: for each pair what its times at its sizes say, the larger ones last.
        """
        found = set()
        for rule in self._entries:
            answer = chain_answer(list(self.decisions(rule).values()))
            overruled = combined(sized[rule])[1] and sized[rule][-1].answer == "fused"
            if answer == "fused" or (answer == "separate" and not overruled):
                found.add(rule)
        return found
