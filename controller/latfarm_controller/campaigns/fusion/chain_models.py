"""The models of pairs along chains: a pair again and again, cut off by separators.

Every op keeps its tensor's shape, so that the four chains of a pair differ in nothing but the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Literal

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.campaigns.fusion.cases import WINDOWED, rule_of
from latfarm_controller.campaigns.fusion.operators import OPERATORS, SIZES, FusionOperator

Divider = Literal["MaxPool", "AveragePool", "Softmax", "Softmax across"]

LINKS = 16
_CHANNELS, _SIDE, _ROWS = 16, 4, 8

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
        # Some runtimes know a softmax of rows between matrix products as attention, and run all of
        # it as one kernel; nobody asks for one of columns.
        "Softmax across": lambda b, x, _: b.softmax(x, 0),
    }
)
_LAID_OUT = WINDOWED | {"ConvTranspose"}


@dataclass(frozen=True)
class ChainCase:
    """A pair along a chain, with the three chains that it is compared with.

    Of a pair of elementwise ops the separator is a softmax, which has no layout of its own, of one
    with a windowed op a pooling, which has the same as that: a separator in another layout would
    be an excuse for a pair to save two conversions. An op with two operands reads the last
    separator's result beside Op1's, as a residual block does.

    A pooling may be faster in the layout that a windowed op hands on than in the one that it has by
    itself: such ops stand at the head of all four chains, so that all run in the same.
    """

    first: FusionOperator
    second: FusionOperator
    divider: Divider

    @property
    def size_name(self) -> str:
        """Which chains share a separator and a head."""
        head = f" behind {','.join(self.head)}" if self.head else ""
        return f"chain of {self.divider}{head}"

    @property
    def head(self) -> tuple[str, ...]:
        """Operators that stand before the links: those of the pair that may choose a layout."""
        if self.first.flat:
            return ()
        return tuple(
            operator.name
            for operator in (self.first, self.second)
            if operator.op in _LAID_OUT and operator.op != self.divider
        )

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
        """Every tensor of the chain; along a softmax it is long, as short ones cost more each."""
        if self.first.flat:
            return (_ROWS, _CHANNELS)
        if self.divider == "Softmax":
            return (1, _CHANNELS, 1, _SIDE * _SIDE)
        return (1, _CHANNELS, _SIDE, _SIDE)

    @cached_property
    def bare(self) -> Graph:
        """The separators alone."""
        return self._chain()

    @cached_property
    def single_first(self) -> Graph:
        """Op1 between separators."""
        return self._chain(self.first.name)

    @cached_property
    def single_second(self) -> Graph:
        """Op2 between separators."""
        return self._chain(self.second.name)

    @cached_property
    def connected(self) -> Graph:
        """(Op1, Op2) between separators."""
        return self._chain(self.first.name, self.second.name)

    def _chain(self, *operators: str) -> Graph:
        return _chain(self.divider, self.wide_shape, self.head, operators)


@lru_cache(maxsize=256)
def _chain(
    divider: Divider, shape: tuple[int, ...], head: tuple[str, ...], operators: tuple[str, ...]
) -> Graph:
    """The operators between separators, as often as a chain has links, behind the head."""
    b = GraphBuilder(f"{LINKS} x {','.join(operators) or 'nothing'} | {divider}")
    divide = _DIVIDERS[divider]
    before = divide(b, b.input(shape), "")
    x = divide(b, before, "")
    for link in (*((head,) if head else ()), *(operators,) * LINKS):
        y = x
        for place, name in enumerate(link):
            y = _step(OPERATORS[name])(b, y, before if place == 0 else x)
        before, x = x, divide(b, y, "")
    return b.build([x])


def _step(operator: FusionOperator) -> Step:
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
    if a.flat:
        return ("Softmax", "Softmax across")
    if not _LAID_OUT.intersection((a.op, b.op)):
        return ("Softmax",)
    return ("MaxPool", "AveragePool")
