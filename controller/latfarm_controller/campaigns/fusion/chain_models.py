"""The models of pairs along chains: the same pair many times, with separators in between.

Every op keeps the shape of its tensor, so that the four chains of a pair differ only in the pair.
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

"""The separators: a pooling, or a softmax along the last axis or (`across`) along the first."""

LINKS = 16
"""Number of repetitions of a pair along its chain."""
_CHANNELS, _SIDE, _ROWS = 16, 4, 8
"""Channels and side of the tensors of a chain, and the rows of its matrices, in elements."""

_TINY = replace(
    SIZES["small"],
    channels=_CHANNELS,
    side=_SIDE,
    rows=_ROWS,
    features=_CHANNELS,
    narrow=_CHANNELS,
)

Step = Callable[[GraphBuilder, str, str], str]
"""Adds an op that reads a tensor and, if it takes two operands, another one; gives its result."""

_OWN_STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "conv": lambda b, x, _: b.conv(x, _CHANNELS, 1),
        "conv_transpose": lambda b, x, _: b.conv_transpose(x, _CHANNELS, 1),
        "fc": lambda b, x, _: b.fc(x, _CHANNELS),
        "matmul": lambda b, x, _: b.matmul(x, b.weight((_CHANNELS, _CHANNELS))),
    }
)
"""The operators that change the shape of their tensor in a pair, in a form that keeps it."""

_NOT_CHAINED = frozenset(
    {
        *("pad", "resize", "transpose", "slice", "depth_to_space"),
        *("mean", "global_pool", "concat"),
    }
)
"""Operators that change a shape, or that cancel each other out along a chain."""

_DIVIDERS: Mapping[Divider, Step] = MappingProxyType(
    {
        "MaxPool": lambda b, x, _: b.max_pool(x, 3, 1, "same"),
        "AveragePool": lambda b, x, _: b.avg_pool(x, 3, 1, "same"),
        "Softmax": lambda b, x, _: b.softmax(x),
        # Some runtimes take a softmax along rows between matrix products for attention, and run
        # all of it as one kernel. They do not do so with a softmax along columns.
        "Softmax across": lambda b, x, _: b.softmax(x, 0),
    }
)
"""Adds each separator to a model."""
_LAID_OUT = WINDOWED | {"ConvTranspose"}
"""Ops for which runtimes may use a layout of their own."""


@dataclass(frozen=True)
class ChainCase:
    """A pair along a chain, with the three chains that it is compared with.

    With a pair of elementwise ops the separator is a softmax, which has no layout of its own. With
    a windowed op in the pair it is a pooling, which uses the same layout; otherwise connecting the
    pair could save two conversions. An op with two operands reads the result of the last separator
    besides that of Op1, as a residual block does.

    A pooling may be faster in the layout that a windowed op hands on than in its own. So the
    windowed ops of the pair stand at the head of all four chains, and all run in the same layout.

    Attributes:
        first: Op1.
        second: Op2.
        divider: the separator.
        links: number of repetitions of the pair.
    """

    first: FusionOperator
    second: FusionOperator
    divider: Divider
    links: int = LINKS

    @property
    def size_name(self) -> str:
        """The name of the separator and the head: chains with the same name share their models."""
        head = f" behind {','.join(self.head)}" if self.head else ""
        return f"chain of {self.divider}{head}"

    @property
    def head(self) -> tuple[str, ...]:
        """The operators before the links: those of the pair that may have a layout of their own."""
        if self.first.flat:
            return ()
        return tuple(
            operator.name
            for operator in (self.first, self.second)
            if operator.op in _LAID_OUT and operator.op != self.divider
        )

    @property
    def rule(self) -> tuple[str, str]:
        """The names of the pair in fusion rules."""
        return rule_of(self.first, self.second)

    @property
    def label(self) -> str:
        """The name of the case for people."""
        return f"{self.first.name}+{self.second.name}@chain"

    @property
    def wide_shape(self) -> tuple[int, ...]:
        """The shape of every tensor of the chain; a softmax is slow on short rows."""
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
        return _chain(self.divider, self.wide_shape, self.head, operators, self.links)


@lru_cache(maxsize=256)
def _chain(
    divider: Divider,
    shape: tuple[int, ...],
    head: tuple[str, ...],
    operators: tuple[str, ...],
    links: int,
) -> Graph:
    """A head, then `links` times the operators, with separators in between."""
    b = GraphBuilder(f"{links} x {','.join(operators) or 'nothing'} | {divider}")
    divide = _DIVIDERS[divider]
    before = divide(b, b.input(shape), "")
    x = divide(b, before, "")
    for link in (*((head,) if head else ()), *(operators,) * links):
        y = x
        for place, name in enumerate(link):
            y = _step(OPERATORS[name])(b, y, before if place == 0 else x)
        before, x = x, divide(b, y, "")
    return b.build([x])


def _step(operator: FusionOperator) -> Step:
    """Adds an operator to a chain, in a form that keeps the shape of its tensor."""
    own = _OWN_STEPS.get(operator.name)
    if own is not None:
        return own
    second = operator.second
    assert second is not None
    return lambda b, x, other: second(b, x, other, _TINY)


def dividers(first: str, second: str) -> tuple[Divider, ...]:
    """The separators that suit a pair, the best first; none where it cannot be chained."""
    a, b = OPERATORS[first], OPERATORS[second]
    if _NOT_CHAINED.intersection((first, second)) or a.second is None:
        return ()
    if a.flat:
        return ("Softmax", "Softmax across")
    if not _LAID_OUT.intersection((a.op, b.op)):
        return ("Softmax",)
    return ("MaxPool", "AveragePool")
