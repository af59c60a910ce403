"""Equivalences of linear layers: equal networks have one network hash, similar ones others."""

from __future__ import annotations

import pytest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.testing.spellings import (
    MAP,
    Spelling,
    SpellingCase,
    chain,
    check,
    number,
    unary,
    with_number,
    with_weight,
)

ROWS = (3, 8)
SEQUENCE = (2, 5, 8)
CHANNELS = (4, 1, 1)


def conv(bias: bool = False, channels: int = 4) -> Spelling:
    return lambda b, x: b.conv(x, channels, 3, bias=bias)


def upconv(bias: bool = False) -> Spelling:
    return lambda b, x: b.conv_transpose(x, 4, 2, 2, bias=bias)


def batch_norm(b: GraphBuilder, x: str) -> str:
    return b.batch_norm(x)


def scale_shift(shape: tuple[int, ...]) -> Spelling:
    return chain(with_weight("Mul", shape), with_weight("Add", shape))


def read_twice(b: GraphBuilder, x: str) -> str:
    y = b.conv(x, 4, 3)
    return b.add(b.batch_norm(y), y)


def gemm(transposed: bool = True, bias: tuple[int, ...] | None = (6,), **attrs: float) -> Spelling:
    def run(b: GraphBuilder, x: str) -> str:
        size = b.type_of(x).shape[-1]
        operands = [x, b.weight((6, size) if transposed else (size, 6))]
        if bias is not None:
            operands.append(b.weight(bias))
        return b.op("Gemm", operands, {"transB": int(transposed), **attrs})

    return run


def matmul(columns: int = 6) -> Spelling:
    return lambda b, x: b.matmul(x, b.weight((b.type_of(x).shape[-1], columns)))


def reshape(*shape: int) -> Spelling:
    return lambda b, x: b.reshape(x, shape)


FOLDS = [
    SpellingCase(
        "batch-norm after a convolution",
        [
            conv(bias=True),
            chain(conv(), batch_norm),
            chain(conv(bias=True), batch_norm),
            chain(conv(), unary("Identity"), batch_norm, batch_norm),
            chain(conv(), scale_shift(CHANNELS)),
            chain(conv(), with_weight("Add", CHANNELS)),
            chain(conv(), with_weight("Sub", (1, *CHANNELS))),
            chain(conv(bias=True), with_weight("Mul", CHANNELS)),
            chain(conv(), batch_norm, scale_shift(CHANNELS)),
            chain(conv(), with_weight("Div", CHANNELS), batch_norm),
        ],
        [
            conv(),
            conv(bias=True, channels=5),
            chain(conv(bias=True), unary("Relu"), batch_norm),
            chain(batch_norm, conv(bias=True)),
            chain(conv(), with_number("Mul", 3)),
            chain(conv(bias=True), with_weight("Mul", (4, 6, 6))),
            chain(conv(bias=True), with_weight("Mul", (6,))),
            read_twice,
        ],
    ),
    SpellingCase(
        "a factor after a convolution without bias",
        [conv(), chain(conv(), with_weight("Mul", CHANNELS))],
        [chain(conv(), with_weight("Add", CHANNELS))],
    ),
    SpellingCase(
        "batch-norm after a transposed convolution",
        [
            upconv(bias=True),
            chain(upconv(), batch_norm),
            chain(upconv(bias=True), scale_shift(CHANNELS)),
        ],
        [upconv(), chain(upconv(bias=True), unary("Relu"), batch_norm)],
    ),
    SpellingCase(
        "batch-norm alone",
        [
            chain(unary("Relu"), batch_norm),
            chain(unary("Relu"), scale_shift(CHANNELS)),
            chain(unary("Relu"), batch_norm, scale_shift(CHANNELS)),
        ],
        [
            chain(unary("Relu"), with_weight("Mul", CHANNELS)),
            chain(unary("Relu"), with_weight("Add", CHANNELS), with_weight("Mul", CHANNELS)),
            chain(unary("Relu"), scale_shift((6,))),
            chain(batch_norm, unary("Relu")),
        ],
    ),
]

MATRICES = [
    SpellingCase(
        "fully connected",
        [
            gemm(),
            gemm(transposed=False),
            gemm(bias=(1, 6)),
            gemm(alpha=0.5, beta=2.0),
            chain(gemm(bias=None), with_weight("Add", (6,))),
            chain(matmul(), with_weight("Add", (6,))),
            chain(matmul(), with_weight("Sub", (1, 6))),
            chain(gemm(), batch_norm),
            chain(gemm(bias=None), batch_norm),
            chain(matmul(), scale_shift((6,))),
            lambda b, x: b.add(b.weight((6,)), b.matmul(x, b.weight((8, 6)))),
        ],
        [
            matmul(),
            chain(matmul(), with_number("Add", 1)),
            chain(matmul(5), with_weight("Add", (5,))),
            chain(matmul(), with_weight("Add", (3, 1))),
            chain(matmul(), with_weight("Add", (3, 6))),
            chain(gemm(), unary("Relu"), batch_norm),
            lambda b, x: b.matmul(b.weight((6, 3)), x),
        ],
        ROWS,
    ),
    SpellingCase(
        "fully connected after a view",
        [
            lambda b, x: b.fc(b.flatten(x), 6),
            lambda b, x: b.fc(b.reshape(x, (2, 144)), 6),
            lambda b, x: b.fc(b.flatten(b.reshape(x, (2, 4, 36))), 6),
            lambda b, x: b.add(b.matmul(b.flatten(x), b.weight((144, 6))), b.weight((6,))),
        ],
        [
            lambda b, x: b.fc(b.flatten(b.transpose(x, (0, 1, 3, 2))), 6),
            lambda b, x: b.fc(b.reshape(x, (1, 288)), 6),
            lambda b, x: b.flatten(b.conv(x, 6, 6, 1, 0, bias=True)),
        ],
    ),
    SpellingCase(
        "rows of a sequence",
        [
            chain(matmul(), with_weight("Add", (6,))),
            chain(reshape(10, 8), gemm(), reshape(2, 5, 6)),
            chain(reshape(10, 8), matmul(), reshape(2, 5, 6), with_weight("Add", (6,))),
            chain(reshape(1, 10, 8), matmul(), with_weight("Add", (6,)), reshape(2, 5, 6)),
        ],
        [
            chain(reshape(2, 8, 5), lambda b, x: b.transpose(x, (0, 2, 1)), matmul()),
            chain(matmul(), with_weight("Add", (5, 6))),
            chain(reshape(5, 16), matmul(12), reshape(2, 5, 6), with_weight("Add", (6,))),
        ],
        SEQUENCE,
    ),
    SpellingCase(
        "product of two activations",
        [
            lambda b, x: b.op("Gemm", [x, b.sigmoid(x)], {"transB": 1}),
            lambda b, x: b.matmul(x, b.transpose(b.sigmoid(x), (1, 0))),
            lambda b, x: b.matmul(x, b.sigmoid(b.transpose(x, (1, 0)))),
        ],
        [
            lambda b, x: b.op("Gemm", [x, b.sigmoid(x)], {"transA": 1}),
            lambda b, x: b.op("Gemm", [b.sigmoid(x), x], {"transB": 1}),
        ],
        ROWS,
    ),
    SpellingCase(
        "alpha and beta of activations",
        [
            lambda b, x: b.op(
                "Gemm", [x, b.sigmoid(x), x], {"alpha": 0.5, "beta": 2.0, "transA": 0}
            ),
            lambda b, x: b.add(
                b.mul(b.matmul(x, b.sigmoid(x)), number(b, x, 0.5)), b.mul(x, number(b, x, 2))
            ),
        ],
        [
            lambda b, x: b.op("Gemm", [x, b.sigmoid(x), x]),
            lambda b, x: b.op("Gemm", [x, b.sigmoid(x), x], {"alpha": 0.5}),
        ],
        (8, 8),
    ),
]


@pytest.mark.parametrize("case", [*FOLDS, *MATRICES], ids=lambda case: case.name)
def test_equivalence(case: SpellingCase) -> None:
    check(case)


def test_a_batch_norm_stays_where_the_convolution_is_given_out() -> None:
    b = GraphBuilder("both")
    y = b.conv(b.input(MAP), 4, 3)
    z = b.batch_norm(y)
    given_out = b.build([y, z])
    b = GraphBuilder("folded")
    folded = b.build([b.conv(b.input(MAP), 4, 3, bias=True)])
    assert network_hash_of(given_out) != network_hash_of(folded)
    assert network_hash_of(b.build([b.batch_norm(y)])) == network_hash_of(folded)


def test_folding_gives_a_layer_a_kernel_of_its_own() -> None:
    def two(shared: bool, fold: Spelling) -> str:
        b = GraphBuilder("two")
        x = b.input(MAP)
        kernels = [b.weight((4, 4, 1, 1)) for _ in range(2)]
        y = b.op("Conv", [x, kernels[0]])
        y = b.op("Conv", [b.relu(fold(b, y)), kernels[not shared]])
        return network_hash_of(b.build([y]))

    scale = with_weight("Mul", CHANNELS)
    assert two(shared=True, fold=batch_norm) == two(shared=False, fold=batch_norm)
    assert two(shared=True, fold=scale) == two(shared=False, fold=scale)
    shift = with_weight("Add", CHANNELS)
    assert two(shared=True, fold=shift) != two(shared=False, fold=shift)


def test_layers_that_share_a_matrix_differ_from_layers_with_their_own() -> None:
    def two(shared: bool, transposed: bool) -> str:
        b = GraphBuilder("two")
        x = b.input((8, 8))
        first = b.weight((8, 8))
        second = first if shared else b.weight((8, 8))
        y = b.op("Gemm", [x, first], {"transB": int(transposed)})
        y = b.op("Gemm", [b.relu(y), second], {"transB": int(transposed)})
        return network_hash_of(b.build([y]))

    assert two(shared=True, transposed=True) == two(shared=True, transposed=False)
    assert two(shared=False, transposed=True) == two(shared=False, transposed=False)
    assert two(shared=True, transposed=True) != two(shared=False, transposed=True)
