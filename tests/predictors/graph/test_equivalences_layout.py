"""Equivalences of views and layouts: equal networks have one network hash, similar ones others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.testing.spellings import (
    MAP,
    Spelling,
    SpellingCase,
    chain,
    check,
    number,
    ops,
    plain,
    unary,
    with_number,
    with_weight,
)

from tests.predictors.graph.layout_forms import (
    FIRST,
    LAST,
    axes,
    island,
    mean,
    reshape,
    turn,
)

VIEWS = [
    SpellingCase(
        "views to one shape",
        [
            chain(unary("GlobalAveragePool"), unary("Flatten", axis=1)),
            chain(unary("GlobalAveragePool"), reshape(2, 4)),
            chain(unary("GlobalAveragePool"), axes("Squeeze", 2, 3)),
            chain(unary("GlobalAveragePool"), axes("Squeeze", 3), axes("Squeeze", 2)),
            chain(unary("GlobalAveragePool"), reshape(8), reshape(2, 4, 1), axes("Squeeze", 2)),
        ],
        [
            unary("GlobalAveragePool"),
            chain(unary("GlobalAveragePool"), reshape(8)),
            chain(unary("GlobalAveragePool"), reshape(4, 2)),
        ],
    ),
    SpellingCase(
        "views and elementwise ops",
        [
            chain(unary("Relu"), reshape(2, 144)),
            chain(reshape(2, 144), unary("Relu")),
            chain(reshape(2, 2, 72), unary("Relu"), unary("Flatten", axis=1)),
        ],
        [chain(unary("Relu"), reshape(4, 72)), chain(reshape(2, 144), unary("Softmax", axis=1))],
    ),
    SpellingCase(
        "views of two operands",
        [
            lambda b, x: b.reshape(b.mul(x, b.sigmoid(x)), (2, 144)),
            lambda b, x: b.mul(b.reshape(x, (2, 144)), b.sigmoid(b.reshape(x, (2, 144)))),
        ],
        [
            lambda b, x: b.mul(
                b.reshape(x, (2, 144)),
                b.reshape(b.transpose(b.sigmoid(x), (0, 1, 3, 2)), (2, 144)),
            )
        ],
    ),
    SpellingCase(
        "a transpose of single elements is a view",
        [
            chain(unary("GlobalAveragePool"), turn(*LAST)),
            chain(unary("GlobalAveragePool"), reshape(2, 1, 1, 4)),
        ],
        [chain(unary("GlobalAveragePool"), turn(1, 0, 2, 3))],
    ),
]

LAYOUTS = [
    SpellingCase(
        "pairs of transposes",
        [
            plain,
            chain(turn(*LAST), turn(*FIRST)),
            chain(turn(0, 1, 3, 2), turn(0, 1, 3, 2)),
            chain(turn(3, 0, 1, 2), turn(3, 0, 1, 2), turn(2, 3, 0, 1)),
        ],
        [chain(turn(*LAST), turn(3, 1, 2, 0)), turn(0, 1, 3, 2)],
    ),
    SpellingCase(
        "islands of elementwise ops",
        [
            chain(unary("Relu"), with_weight("PRelu", (4, 1, 1)), with_number("Mul", 3)),
            island(chain(unary("Relu"), with_weight("PRelu", (4,)), with_number("Mul", 3))),
            chain(unary("Relu"), island(with_weight("PRelu", (1, 1, 4))), with_number("Mul", 3)),
        ],
        [
            island(chain(unary("Relu"), with_weight("PRelu", (6, 1)), with_number("Mul", 3))),
            island(chain(unary("Relu"), with_weight("PRelu", (6, 6, 4)), with_number("Mul", 3))),
        ],
    ),
    SpellingCase(
        "biases in the other layout",
        [
            lambda b, x: b.conv(x, 8, 3, bias=True),
            chain(lambda b, x: b.conv(x, 8, 3), island(with_weight("Add", (8,)))),
        ],
        [chain(lambda b, x: b.conv(x, 8, 3), island(with_weight("Add", (6, 1))))],
    ),
    SpellingCase(
        "joins of two branches",
        [
            lambda b, x: b.add(b.relu(x), b.sigmoid(x)),
            lambda b, x: b.transpose(
                b.add(b.transpose(b.relu(x), LAST), b.sigmoid(b.transpose(x, LAST))), FIRST
            ),
        ],
        [
            lambda b, x: b.add(b.relu(x), b.transpose(b.sigmoid(x), (0, 1, 3, 2))),
            lambda b, x: b.transpose(
                b.add(b.transpose(b.relu(x), LAST), b.sigmoid(b.transpose(x, (0, 3, 2, 1)))), FIRST
            ),
        ],
    ),
    SpellingCase(
        "squeeze and excitation",
        [
            lambda b, x: b.mul(x, b.sigmoid(b.global_avg_pool(x))),
            island(lambda b, x: b.mul(x, b.sigmoid(b.reduce_mean(x, (1, 2))))),
            island(
                lambda b, x: b.mul(
                    x, b.reshape(b.sigmoid(b.reduce_mean(x, (1, 2), False)), (2, 1, 1, 4))
                )
            ),
        ],
        [island(lambda b, x: b.mul(x, b.sigmoid(b.reduce_mean(x, (2, 3)))))],
    ),
    SpellingCase(
        "axes in the other layout",
        [
            lambda b, x: b.softmax(b.concat([x, b.relu(x)], 1), 1),
            island(lambda b, x: b.softmax(b.concat([x, b.relu(x)], 3), 3)),
        ],
        [
            island(lambda b, x: b.softmax(b.concat([x, b.relu(x)], 3), 2)),
            island(lambda b, x: b.softmax(b.concat([x, b.relu(x)], 3), 1)),
            island(lambda b, x: b.softmax(b.concat([b.relu(x), x], 3), 3)),
        ],
    ),
    SpellingCase(
        "reductions in the other layout",
        [
            lambda b, x: b.op("ReduceMax", [x], {"axes": (1,), "keepdims": 0}),
            chain(turn(*LAST), mean(3, keep=False, op="ReduceMax")),
            chain(turn(0, 2, 1, 3), mean(2, keep=False, op="ReduceMax")),
        ],
        [
            chain(turn(*LAST), mean(2, keep=False, op="ReduceMax")),
            chain(turn(1, 3, 2, 0), mean(0, keep=False, op="ReduceMax")),
        ],
    ),
    SpellingCase(
        "sums in the other layout",
        [
            lambda b, x: b.op("ReduceSum", [x, b.weight((2,), "int64", (2, 3))], {"keepdims": 1}),
            island(
                lambda b, x: b.op(
                    "ReduceSum", [x, b.weight((2,), "int64", (1, 2))], {"keepdims": 1}
                )
            ),
        ],
        [
            lambda b, x: b.op("ReduceSum", [x, b.weight((2,), "int64", (1, 2))], {"keepdims": 1}),
        ],
    ),
    SpellingCase(
        "pads, cuts and resizing in the other layout",
        [
            lambda b, x: b.resize(b.slice(b.pad(x, [1, 2, 3, 4]), [1], [5], [2]), 2),
            island(
                lambda b, x: b.op(
                    "Resize",
                    [
                        b.slice(b.pad(x, [0, 1, 2, 0, 0, 3, 4, 0]), [1], [5], [1]),
                        "",
                        b.weight((4,), values=(1, 2, 2, 1)),
                    ],
                    {
                        "mode": "nearest",
                        "coordinate_transformation_mode": "asymmetric",
                        "nearest_mode": "floor",
                    },
                )
            ),
        ],
        [lambda b, x: b.resize(b.slice(b.pad(x, [1, 2, 3, 4]), [1], [5], [3]), 2)],
    ),
    SpellingCase(
        "splits in the other layout",
        [
            lambda b, x: b.mul(*b.split(x, [2, 2], 1)),
            island(lambda b, x: b.mul(*b.split(x, [2, 2], 3))),
        ],
        [island(lambda b, x: b.concat([b.mul(*b.split(x, [3, 3], 1))] * 2, 1))],
    ),
]


@pytest.mark.parametrize("case", [*VIEWS, *LAYOUTS], ids=lambda case: case.name)
def test_equivalence(case: SpellingCase) -> None:
    check(case)


def whole(shape: Sequence[int], before: Spelling, after: Spelling = plain) -> Graph:
    b = GraphBuilder("whole")
    x = before(b, b.input(shape))
    return b.build([after(b, b.conv(b.relu(b.conv(x, 4, 3)), 5, 3))])


def test_the_layout_of_inputs_and_outputs_does_not_count() -> None:
    first = whole((1, 3, 8, 8), plain)
    last = whole((1, 8, 8, 3), turn(*FIRST), turn(*LAST))
    scaled = whole((1, 3, 8, 8), chain(with_number("Mul", 2), with_weight("Add", (3, 1, 1))))
    prepared = whole(
        (1, 8, 8, 3), chain(with_number("Mul", 2), with_weight("Add", (3,)), turn(*FIRST))
    )
    assert network_hash_of(first) == network_hash_of(last)
    assert network_hash_of(scaled) == network_hash_of(prepared) != network_hash_of(first)
    assert "Transpose" not in ops(last) + ops(prepared)
    others = [
        whole((1, 8, 8, 3), turn(0, 3, 2, 1)),
        whole((1, 3, 8, 8), turn(0, 1, 3, 2)),
        whole((1, 3, 8, 8), plain, turn(0, 1, 3, 2)),
        whole((1, 8, 3, 8), plain),
    ]
    assert len({network_hash_of(first), *(network_hash_of(graph) for graph in others)}) == 5


def test_a_network_of_transposes_alone_keeps_them() -> None:
    b = GraphBuilder("turns")
    x = b.input((1, 8, 8, 3))
    assert ops(b.build([b.transpose(x, FIRST)])) == ["Transpose"]


def test_a_real_channel_shuffle_stays() -> None:
    b = GraphBuilder("shuffle")
    x = b.input(MAP)
    y = b.reshape(b.transpose(b.reshape(x, (2, 2, 2, 6, 6)), (0, 2, 1, 3, 4)), MAP)
    assert ops(b.build([b.conv(y, 4, 1)])) == ["Reshape", "Transpose", "Reshape", "Conv"]


def test_what_nobody_reads_does_not_count() -> None:
    b = GraphBuilder("dead")
    x = b.input(MAP)
    y = b.relu(x)
    b.sigmoid(x)
    pooled = b.op("MaxPool", [y], {"kernel_shape": (2, 2)}, 2)
    graph = b.build([pooled[0]])
    b = GraphBuilder("alive")
    y = b.relu(b.input(MAP))
    assert network_hash_of(b.build([b.max_pool(y, 2, 1)])) == network_hash_of(graph)


def test_absent_operands_at_the_end_do_not_count() -> None:
    b = GraphBuilder("absent")
    x = b.input(MAP)
    kernel = b.weight((4, 4, 1, 1))
    spelled = b.build([b.op("Conv", [x, kernel, ""])])
    assert network_hash_of(spelled) == network_hash_of(b.build([b.op("Conv", [x, kernel])]))


def test_an_output_given_twice_is_one() -> None:
    b = GraphBuilder("twice")
    y = b.relu(b.input(MAP))
    twice = b.build([y, b.op("Identity", [y])])
    assert network_hash_of(twice) == network_hash_of(b.build([y]))
    assert hash_of(twice) != hash_of(b.build([y]))


def test_numbers_of_different_kinds_differ() -> None:
    def divided(dtype: str) -> Graph:
        b = GraphBuilder("divided")
        x = b.input((4,), dtype)
        return b.build([b.div(x, number(b, x, 2))])

    assert ops(divided("float32")) == ["Mul"]
    assert ops(divided("int32")) == ["Div"]
