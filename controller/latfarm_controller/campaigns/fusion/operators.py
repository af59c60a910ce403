"""The operators whose pairs fusion detection tests, and how each is put into a test model.

Every test model has a wide tensor between its two operators. The first operator makes it from
inputs of its own, the second operator reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from latfarm_predictors.graph.builder import GraphBuilder


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
        # A tensor of 0.4 MB stays in a cache, one of 3.2 MB does not. Some devices fuse a pair only
        # when its tensors are large.
        "small": CaseSize(channels=32, side=56, rows=64, features=1024),
        "large": CaseSize(channels=64, side=112, rows=128, features=4096),
    }
)

First = Callable[[GraphBuilder, CaseSize], str]
"""Adds an operator that makes the wide tensor; gives the tensor's name."""
Second = Callable[[GraphBuilder, str, str, CaseSize], str]
"""Adds an operator that reads the wide tensor and, where it takes two operands, another tensor of
the same shape; gives the name of the result."""


@dataclass(frozen=True)
class FusionOperator:
    """One entry of the operator list.

    Attributes:
        name: the operator's name in the list.
        op: its name in fusion rules.
        first: adds it to a model as the first operator; None: it is not tested in this place.
        second: adds it to a model as the second operator; None: it is not tested in this place.
        operands: the number of its data operands.
        flat: whether the wide tensor is a matrix.
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


@dataclass(frozen=True)
class _Shrink:
    """The difference in size between the input of an op and the wide tensor that it makes.

    Attributes:
        side: number of elements by which each side is smaller.
        halve: whether each side is half as long.
    """

    side: int = 0
    halve: bool = False

    def of(self, size: CaseSize) -> CaseSize:
        side = (size.side // 2 if self.halve else size.side) - self.side
        return replace(size, side=side)


def _unary(
    name: str,
    op: str,
    apply: Callable[[GraphBuilder, str], str],
    shrink: _Shrink = _Shrink(),
) -> FusionOperator:
    return FusionOperator(
        name,
        op,
        first=lambda b, size: apply(b, _wide(b, shrink.of(size))),
        second=lambda b, x, _y, _size: apply(b, x),
    )


def _pointwise_pair(
    name: str, op: str, apply: Callable[[GraphBuilder, str, str], str]
) -> FusionOperator:
    return FusionOperator(
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


def _per_feature(b: GraphBuilder, x: str) -> str:
    return b.weight(b.type_of(x).shape[1:])


def _flat_unary(name: str, op: str, apply: Callable[[GraphBuilder, str], str]) -> FusionOperator:
    return FusionOperator(
        name,
        op,
        first=lambda b, size: apply(b, _flat(b, size)),
        second=lambda b, x, _y, _size: apply(b, x),
        flat=True,
    )


def _concat_first(b: GraphBuilder, size: CaseSize) -> str:
    half = (1, size.channels // 2, size.side, size.side)
    return b.concat([b.input(half), b.input(half)])


OPERATORS: Mapping[str, FusionOperator] = MappingProxyType(
    {
        operator.name: operator
        for operator in (
            FusionOperator(
                "conv",
                "Conv",
                first=_conv_first(1),
                second=lambda b, x, _y, size: b.conv(x, size.narrow, 1),
            ),
            FusionOperator(
                "dwconv",
                "Conv",
                first=lambda b, size: b.depthwise(_wide(b, size), 3),
                second=lambda b, x, _y, _size: b.depthwise(x, 3),
            ),
            FusionOperator(
                "conv_transpose",
                "ConvTranspose",
                first=lambda b, size: b.conv_transpose(
                    b.input((1, size.narrow, size.side // 2, size.side // 2)), size.channels, 2, 2
                ),
                second=lambda b, x, _y, size: b.conv_transpose(x, size.narrow, 2, 2),
            ),
            _unary("bn", "BatchNormalization", lambda b, x: b.batch_norm(x)),
            _unary("relu", "Relu", lambda b, x: b.relu(x)),
            _unary("relu6", "Clip", lambda b, x: b.relu6(x)),
            _unary("leaky_relu", "LeakyRelu", lambda b, x: b.leaky_relu(x, 0.1)),
            _unary("sigmoid", "Sigmoid", lambda b, x: b.sigmoid(x)),
            _unary("hard_sigmoid", "HardSigmoid", lambda b, x: b.hard_sigmoid(x)),
            _unary("swish", "Swish", lambda b, x: b.mul(x, b.sigmoid(x))),
            _unary("hard_swish", "HardSwish", lambda b, x: b.hard_swish(x)),
            _unary("tanh", "Tanh", lambda b, x: b.tanh(x)),
            _unary("max_pool", "MaxPool", lambda b, x: b.max_pool(x, 3, 1, "same")),
            _unary("avg_pool", "AveragePool", lambda b, x: b.avg_pool(x, 3, 1, "same")),
            _unary("lrn", "LRN", lambda b, x: b.lrn(x, 5)),
            FusionOperator(
                "global_pool",
                "GlobalAveragePool",
                second=lambda b, x, _y, _size: b.global_avg_pool(x),
            ),
            _unary("prelu", "PRelu", lambda b, x: b.op("PRelu", [x, _per_channel(b, x)])),
            _unary("elu", "Elu", lambda b, x: b.op("Elu", [x], {"alpha": 1.0})),
            _unary("softplus", "Softplus", lambda b, x: b.op("Softplus", [x])),
            _unary("erf", "Erf", lambda b, x: b.op("Erf", [x])),
            _unary("exp", "Exp", lambda b, x: b.op("Exp", [x])),
            _unary("sqrt", "Sqrt", lambda b, x: b.op("Sqrt", [x])),
            _unary("abs", "Abs", lambda b, x: b.op("Abs", [x])),
            _unary("neg", "Neg", lambda b, x: b.op("Neg", [x])),
            _unary("pad", "Pad", lambda b, x: b.pad(x, (1, 1, 1, 1)), shrink=_Shrink(side=2)),
            _unary("resize", "Resize", lambda b, x: b.resize(x, 2.0), shrink=_Shrink(halve=True)),
            _unary("transpose", "Transpose", lambda b, x: b.transpose(x, (0, 1, 3, 2))),
            FusionOperator(
                "slice",
                "Slice",
                second=lambda b, x, _y, size: b.slice(x, [0], [size.channels // 2], [1]),
            ),
            FusionOperator(
                "depth_to_space",
                "DepthToSpace",
                second=lambda b, x, _y, _size: b.op("DepthToSpace", [x], {"blocksize": 2}),
            ),
            FusionOperator(
                "mean", "ReduceMean", second=lambda b, x, _y, _size: b.reduce_mean(x, (2, 3))
            ),
            _pointwise_pair("add", "Add", lambda b, x, y: b.add(x, y)),
            _pointwise_pair("mul", "Mul", lambda b, x, y: b.mul(x, y)),
            _pointwise_pair("sub", "Sub", lambda b, x, y: b.sub(x, y)),
            _pointwise_pair("div", "Div", lambda b, x, y: b.div(x, y)),
            _unary("scale", "Mul:const", lambda b, x: b.mul(x, _per_channel(b, x))),
            _unary("shift", "Add:const", lambda b, x: b.add(x, _per_channel(b, x))),
            FusionOperator(
                "concat",
                "Concat",
                first=_concat_first,
                second=lambda b, x, y, _size: b.concat([x, y]),
                operands=2,
            ),
            FusionOperator(
                "fc",
                "Gemm",
                first=lambda b, size: b.fc(b.input((size.rows, size.narrow)), size.features),
                second=lambda b, x, _y, size: b.fc(x, size.narrow),
                flat=True,
            ),
            FusionOperator(
                "matmul",
                "MatMul",
                first=lambda b, size: b.matmul(
                    b.input((size.rows, size.narrow)), b.weight((size.narrow, size.features))
                ),
                second=lambda b, x, _y, size: b.matmul(x, b.weight((size.features, size.narrow))),
                flat=True,
            ),
            _flat_unary("flat_shift", "Add:const", lambda b, x: b.add(x, _per_feature(b, x))),
            _flat_unary("flat_scale", "Mul:const", lambda b, x: b.mul(x, _per_feature(b, x))),
            _flat_unary("flat_erf", "Erf", lambda b, x: b.op("Erf", [x])),
            _flat_unary("flat_sigmoid", "Sigmoid", lambda b, x: b.sigmoid(x)),
            _flat_unary("flat_tanh", "Tanh", lambda b, x: b.tanh(x)),
            FusionOperator(
                "flat_add",
                "Add",
                first=lambda b, size: b.add(_flat(b, size), _flat(b, size)),
                second=lambda b, x, y, _size: b.add(x, y),
                operands=2,
                flat=True,
            ),
            FusionOperator(
                "flat_relu",
                "Relu",
                first=lambda b, size: b.relu(_flat(b, size)),
                second=lambda b, x, _y, _size: b.relu(x),
                flat=True,
            ),
            FusionOperator(
                "softmax",
                "Softmax",
                first=lambda b, size: b.softmax(_flat(b, size)),
                second=lambda b, x, _y, _size: b.softmax(x),
                flat=True,
            ),
        )
    }
)


def _heavy(kernel: int) -> FusionOperator:
    def first(b: GraphBuilder, size: CaseSize) -> str:
        x = b.input((1, size.channels, size.side, size.side))
        return b.conv(x, size.channels, kernel)

    return FusionOperator(f"heavy_conv{kernel}", "Conv", first=first)


HEAVY_CONVS = (_heavy(7), _heavy(13))
"""Convolutions that compute longer than they move data. They are used in joins only, since in pairs
they are the same op as `conv`."""
