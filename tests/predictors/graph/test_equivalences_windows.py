"""Equivalences of windows and cuts: equal networks have one network hash, similar ones others."""

from __future__ import annotations

import pytest
from latfarm_predictors.testing.spellings import (
    SpellingCase,
    chain,
    check,
    unary,
)

from tests.predictors.graph.layout_forms import (
    LAST,
    conv,
    mean,
    pad,
    pool,
    reshape,
    resize,
    resize_to,
    turn,
)

WINDOWS = [
    SpellingCase(
        "pads of convolutions",
        [
            conv((1, 2, 3, 4)),
            chain(pad(1, 2, 3, 4), conv(0)),
            chain(pad(1, 1, 2, 2), conv((0, 1, 1, 2))),
        ],
        [
            conv((2, 1, 3, 4)),
            chain(pad(1, 2, 3, 4, value=1.0), conv(0)),
            chain(pad(1, 2, 3, 4, mode="reflect"), conv(0)),
            chain(pad(1, 2, 3, 4), unary("Relu"), conv(0)),
            conv((1, 1, 1, 1)),
        ],
    ),
    SpellingCase(
        "pads of averages",
        [
            pool("AveragePool", 3, 2, (1, 1, 1, 1), count_include_pad=1),
            chain(pad(1, 1, 1, 1), pool("AveragePool", 3, 2, (0, 0, 0, 0))),
        ],
        [
            pool("AveragePool", 3, 2, (1, 1, 1, 1)),
            chain(pad(1, 1, 1, 1, value=2.0), pool("AveragePool", 3, 2, (0, 0, 0, 0))),
        ],
    ),
    SpellingCase(
        "pads of maxima",
        [
            chain(unary("Relu"), pool("MaxPool", 3, 2, (1, 1, 1, 1))),
            chain(unary("Relu"), pad(1, 1, 1, 1), pool("MaxPool", 3, 2, (0, 0, 0, 0))),
            chain(
                unary("Relu"),
                pad(1, 1, 1, 1, value=-3.402823e38),
                pool("MaxPool", 3, 2, (0, 0, 0, 0)),
            ),
        ],
        [
            chain(unary("Softsign"), pad(1, 1, 1, 1), pool("MaxPool", 3, 2, (0, 0, 0, 0))),
            chain(unary("Relu"), pad(1, 1, 1, 1, value=1.0), pool("MaxPool", 3, 2, (0, 0, 0, 0))),
        ],
    ),
    SpellingCase(
        "attributes of averages that change nothing",
        [
            pool("AveragePool", 2, 2, (0, 0, 0, 0)),
            pool("AveragePool", 2, 2, (0, 0, 0, 0), ceil_mode=1),
            pool("AveragePool", 2, 2, (0, 0, 0, 0), count_include_pad=1),
        ],
        [
            pool("AveragePool", 2, 2, (1, 1, 1, 1), count_include_pad=1),
            pool("AveragePool", 2, 2, (1, 1, 1, 1)),
            pool("AveragePool", 2, 3, (0, 0, 0, 0)),
        ],
    ),
    SpellingCase(
        "rounding up",
        [
            pool("MaxPool", 2, 2, (0, 0, 0, 0)),
            pool("MaxPool", 2, 2, (0, 0, 0, 0), ceil_mode=1),
        ],
        [pool("MaxPool", 3, 2, (0, 0, 0, 0), ceil_mode=1), pool("MaxPool", 3, 2, (0, 0, 0, 0))],
    ),
    SpellingCase(
        "global averages",
        [
            unary("GlobalAveragePool"),
            mean(2, 3),
            pool("AveragePool", 6, 1, (0, 0, 0, 0)),
            pool("AveragePool", 6, 6, (0, 0, 0, 0), count_include_pad=1),
            chain(mean(2, 3, keep=False), reshape(2, 4, 1, 1)),
        ],
        [
            unary("GlobalMaxPool"),
            mean(1, 2, 3),
            mean(3),
            mean(2, 3, keep=False),
            pool("AveragePool", 5, 1, (0, 0, 0, 0)),
        ],
    ),
    SpellingCase(
        "global averages without the spatial axes",
        [
            mean(2, 3, keep=False),
            chain(unary("GlobalAveragePool"), unary("Flatten", axis=1)),
            chain(turn(*LAST), mean(1, 2, keep=False)),
        ],
        [unary("GlobalAveragePool"), chain(turn(*LAST), mean(2, 3, keep=False))],
    ),
    SpellingCase(
        "global maxima",
        [unary("GlobalMaxPool"), mean(2, 3, op="ReduceMax"), pool("MaxPool", 6, 2, (0, 0, 0, 0))],
        [mean(2, 3, op="ReduceMin")],
    ),
]


CUTS = [
    SpellingCase(
        "nearest neighbours by whole factors",
        [
            resize("asymmetric", nearest="floor"),
            resize("half_pixel", nearest="round_prefer_floor"),
            resize("half_pixel", nearest="round_prefer_ceil"),
            resize_to(2, 4, 12, 12),
        ],
        [
            resize("asymmetric", nearest="ceil"),
            resize("asymmetric", "linear"),
            resize("asymmetric", nearest="floor", scale=3.0),
            resize_to(2, 4, 12, 6),
        ],
    ),
    SpellingCase(
        "half pixels of linear resizing",
        [resize("half_pixel", "linear"), resize("pytorch_half_pixel", "linear")],
        [resize("align_corners", "linear"), resize("asymmetric", "linear")],
    ),
    SpellingCase(
        "split and slices",
        [
            lambda b, x: b.div(*b.split(x, [2, 2])),
            lambda b, x: b.div(b.slice(x, [0], [2], [1]), b.slice(x, [2], [4], [1])),
            lambda b, x: b.div(
                b.op("Slice", [x, *(b.weight((1,), "int64", (v,)) for v in (0, -2, 1))]),
                b.slice(x, [0, 2], [2, 9], [0, 1]),
            ),
        ],
        [
            lambda b, x: b.div(*b.split(x, [2, 2])[::-1]),
            lambda b, x: b.div(b.slice(x, [0], [2], [1]), b.slice(x, [1], [3], [1])),
            lambda b, x: b.div(b.slice(x, [0], [2], [1]), b.slice(x, [0], [4], [1], [2])),
        ],
    ),
    SpellingCase(
        "one of an axis",
        [
            lambda b, x: b.op("Gather", [x, b.weight((), "int64", (0,))], {"axis": 1}),
            lambda b, x: b.reshape(b.slice(x, [0], [1], [1]), (2, 6, 6)),
            lambda b, x: b.reshape(
                b.op("Gather", [x, b.weight((1,), "int64", (-4,))], {"axis": 1}), (2, 6, 6)
            ),
        ],
        [
            lambda b, x: b.op("Gather", [x, b.weight((), "int64", (1,))], {"axis": 1}),
            lambda b, x: b.op("Gather", [x, b.weight((1,), "int64", (0,))], {"axis": 1}),
            lambda b, x: b.op("Gather", [x, b.weight((), "int64", (0,))], {"axis": 2}),
        ],
    ),
    SpellingCase(
        "computed weights",
        [
            lambda b, x: b.mul(x, b.weight((6, 6))),
            lambda b, x: b.mul(x, b.transpose(b.relu(b.weight((6, 6))), (1, 0))),
        ],
        [lambda b, x: b.mul(x, b.transpose(b.relu(b.slice(x, [0], [1], [1])), (0, 1, 3, 2)))],
    ),
]


@pytest.mark.parametrize("case", [*WINDOWS, *CUTS], ids=lambda case: case.name)
def test_equivalence(case: SpellingCase) -> None:
    check(case)
