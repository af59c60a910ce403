"""Test cases of fusion detection: the pairs of operators, and the models to be measured.

Every case has a wide tensor between its two operators, large enough that the cheaper of both takes
a measurable time; convolutions and fully connected layers have few channels on their other side, so
that they do not drown it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion_ops import GATE, GATED

from latfarm_controller.campaigns.fusion.operators import (
    OPERATORS,
    SIZES,
    CaseSize,
    FusionOperator,
)

Branch = Literal[0, 1, 2]
"""Which branch of a join or fork is fused: 0 none, 1 the first, 2 the last."""

WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "LRN"})
"""Ops over a neighbourhood or a whole map, whose tensors may have a layout of their own."""

_FOLLOWERS = {
    "conv": (
        "bn relu relu6 leaky_relu prelu sigmoid hard_sigmoid swish hard_swish add mul scale shift "
        "concat conv max_pool avg_pool"
    ),
    "dwconv": "bn relu relu6 hard_swish conv",
    "bn": "relu relu6 sigmoid add conv scale shift",
    "scale": "shift relu",
    "shift": "relu conv",
    "relu": "conv dwconv bn max_pool avg_pool global_pool add concat lrn",
    "relu6": "conv dwconv",
    "sigmoid": "mul",
    "hard_sigmoid": "mul",
    "add": "relu conv bn add",
    "mul": "conv add",
    "max_pool": "conv concat lrn relu",
    "avg_pool": "conv concat",
    "concat": "conv bn relu avg_pool",
    "lrn": "max_pool conv",
    "fc": "flat_relu softmax",
    "matmul": "flat_shift flat_add softmax",
    "conv_transpose": "bn relu",
    "flat_relu": "fc",
}

CORE_PAIRS: tuple[tuple[str, str], ...] = tuple(
    (first, second) for first, names in _FOLLOWERS.items() for second in names.split()
)
"""The ordered pairs that occur in convolutional networks."""


def all_pairs() -> tuple[tuple[str, str], ...]:
    """Every ordered pair of the operator list whose shapes fit."""
    return tuple(
        (a.name, b.name)
        for a in OPERATORS.values()
        for b in OPERATORS.values()
        if a.first is not None and b.second is not None and a.flat == b.flat
    )


def rule_of(first: FusionOperator, second: FusionOperator) -> tuple[str, str]:
    """What the rules call a pair; a product behind a sigmoid is of that sigmoid's own input."""
    gate = second.op == "Mul" and first.op in GATED
    return (first.op, second.op + GATE if gate else second.op)


@dataclass(frozen=True)
class PairCase:
    """A pair at a size: the connected model (Op1, Op2) and both single-op models."""

    first: FusionOperator
    second: FusionOperator
    size_name: str

    @property
    def size(self) -> CaseSize:
        """Its tensors' shapes."""
        return SIZES[self.size_name]

    @property
    def rule(self) -> tuple[str, str]:
        """The pair of ops as in the rules."""
        return rule_of(self.first, self.second)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.first.name}+{self.second.name}@{self.size_name}"

    @cached_property
    def single_first(self) -> Graph:
        """Op1 alone."""
        return single_first(self.first, self.size)

    @cached_property
    def wide_shape(self) -> tuple[int, ...]:
        """The tensor between both ops."""
        return self.single_first.type_of(self.single_first.outputs[0]).shape

    @cached_property
    def single_second(self) -> Graph:
        """Op2 alone, on inputs of the wide tensor's shape."""
        return single_second(self.second, self.wide_shape, self.size)

    @cached_property
    def connected(self) -> Graph:
        """Op1 followed by Op2."""
        assert self.first.first is not None
        assert self.second.second is not None
        b = GraphBuilder(self.label)
        wide = self.first.first(b, self.size)
        other = ""
        if self.second.binary:
            # x * sigmoid(x): an activation in two ops reads its own input again.
            other = "input" if self.rule[1].endswith(GATE) else b.input(b.type_of(wide).shape)
        return b.build([self.second.second(b, wide, other, self.size)])


def single_first(operator: FusionOperator, size: CaseSize) -> Graph:
    """The operator alone, making the wide tensor."""
    assert operator.first is not None
    b = GraphBuilder(operator.name)
    return b.build([operator.first(b, size)])


def single_second(operator: FusionOperator, shape: tuple[int, ...], size: CaseSize) -> Graph:
    """The operator alone, reading inputs of that shape."""
    assert operator.second is not None
    b = GraphBuilder(operator.name)
    x = b.input(shape)
    y = b.input(shape) if operator.binary else ""
    return b.build([operator.second(b, x, y, size)])


def pair_case(first: str, second: str, size_name: str) -> PairCase:
    """A case by the operators' names.

    Raises:
        GraphError: no such operator, or the pair's shapes do not fit.
    """
    for name in (first, second):
        if name not in OPERATORS:
            raise GraphError(f"no operator {name!r}; known: {', '.join(OPERATORS)}")
    a, b = OPERATORS[first], OPERATORS[second]
    if a.first is None or b.second is None or a.flat != b.flat:
        raise GraphError(f"{first} cannot be followed by {second} in a test case")
    return PairCase(a, b, size_name)


def empty_model() -> Graph:
    """One op on four numbers: its time is the cost of a call."""
    b = GraphBuilder("empty")
    return b.build([b.relu(b.input((1, 4, 1, 1)))])


def control_model(size: CaseSize) -> Graph:
    """Three ops that no runtime runs as one kernel: a profile with one layer tells nothing."""
    b = GraphBuilder("control")
    x = b.conv(b.input((1, size.narrow, size.side, size.side)), size.channels, 3)
    return b.build([b.conv(b.max_pool(x, 3, 1, "same"), size.channels, 3)])


@dataclass(frozen=True)
class JoinCase:
    """Multi-inbound, Fig. 4(c): Op6 and Op7 are read by Op8."""

    left: FusionOperator
    right: FusionOperator
    join: FusionOperator
    size_name: str = "small"

    @cached_property
    def graph(self) -> Graph:
        """The connected model; its first node is Op6, its second Op7."""
        assert self.left.first is not None
        assert self.right.first is not None
        assert self.join.second is not None
        size = SIZES[self.size_name]
        b = GraphBuilder(f"{self.left.name},{self.right.name}>{self.join.name}")
        left = self.left.first(b, size)
        right = self.right.first(b, size)
        return b.build([self.join.second(b, left, right, size)])


@dataclass(frozen=True)
class ForkCase:
    """Multi-outbound, Fig. 4(b): Op3 is read by Op4 and Op5."""

    root: FusionOperator
    left: FusionOperator
    right: FusionOperator
    size_name: str = "small"

    @cached_property
    def graph(self) -> Graph:
        """The connected model with both results as outputs."""
        assert self.root.first is not None
        assert self.left.second is not None
        assert self.right.second is not None
        size = SIZES[self.size_name]
        b = GraphBuilder(f"{self.root.name}<{self.left.name},{self.right.name}")
        wide = self.root.first(b, size)
        outputs = []
        for operator in (self.left, self.right):
            assert operator.second is not None
            other = b.input(b.type_of(wide).shape) if operator.binary else ""
            outputs.append(operator.second(b, wide, other, size))
        return b.build(outputs)


@dataclass(frozen=True)
class OrderCase:
    """A join of a wide branch and of one that is but a number per channel, in either order.

    The branch that a join runs with saves its own tensor's trip: the wide one's or next to nothing.
    The two models hold the same ops, so that nothing but the runtime's choice tells their times
    apart. A global pooling leaves the result small, where outputs are slow.
    """

    join: FusionOperator
    size_name: str = "large"

    @cached_property
    def wide_first(self) -> Graph:
        """The wide branch is the first."""
        return self._graph("wide,flat", (True, False))

    @cached_property
    def wide_last(self) -> Graph:
        """The wide branch is the last."""
        return self._graph("flat,wide", (False, True))

    def _graph(self, name: str, wide: tuple[bool, bool]) -> Graph:
        assert self.join.second is not None
        size = SIZES[self.size_name]
        b = GraphBuilder(f"{name}>{self.join.name}")
        branches = []
        for is_wide in wide:
            side = size.side if is_wide else 1
            # The order of an addition's operands is no part of a graph's hash: one channel is.
            channels = size.narrow + (wide[0] and not is_wide)
            branches.append(b.conv(b.input((1, channels, side, side)), size.channels, 1))
        first, last = branches
        return b.build([b.global_avg_pool(self.join.second(b, first, last, size))])
