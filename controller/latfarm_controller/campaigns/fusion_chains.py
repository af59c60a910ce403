"""Chains of tiny ops: how many kernels a pair runs as, whatever its arithmetic costs or saves.

A fused activation may be slower than one that runs by itself: onnxruntime's convolution with a
clamp in it is, so that times of a large tensor say "apart" of what the graph says is one kernel. On
a tensor of a few hundred numbers arithmetic hardly counts, and each kernel costs its dispatch. A
pair is repeated along a chain, cut off from its next repetition by a separator that fuses with
nothing, as are Op1 and Op2 by themselves, and the separators alone. Calls, transfers and changes of
layout at the ends are those of all four chains, so that

    T(Op1) + T(Op2) - T(Op1, Op2) - T(separators)

is what fusing saves, once for each link: inequation 1 with the separators as the empty model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import median
from types import MappingProxyType
from typing import Literal

from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder
from latfarm_predictors.measurement import Settings

from latfarm_controller.campaigns.fusion_cases import WINDOWED, rule_of
from latfarm_controller.campaigns.fusion_decision import Decision, decide
from latfarm_controller.campaigns.fusion_operators import OPERATORS, SIZES, Operator
from latfarm_controller.campaigns.fusion_results import chain_answer, combined
from latfarm_controller.campaigns.fusion_rounds import (
    Ask,
    CaseRounds,
    Limits,
    Next,
    PadBook,
    chained_round,
)
from latfarm_controller.campaigns.plans import Plan

Divider = Literal["MaxPool", "AveragePool", "Softmax"]

LINKS = 16
_CHANNELS, _SIDE, _ROWS = 16, 4, 8
_SURENESS = 3.0  # many pairs are looked at after each round: two standard errors err too often
_GATE = 3.0
_SLACK = 1.5
_LEAST_KERNEL = 0.08  # of a separator: what takes less by itself was merged into that

_TINY = replace(
    SIZES["small"],
    channels=_CHANNELS,
    side=_SIDE,
    rows=_ROWS,
    features=_CHANNELS,
    narrow=_CHANNELS,
)

Step = Callable[[GraphBuilder, str, str], str]

_OWN_STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "conv": lambda b, x, _: b.conv(x, _CHANNELS, 1),
        "conv_transpose": lambda b, x, _: b.conv_transpose(x, _CHANNELS, 1),
        "fc": lambda b, x, _: b.fc(x, _CHANNELS),
        "matmul": lambda b, x, _: b.matmul(x, b.weight((_CHANNELS, _CHANNELS))),
    }
)
"""In a chain every op must keep its tensor's shape; here are those that do not in a pair."""

_NOT_CHAINED = frozenset(
    {
        *("pad", "resize", "transpose", "slice", "depth_to_space"),
        *("mean", "global_pool", "concat"),
    }
)
"""Ops that change a shape, or that cancel each other out along a chain."""

_DIVIDERS: Mapping[Divider, Step] = MappingProxyType(
    {
        "MaxPool": lambda b, x, _: b.max_pool(x, 3, 1, "same"),
        "AveragePool": lambda b, x, _: b.avg_pool(x, 3, 1, "same"),
        "Softmax": lambda b, x, _: b.softmax(x),
    }
)


def chain_settings(settings: Settings) -> Settings:
    """Chains take microseconds: more runs of one cost nothing beside its loading."""
    return replace(settings, max_runs=4 * settings.max_runs)


@dataclass(frozen=True)
class ChainCase:
    """A pair along a chain, with the three chains that it is compared with.

    Of a pair of elementwise ops the separator is a softmax, which has no layout of its own, of one
    with a windowed op a pooling, which has the same as that: a separator in another layout would
    be an excuse for a pair to save two conversions. An op with two operands reads the last
    separator's result beside Op1's, as a residual block does.
    """

    first: Operator
    second: Operator
    divider: Divider

    @property
    def size_name(self) -> str:
        """Which chains share a separator."""
        return f"chain of {self.divider}"

    @property
    def rule(self) -> tuple[str, str]:
        """The pair of ops as in the rules."""
        return rule_of(self.first, self.second)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.first.name}+{self.second.name}@chain"

    @property
    def wide_shape(self) -> tuple[int, ...]:
        """Every tensor of the chain."""
        return (_ROWS, _CHANNELS) if self.first.flat else (1, _CHANNELS, _SIDE, _SIDE)

    @cached_property
    def bare(self) -> Graph:
        """The separators alone."""
        return _chain(self.divider, self.wide_shape)

    @cached_property
    def single_first(self) -> Graph:
        """Op1 between separators."""
        return _chain(self.divider, self.wide_shape, self.first.name)

    @cached_property
    def single_second(self) -> Graph:
        """Op2 between separators."""
        return _chain(self.divider, self.wide_shape, self.second.name)

    @cached_property
    def connected(self) -> Graph:
        """(Op1, Op2) between separators."""
        return _chain(self.divider, self.wide_shape, self.first.name, self.second.name)


@lru_cache(maxsize=256)
def _chain(divider: Divider, shape: tuple[int, ...], *operators: str) -> Graph:
    """The operators between separators, as often as a chain has links."""
    b = GraphBuilder(f"{LINKS} x {','.join(operators) or 'nothing'} | {divider}")
    divide = _DIVIDERS[divider]
    before = divide(b, b.input(shape), "")
    x = divide(b, before, "")
    for _ in range(LINKS):
        y = x
        for place, name in enumerate(operators):
            y = _step(OPERATORS[name])(b, y, before if place == 0 else x)
        before, x = x, divide(b, y, "")
    return b.build([x])


def _step(operator: Operator) -> Step:
    own = _OWN_STEPS.get(operator.name)
    if own is not None:
        return own
    second = operator.second
    assert second is not None
    return lambda b, x, other: second(b, x, other, _TINY)


def dividers(first: str, second: str) -> tuple[Divider, ...]:
    """The separators that serve a pair, the best first; none where it cannot be chained."""
    a, b = OPERATORS[first], OPERATORS[second]
    if _NOT_CHAINED.intersection((first, second)) or a.second is None:
        return ()
    if a.flat or not WINDOWED.union({"ConvTranspose"}).intersection((a.op, b.op)):
        return ("Softmax",)
    return ("MaxPool", "AveragePool")


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

    def decision(self, limits: Limits, book: PadBook | None = None) -> Decision:  # noqa: ARG002
        """What the chains say; the times of all four count, so that their spreads do."""
        return decide(
            self.plain,
            alpha=limits.alpha,
            gate=max(_GATE, limits.sureness),
            sureness=max(_SURENESS, limits.sureness),
            paired=True,
            least_base_ms=self.least_base_ms,
        )

    def worth_another(self, limits: Limits) -> bool:
        """Whether it is open, and rounds could settle it; sets up another separator if need be."""
        if self.error or self.tries >= 3 * limits.max_rounds:
            return False
        found = self.decision(limits)
        if found.rounds < 2 or (found.rounds <= limits.rounds and found.answer != "undecided"):
            return True
        if found.answer != "undecided":
            return False
        most = 2 * limits.max_rounds
        hope = _SLACK * math.sqrt(most / found.rounds)
        drowned = found.base_ms <= max(_GATE * found.base_spread_ms, self.least_base_ms)
        sure = abs(found.gain_ms - limits.alpha * found.base_ms) * hope
        if (
            found.rounds < most
            and found.base_ms * hope > max(_GATE * found.base_spread_ms, self.least_base_ms * hope)
            and sure > _SURENESS * found.score_spread_ms
        ):
            return True
        if not self.left or not drowned:
            return False
        assert isinstance(self.case, ChainCase)
        self.case = ChainCase(self.case.first, self.case.second, self.left[0])
        self.left, self.plain = self.left[1:], []
        return True


def chain_rounds(first: str, second: str) -> ChainRounds | None:
    """A pair's chains with no round yet; None where it cannot be chained."""
    found = dividers(first, second)
    if not found:
        return None
    case = ChainCase(OPERATORS[first], OPERATORS[second], found[0])
    return ChainRounds(case, left=found[1:])


class Chained:
    """The chains of all pairs that have one, and what they tell."""

    def __init__(self, pairs: Iterable[tuple[str, str]], limits: Limits) -> None:
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
