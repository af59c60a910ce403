"""Equivalences of elementwise ops: equal networks have one network hash, similar ones others."""

from __future__ import annotations

from math import sqrt

import pytest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.testing.spellings import (
    MAP,
    Spelling,
    SpellingCase,
    chain,
    check,
    clip,
    number,
    plain,
    unary,
    with_number,
    with_weight,
)

RELU6 = clip(0, 6)
SHIFTED6 = chain(with_number("Add", 3), RELU6)

NOTHING = [
    SpellingCase(
        "identity and dropout",
        [plain, unary("Identity"), unary("Dropout"), chain(unary("Dropout"), unary("Identity"))],
        [unary("Relu")],
    ),
    SpellingCase(
        "views, cuts, pads and joins that change nothing",
        [
            plain,
            lambda b, x: b.reshape(x, MAP),
            lambda b, x: b.transpose(x, (0, 1, 2, 3)),
            lambda b, x: b.slice(x, [0], [6], [3]),
            lambda b, x: b.pad(x, [0] * 8),
            lambda b, x: b.concat([x]),
            lambda b, x: b.split(x, [4])[0],
            lambda b, x: b.resize(x, 1),
            lambda b, x: b.op("Cast", [x], {"to": 1}),
            lambda b, x: b.op("Expand", [x, b.weight((2,), "int64", (6, 1))]),
            lambda b, x: b.op("Tile", [x, b.weight((4,), "int64", (1, 1, 1, 1))]),
        ],
        [
            lambda b, x: b.slice(x, [1], [6], [3]),
            lambda b, x: b.slice(x, [-1], [-7], [3], [-1]),
            lambda b, x: b.op("Cast", [x], {"to": 10}),
            lambda b, x: b.concat([x, x]),
            lambda b, x: b.transpose(x, (0, 1, 3, 2)),
            lambda b, x: b.pad(x, [0, 0, 0, 1]),
        ],
    ),
    SpellingCase(
        "sums and extremes of one",
        [plain, *(lambda b, x, op=op: b.op(op, [x]) for op in ("Sum", "Mean", "Max", "Min"))],
        [lambda b, x: b.op("Sum", [x, x])],
    ),
    SpellingCase(
        "neutral constants",
        [
            plain,
            with_number("Add", 0),
            with_number("Sub", 0),
            with_number("Mul", 1),
            with_number("Div", 1, (1, 1, 1)),
            with_number("Pow", 1),
            lambda b, x: b.add(number(b, x, 0), x),
        ],
        [
            with_number("Add", 1),
            with_number("Mul", 2),
            with_weight("Mul", ()),
            # It broadcasts, so it is not dropped.
            lambda b, x: b.add(x, number(b, x, 0, (1, 1, 1, 1, 1))),
            lambda b, x: b.sub(number(b, x, 0), x),
        ],
    ),
    SpellingCase(
        "constants of one element",
        [with_number("Add", 2), with_number("Add", 2, (1,)), with_number("Add", 2, (1, 1, 1, 1))],
        [with_number("Add", 2.5), with_number("Mul", 2), with_weight("Add", (1,))],
    ),
    SpellingCase(
        "leading axes of a constant",
        [with_weight("PRelu", (4, 1, 1)), with_weight("PRelu", (1, 4, 1, 1))],
        [with_weight("PRelu", (6, 1)), with_weight("PRelu", (1,)), with_weight("PRelu", (4, 6, 6))],
    ),
]

ARITHMETIC = [
    SpellingCase(
        "sum of two",
        [
            lambda b, x: b.op("Sum", [x, b.sigmoid(x)]),
            lambda b, x: b.add(b.sigmoid(x), x),
        ],
        [lambda b, x: b.sub(x, b.sigmoid(x)), lambda b, x: b.op("Sum", [x, b.sigmoid(x), x])],
    ),
    SpellingCase(
        "subtracted constants",
        [with_number("Sub", 2), with_number("Add", -2)],
        [with_number("Add", 2), lambda b, x: b.sub(number(b, x, 2), x)],
    ),
    SpellingCase(
        "subtracted weights",
        [with_weight("Sub", (6, 6)), with_weight("Add", (6, 6))],
        [
            with_weight("Add", (1, 6)),
            with_weight("Mul", (6, 6)),
            lambda b, x: b.sub(b.weight((6, 6)), x),
        ],
    ),
    SpellingCase(
        "divided by a constant",
        [
            with_number("Div", sqrt(2)),
            with_number("Mul", 1 / sqrt(2)),
            with_number("Mul", 0.70710678),
        ],
        [with_number("Mul", 0.7072), lambda b, x: b.div(number(b, x, sqrt(2)), x)],
    ),
    SpellingCase(
        "divided by weights",
        [with_weight("Div", (6, 6)), with_weight("Mul", (6, 6))],
        [with_weight("Mul", (6, 1)), lambda b, x: b.div(b.weight((6, 6)), x)],
    ),
    SpellingCase(
        "reciprocal",
        [unary("Reciprocal"), lambda b, x: b.div(number(b, x, 1), x), with_number("Pow", -1)],
        [lambda b, x: b.div(number(b, x, 2), x), with_number("Pow", -2)],
    ),
    SpellingCase(
        "division as a product",
        [
            lambda b, x: b.div(x, b.sigmoid(x)),
            lambda b, x: b.mul(b.op("Reciprocal", [b.sigmoid(x)]), x),
        ],
        [lambda b, x: b.div(b.sigmoid(x), x), lambda b, x: b.mul(x, b.sigmoid(x))],
    ),
    SpellingCase(
        "square",
        [with_number("Pow", 2), lambda b, x: b.mul(x, x)],
        [with_number("Pow", 3), with_number("Pow", 2.5), lambda b, x: b.add(x, x)],
    ),
    SpellingCase(
        "cube",
        [
            with_number("Pow", 3),
            lambda b, x: b.mul(b.mul(x, x), x),
            lambda b, x: b.mul(x, b.mul(x, x)),
        ],
        [with_number("Pow", 4)],
    ),
    SpellingCase("root", [with_number("Pow", 0.5), unary("Sqrt")], [with_number("Pow", 0.25)]),
    SpellingCase(
        "factors of a product",
        [
            lambda b, x: b.mul(b.mul(x, number(b, x, 0.5)), b.sigmoid(x)),
            lambda b, x: b.mul(x, b.mul(number(b, x, 0.5), b.sigmoid(x))),
            lambda b, x: b.mul(b.mul(b.sigmoid(x), x), number(b, x, 0.5)),
            lambda b, x: b.div(b.mul(b.sigmoid(x), x), number(b, x, 2)),
            lambda b, x: b.mul(b.mul(x, number(b, x, 2)), b.mul(b.sigmoid(x), number(b, x, 0.25))),
        ],
        [
            lambda b, x: b.mul(b.mul(x, number(b, x, 0.5)), b.sigmoid(b.mul(x, number(b, x, 0.5)))),
            lambda b, x: b.mul(x, b.sigmoid(x)),
            lambda b, x: b.mul(x, b.sigmoid(b.mul(x, number(b, x, 0.5)))),
        ],
    ),
    SpellingCase(
        "a factor of the smaller operand is less work",
        [
            lambda b, x: b.mul(x, b.mul(b.global_avg_pool(x), number(b, x, 0.5))),
            lambda b, x: b.mul(b.div(b.global_avg_pool(x), number(b, x, 2)), x),
        ],
        [lambda b, x: b.mul(b.mul(x, b.global_avg_pool(x)), number(b, x, 0.5))],
    ),
]


def leaky(b: GraphBuilder, x: str) -> str:
    return b.op("Max", [x, b.mul(number(b, x, 0.1), x)])


ACTIVATIONS = [
    SpellingCase(
        "relu",
        [
            unary("Relu"),
            clip(0, None),
            with_number("Max", 0),
            lambda b, x: b.op("Max", [number(b, x, 0, (1,)), x]),
            clip(0, 3.402823e38),
            unary("LeakyRelu", alpha=0.0),
        ],
        [
            clip(1, None),
            with_number("Min", 0),
            RELU6,
            unary("LeakyRelu", alpha=0.01),
            chain(unary("Relu"), unary("Relu")),
        ],
    ),
    SpellingCase(
        "a clip without bounds", [plain, clip(-3.402823e38, 3.402823e38)], [clip(-1e4, 1e4)]
    ),
    SpellingCase(
        "relu6",
        [
            RELU6,
            chain(unary("Relu"), with_number("Min", 6)),
            chain(with_number("Min", 6), with_number("Max", 0)),
            chain(with_number("Max", 0), with_number("Min", 6, (1,))),
            chain(clip(None, 6), unary("Relu")),
        ],
        [
            clip(0, 5),
            clip(-1, 6),
            unary("Relu"),
            chain(unary("Relu"), RELU6),
            chain(RELU6, RELU6),
            chain(unary("Relu"), lambda b, x: b.concat([x, b.op("Min", [x, number(b, x, 6)])])),
        ],
    ),
    SpellingCase(
        "leaky relu",
        [unary("LeakyRelu", alpha=0.1), leaky],
        [unary("LeakyRelu", alpha=0.2), lambda b, x: b.op("Min", [x, b.mul(x, number(b, x, 0.1))])],
    ),
    SpellingCase(
        "hard sigmoid",
        [
            unary("HardSigmoid", alpha=1 / 6, beta=0.5),
            chain(SHIFTED6, with_number("Div", 6)),
            chain(SHIFTED6, with_number("Mul", 0.16666667)),
            chain(with_number("Mul", 1 / 6), with_number("Add", 0.5), clip(0, 1)),
            chain(
                with_number("Add", 3), unary("Relu"), with_number("Min", 6), with_number("Div", 6)
            ),
        ],
        [
            unary("HardSigmoid"),
            chain(SHIFTED6, with_number("Div", 5)),
            chain(with_number("Add", 2), RELU6, with_number("Div", 6)),
            chain(RELU6, with_number("Div", 6)),
        ],
    ),
    SpellingCase(
        "hard sigmoid with another slope",
        [
            unary("HardSigmoid", alpha=0.2, beta=0.5),
            chain(with_number("Mul", 0.2), with_number("Add", 0.5), clip(0, 1)),
        ],
        [chain(with_number("Mul", 0.2), with_number("Add", 0.5), clip(0, 2))],
    ),
    SpellingCase(
        "hard swish",
        [
            lambda b, x: b.hard_swish(x),
            lambda b, x: b.div(b.mul(x, SHIFTED6(b, x)), number(b, x, 6)),
            lambda b, x: b.mul(b.mul(SHIFTED6(b, x), x), number(b, x, 0.1666667)),
            lambda b, x: b.mul(x, b.div(SHIFTED6(b, x), number(b, x, 6))),
            lambda b, x: b.mul(b.mul(x, number(b, x, 1 / 6)), SHIFTED6(b, x)),
        ],
        [
            lambda b, x: b.mul(x, SHIFTED6(b, x)),
            lambda b, x: b.mul(x, b.op("HardSigmoid", [x])),
            lambda b, x: b.mul(b.tanh(x), b.hard_sigmoid(x)),
        ],
    ),
    SpellingCase(
        "swish",
        [
            lambda b, x: b.mul(x, b.sigmoid(x)),
            lambda b, x: b.mul(b.sigmoid(x), b.op("Identity", [x])),
        ],
        [lambda b, x: b.mul(x, b.sigmoid(b.tanh(x))), lambda b, x: b.mul(x, b.tanh(x))],
    ),
]


def gelu(half_first: bool, divide: bool, swap: bool) -> Spelling:
    def run(b: GraphBuilder, x: str) -> str:
        scaled = b.div(x, number(b, x, sqrt(2))) if divide else b.mul(number(b, x, 1 / sqrt(2)), x)
        erf = b.op("Erf", [scaled])
        one = number(b, x, 1)
        grown = b.add(one, erf) if swap else b.add(erf, one)
        half = number(b, x, 0.5)
        if half_first:
            return b.mul(b.mul(x, half), grown)
        return b.mul(half, b.mul(grown, x)) if swap else b.mul(x, b.mul(grown, half))

    return run


def gelu_tanh(cube: Spelling) -> Spelling:
    def run(b: GraphBuilder, x: str) -> str:
        inner = b.add(b.mul(cube(b, x), number(b, x, 0.044715)), x)
        grown = b.add(b.tanh(b.mul(inner, number(b, x, sqrt(2 / 3.14159265)))), number(b, x, 1))
        return b.mul(b.mul(x, number(b, x, 0.5)), grown)

    return run


ROOT = unary("Sqrt")


def layer_norm(
    square: Spelling,
    eps: float = 1e-5,
    root: Spelling = ROOT,
    divide: bool = True,
    affine: bool = True,
) -> Spelling:
    def run(b: GraphBuilder, x: str) -> str:
        last = (len(b.type_of(x).shape) - 1,)
        centred = b.sub(x, b.reduce_mean(x, last))
        variance = b.reduce_mean(square(b, centred), last)
        deviation = root(b, b.add(number(b, x, eps), variance))
        y = b.div(centred, deviation)
        if not divide:
            y = b.mul(b.op("Reciprocal", [deviation]), centred)
        size = b.type_of(x).shape[-1:]
        return b.add(b.mul(b.weight(size), y), b.weight((1, *size))) if affine else y

    return run


TRANSFORMERS = [
    SpellingCase(
        "gelu",
        [
            lambda b, x: b.gelu(x),
            gelu(half_first=True, divide=True, swap=False),
            gelu(half_first=True, divide=False, swap=True),
            gelu(half_first=False, divide=False, swap=False),
            gelu(half_first=False, divide=True, swap=True),
        ],
        [
            lambda b, x: b.mul(x, b.add(b.op("Erf", [x]), number(b, x, 1))),
            lambda b, x: b.mul(b.gelu(x), number(b, x, 3)),
            gelu_tanh(with_number("Pow", 3)),
        ],
        (2, 8, 16),
    ),
    SpellingCase(
        "gelu by tanh",
        [
            gelu_tanh(with_number("Pow", 3)),
            gelu_tanh(lambda b, x: b.mul(x, b.mul(x, x))),
            gelu_tanh(lambda b, x: b.mul(b.mul(x, x), x)),
        ],
        [gelu_tanh(with_number("Pow", 2))],
        (2, 8, 16),
    ),
    SpellingCase(
        "layer normalisation",
        [
            lambda b, x: b.layer_norm(x),
            layer_norm(with_number("Pow", 2)),
            layer_norm(lambda b, x: b.mul(x, x)),
            layer_norm(with_number("Pow", 2), eps=1e-12),
            layer_norm(with_number("Pow", 2), root=with_number("Pow", 0.5)),
            layer_norm(lambda b, x: b.mul(x, x), eps=1e-6, divide=False),
        ],
        [
            layer_norm(with_number("Pow", 3)),
            layer_norm(with_number("Pow", 2), eps=0.5),
            layer_norm(with_number("Pow", 2), root=unary("Exp")),
            layer_norm(with_number("Pow", 2), affine=False),
        ],
        (2, 8, 16),
    ),
]


@pytest.mark.parametrize(
    "case", [*NOTHING, *ARITHMETIC, *ACTIVATIONS, *TRANSFORMERS], ids=lambda case: case.name
)
def test_equivalence(case: SpellingCase) -> None:
    check(case)
