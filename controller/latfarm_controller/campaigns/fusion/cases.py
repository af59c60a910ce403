"""Test cases of fusion detection: the pairs of operators, and the models to be measured.

Every case has a wide tensor between its two operators. It is so large that the cheaper operator
takes a measurable time. Convolutions and fully connected layers have few channels on their other
side, so that their own time does not hide that of the cheaper operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.op_sets import CONVOLUTIONS
from latfarm_predictors.kernels.fusion_ops import GATE, GATED

from latfarm_controller.campaigns.fusion.operators import (
    OPERATORS,
    SIZES,
    CaseSize,
    FusionOperator,
)

Branch = Literal[0, 1, 2]
"""Which branch of a join or fork is fused: 0 for none, 1 for the first, 2 for the last."""

WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "LRN"})
"""Ops that read a window or a whole map; runtimes may use a layout of their own for them."""

_POOL = OPERATORS["max_pool"]
"""What stands behind an activation, as more of a network does."""

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
"""The names of the operators that follow each operator in convolutional networks."""

CORE_PAIRS: tuple[tuple[str, str], ...] = tuple(
    (first, second) for first, names in _FOLLOWERS.items() for second in names.split()
)
"""The ordered pairs of operator names that occur in convolutional networks."""


def all_pairs() -> tuple[tuple[str, str], ...]:
    """Every ordered pair of the operator list whose shapes fit together."""
    return tuple(
        (a.name, b.name)
        for a in OPERATORS.values()
        for b in OPERATORS.values()
        if a.first is not None and b.second is not None and a.flat == b.flat
    )


def rule_of(first: FusionOperator, second: FusionOperator) -> tuple[str, str]:
    """The names of a pair in fusion rules, where a sigmoid times its own input has a name."""
    gate = second.op == "Mul" and first.op in GATED
    return (first.op, second.op + GATE if gate else second.op)


@dataclass(frozen=True)
class PairCase:
    """A pair of operators at a size: the connected model (Op1, Op2) and both single-op models."""

    first: FusionOperator
    second: FusionOperator
    size_name: str

    @property
    def size(self) -> CaseSize:
        """The shapes of its tensors."""
        return SIZES[self.size_name]

    @property
    def rule(self) -> tuple[str, str]:
        """The names of the pair in fusion rules."""
        return rule_of(self.first, self.second)

    @property
    def label(self) -> str:
        """The name of the case for people."""
        return f"{self.first.name}+{self.second.name}@{self.size_name}"

    @cached_property
    def single_first(self) -> Graph:
        """Op1 alone."""
        return single_first(self.first, self.size)

    @cached_property
    def wide_shape(self) -> tuple[int, ...]:
        """The shape of the tensor between both ops."""
        return self.single_first.type_of(self.single_first.outputs[0]).shape

    @cached_property
    def single_second(self) -> Graph:
        """Op2 alone, with inputs of the wide tensor's shape."""
        return single_second(self.second, self.wide_shape, self.size)

    @cached_property
    def connected(self) -> Graph:
        """Op1 followed by Op2."""
        b = GraphBuilder(self.label)
        return b.build([self._both(b)])

    @property
    def continues(self) -> bool:
        """Whether Op2 is an activation behind a convolution, where a network goes on as it was."""
        second = self.second
        if self.first.op not in CONVOLUTIONS or second.binary or second.op in WINDOWED:
            return False
        return self.connected.type_of(self.connected.outputs[0]).shape == self.wide_shape

    @cached_property
    def continued(self) -> Graph:
        """Op1, Op2 and a pool, since a network goes on behind an activation.

        Some runtimes fuse no activation whose result is an output of the model.
        """
        b = GraphBuilder(f"{self.label}+pool")
        both = self._both(b)
        assert _POOL.second is not None
        return b.build([_POOL.second(b, both, "", self.size)])

    @cached_property
    def pool_alone(self) -> Graph:
        """The pool of `continued` alone."""
        return single_second(_POOL, self.wide_shape, self.size)

    def _both(self, b: GraphBuilder) -> str:
        """Add Op1 and Op2; the name of the result of Op2."""
        assert self.first.first is not None
        assert self.second.second is not None
        wide = self.first.first(b, self.size)
        other = ""
        if self.second.binary:
            # x * sigmoid(x) is an activation in two ops: the product reads the sigmoid's input.
            other = "input" if self.rule[1].endswith(GATE) else b.input(b.type_of(wide).shape)
        return self.second.second(b, wide, other, self.size)


def single_first(operator: FusionOperator, size: CaseSize) -> Graph:
    """A model of the operator alone, which makes the wide tensor."""
    assert operator.first is not None
    b = GraphBuilder(operator.name)
    return b.build([operator.first(b, size)])


def single_second(operator: FusionOperator, shape: tuple[int, ...], size: CaseSize) -> Graph:
    """A model of the operator alone, which reads inputs of this shape."""
    assert operator.second is not None
    b = GraphBuilder(operator.name)
    x = b.input(shape)
    y = b.input(shape) if operator.binary else ""
    return b.build([operator.second(b, x, y, size)])


def pair_case(first: str, second: str, size_name: str) -> PairCase:
    """The test case of two operators, given by their names.

    Raises:
        GraphError: there is no such operator, or the shapes of the two do not fit together.
    """
    for name in (first, second):
        if name not in OPERATORS:
            raise GraphError(f"no operator {name!r}; known: {', '.join(OPERATORS)}")
    a, b = OPERATORS[first], OPERATORS[second]
    if a.first is None or b.second is None or a.flat != b.flat:
        raise GraphError(f"{first} cannot be followed by {second} in a test case")
    return PairCase(a, b, size_name)


def control_model(size: CaseSize) -> Graph:
    """Three ops that no runtime runs as one kernel; a profile with one layer hides what ran."""
    b = GraphBuilder("control")
    x = b.conv(b.input((1, size.narrow, size.side, size.side)), size.channels, 3)
    return b.build([b.conv(b.max_pool(x, 3, 1, "same"), size.channels, 3)])


@dataclass(frozen=True)
class JoinCase:
    """The multi-inbound case of nn-Meter's Fig. 4(c): Op8 reads Op6 and Op7."""

    left: FusionOperator
    right: FusionOperator
    join: FusionOperator
    size_name: str = "small"

    @cached_property
    def graph(self) -> Graph:
        """The connected model; its first node is Op6, its second is Op7."""
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
    """The multi-outbound case of nn-Meter's Fig. 4(b): Op4 and Op5 read Op3."""

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
    """A join of a wide branch with a branch of one number per channel, in either order.

    If the join is fused with the wide branch, the wide tensor need not be written to memory and
    read again; if it is fused with the other branch, next to nothing is saved. Both models have the
    same ops, so that their times differ only by which branch the runtime chooses. A global pooling
    at the end keeps the output small, because on some boards large outputs are slow.
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
            # The order of operands is no part of a graph's hash: one more channel makes it another.
            channels = size.narrow + (wide[0] and not is_wide)
            branches.append(b.conv(b.input((1, channels, side, side)), size.channels, 1))
        first, last = branches
        return b.build([b.global_avg_pool(self.join.second(b, first, last, size))])
