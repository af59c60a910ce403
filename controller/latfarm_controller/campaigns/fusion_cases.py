"""Test cases of fusion detection: operators, the pairs of them, and the models to be measured.

Every case has a wide tensor between its two operators, large enough that the cheaper of both takes
a measurable time; convolutions and fully connected layers have few channels on their other side, so
that they do not drown it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class CaseSize:
    """Shape of the wide tensor: (1, channels, side, side), or (rows, features) between matrices.

    `narrow` is the number of channels on the other side of a convolution or fully connected layer.
    """

    channels: int
    side: int
    rows: int
    features: int
    narrow: int = 8


SIZES: Mapping[str, CaseSize] = MappingProxyType(
    {
        # 0.4 MB stays in a cache; 3.2 MB leaves it. Some devices fuse a pair only when it is large.
        "small": CaseSize(channels=32, side=56, rows=64, features=1024),
        "large": CaseSize(channels=64, side=112, rows=128, features=4096),
    }
)

Branch = Literal[0, 1, 2]
"""Which branch of a join or fork is fused: 0 none, 1 the first, 2 the last."""

First = Callable[[GraphBuilder, CaseSize], str]
Second = Callable[[GraphBuilder, str, str, CaseSize], str]


@dataclass(frozen=True)
class Operator:
    """One entry of the operator list.

    `op` is the name in the rules. `first` makes the wide tensor from inputs of its own; `second`
    reads the wide tensor and, where it takes two operands, another of the same shape. None: the
    operator is not tested in that place. `flat`: the wide tensor is a matrix.
    """

    name: str
    op: str
    first: First | None = None
    second: Second | None = None
    operands: int = 1
    flat: bool = False

    @property
    def binary(self) -> bool:
        """Whether it takes two data operands."""
        return self.operands == 2


def _wide(b: GraphBuilder, size: CaseSize) -> str:
    return b.input((1, size.channels, size.side, size.side))


def _flat(b: GraphBuilder, size: CaseSize) -> str:
    return b.input((size.rows, size.features))


def _unary(name: str, op: str, apply: Callable[[GraphBuilder, str], str]) -> Operator:
    return Operator(
        name,
        op,
        first=lambda b, size: apply(b, _wide(b, size)),
        second=lambda b, x, _y, _size: apply(b, x),
    )


def _pointwise_pair(name: str, op: str, apply: Callable[[GraphBuilder, str, str], str]) -> Operator:
    return Operator(
        name,
        op,
        first=lambda b, size: apply(b, _wide(b, size), _wide(b, size)),
        second=lambda b, x, y, _size: apply(b, x, y),
        operands=2,
    )


def _conv_first(kernel: int) -> First:
    return lambda b, size: b.conv(
        b.input((1, size.narrow, size.side, size.side)), size.channels, kernel
    )


def _per_channel(b: GraphBuilder, x: str) -> str:
    return b.weight((b.type_of(x).shape[1], 1, 1))


def _concat_first(b: GraphBuilder, size: CaseSize) -> str:
    half = (1, size.channels // 2, size.side, size.side)
    return b.concat([b.input(half), b.input(half)])


OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        operator.name: operator
        for operator in (
            Operator(
                "conv",
                "Conv",
                first=_conv_first(1),
                second=lambda b, x, _y, size: b.conv(x, size.narrow, 1),
            ),
            Operator(
                "dwconv",
                "Conv",
                first=lambda b, size: b.depthwise(_wide(b, size), 3),
                second=lambda b, x, _y, _size: b.depthwise(x, 3),
            ),
            _unary("bn", "BatchNormalization", lambda b, x: b.batch_norm(x)),
            _unary("relu", "Relu", lambda b, x: b.relu(x)),
            _unary("relu6", "Clip", lambda b, x: b.relu6(x)),
            _unary("leaky_relu", "LeakyRelu", lambda b, x: b.leaky_relu(x, 0.1)),
            _unary("sigmoid", "Sigmoid", lambda b, x: b.sigmoid(x)),
            _unary("hard_sigmoid", "HardSigmoid", lambda b, x: b.hard_sigmoid(x)),
            _unary("tanh", "Tanh", lambda b, x: b.tanh(x)),
            _unary("max_pool", "MaxPool", lambda b, x: b.max_pool(x, 3, 1, "same")),
            _unary("avg_pool", "AveragePool", lambda b, x: b.avg_pool(x, 3, 1, "same")),
            _unary("lrn", "LRN", lambda b, x: b.lrn(x, 5)),
            Operator(
                "global_pool",
                "GlobalAveragePool",
                second=lambda b, x, _y, _size: b.global_avg_pool(x),
            ),
            _pointwise_pair("add", "Add", lambda b, x, y: b.add(x, y)),
            _pointwise_pair("mul", "Mul", lambda b, x, y: b.mul(x, y)),
            _unary("scale", "Mul:const", lambda b, x: b.mul(x, _per_channel(b, x))),
            _unary("shift", "Add:const", lambda b, x: b.add(x, _per_channel(b, x))),
            Operator(
                "concat",
                "Concat",
                first=_concat_first,
                second=lambda b, x, y, _size: b.concat([x, y]),
                operands=2,
            ),
            Operator(
                "fc",
                "Gemm",
                first=lambda b, size: b.fc(b.input((size.rows, size.narrow)), size.features),
                second=lambda b, x, _y, size: b.fc(x, size.narrow),
                flat=True,
            ),
            Operator(
                "flat_relu",
                "Relu",
                first=lambda b, size: b.relu(_flat(b, size)),
                second=lambda b, x, _y, _size: b.relu(x),
                flat=True,
            ),
            Operator(
                "softmax",
                "Softmax",
                first=lambda b, size: b.softmax(_flat(b, size)),
                second=lambda b, x, _y, _size: b.softmax(x),
                flat=True,
            ),
        )
    }
)

WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "LRN"})
"""Ops over a neighbourhood or a whole map, whose tensors may have a layout of their own."""

_FOLLOWERS = {
    "conv": (
        "bn relu relu6 leaky_relu sigmoid hard_sigmoid add mul scale shift concat conv max_pool "
        "avg_pool"
    ),
    "dwconv": "bn relu relu6 conv",
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


@dataclass(frozen=True)
class PairCase:
    """A pair at a size: the connected model (Op1, Op2) and both single-op models."""

    first: Operator
    second: Operator
    size_name: str

    @property
    def size(self) -> CaseSize:
        """Its tensors' shapes."""
        return SIZES[self.size_name]

    @property
    def rule(self) -> tuple[str, str]:
        """The pair of ops as in the rules."""
        return (self.first.op, self.second.op)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.first.name}+{self.second.name}@{self.size_name}"

    @cached_property
    def single_first(self) -> Graph:
        """Op1 alone."""
        return single_first(self.first, self.size)

    @cached_property
    def single_second(self) -> Graph:
        """Op2 alone, on inputs of the wide tensor's shape."""
        assert self.first.first is not None
        shapes = GraphBuilder("wide")
        shape = shapes.type_of(self.first.first(shapes, self.size)).shape
        return single_second(self.second, shape, self.size)

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
            gate = self.second.op == "Mul" and self.first.op in ("Sigmoid", "HardSigmoid")
            other = "input" if gate else b.input(b.type_of(wide).shape)
        return b.build([self.second.second(b, wide, other, self.size)])


def single_first(operator: Operator, size: CaseSize) -> Graph:
    """The operator alone, making the wide tensor."""
    assert operator.first is not None
    b = GraphBuilder(operator.name)
    return b.build([operator.first(b, size)])


def single_second(operator: Operator, shape: tuple[int, ...], size: CaseSize) -> Graph:
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

    left: Operator
    right: Operator
    join: Operator
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

    root: Operator
    left: Operator
    right: Operator
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
