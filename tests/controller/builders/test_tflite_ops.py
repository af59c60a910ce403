"""Ops for which TFLite has no operator of the same name compute what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.tflite.build import build_tflite, tflite_report, translate
from latfarm_controller.errors import BuildError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

Run = Callable[[bytes, Graph], list[Any]]
Make = Callable[[GraphBuilder], str]


def image(b: GraphBuilder) -> str:
    return b.input((1, 8, 13, 11))


def ints(b: GraphBuilder, *values: int) -> str:
    return b.weight((len(values),), "int64", values)


def scalar(b: GraphBuilder, value: float) -> str:
    return b.weight((), values=(value,))


def of_image(b: GraphBuilder, op: str, **attrs: Any) -> str:
    return b.op(op, [image(b)], attrs)


def above_zero(b: GraphBuilder, op: str, **attrs: Any) -> str:
    return b.op(op, [b.add(b.sigmoid(image(b)), scalar(b, 0.5))], attrs)


def compared(b: GraphBuilder, op: str) -> str:
    x, y = image(b), image(b)
    return b.op("Cast", [b.op(op, [x, y])], {"to": 1})


def truths(b: GraphBuilder, op: str) -> str:
    x, y = image(b), image(b)
    found = b.op(op, [b.op("Greater", [x, y]), b.op("Less", [x, scalar(b, 0.5)])])
    return b.op("Where", [found, x, y])


def resized(b: GraphBuilder, factor: float, **attrs: str) -> str:
    scales = b.weight((4,), values=(1.0, 1.0, factor, factor))
    return b.op("Resize", [b.input((1, 3, 12, 8)), "", scales], attrs)


def embedded(b: GraphBuilder) -> str:
    ids = b.input((2, 7), "int64")
    return b.layer_norm(b.op("Gather", [b.weight((50, 16)), ids]))


def tokens_of_an_image(b: GraphBuilder) -> str:
    x = b.conv(image(b), 16, 3, 2)
    n, channels, high, wide = b.type_of(x).shape
    rows = b.transpose(b.reshape(x, (n, channels, high * wide)), (0, 2, 1))
    rows = b.relu(b.matmul(b.layer_norm(rows), b.weight((channels, 24))))
    return b.conv(b.reshape(b.transpose(rows, (0, 2, 1)), (n, 24, high, wide)), 8, 1)


def masked_attention(b: GraphBuilder) -> str:
    x, mask = b.input((1, 6, 16)), b.input((1, 6), "int64")
    real = b.op("Cast", [b.op("Unsqueeze", [mask, ints(b, 1, 2)])], {"to": 1})
    away = b.mul(b.sub(scalar(b, 1.0), real), scalar(b, -10000.0))
    q, k, v = (
        b.transpose(b.reshape(b.matmul(x, b.weight((16, 16))), (1, 6, 2, 8)), order)
        for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    scores = b.softmax(b.add(b.div(b.matmul(q, k), scalar(b, 8**0.5)), away))
    return b.reshape(b.transpose(b.matmul(scores, v), (0, 2, 1, 3)), (1, 6, 16))


def gelu_of_pytorch(b: GraphBuilder) -> str:
    x = image(b)
    inner = b.op("Erf", [b.mul(x, scalar(b, 2**-0.5))])
    return b.mul(b.mul(x, scalar(b, 0.5)), b.add(inner, scalar(b, 1.0)))


def gelu_halved_last(b: GraphBuilder) -> str:
    x = image(b)
    inner = b.add(scalar(b, 1.0), b.op("Erf", [b.div(x, scalar(b, 2**0.5))]))
    return b.div(b.mul(inner, x), scalar(b, 2.0))


def gemm_of_activations(b: GraphBuilder) -> str:
    x, y = b.input((5, 4)), b.input((6, 5))
    return b.op("Gemm", [x, y, b.input((6,))], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2})


OPS: Mapping[str, Make] = {
    "embedding": embedded,
    "gather-row": lambda b: b.op("Gather", [image(b), b.weight((), "int64", (-1,))], {"axis": 2}),
    "gather-channels": lambda b: b.op("Gather", [image(b), ints(b, 5, 0, -2)], {"axis": 1}),
    "gather-grid": lambda b: b.op(
        "Gather", [b.input((3, 9)), b.weight((2, 2), "int64", (0, 8, -1, 4))], {"axis": 1}
    ),
    "tokens": tokens_of_an_image,
    "masked-attention": masked_attention,
    "gelu-pytorch": gelu_of_pytorch,
    "gelu-halved-last": gelu_halved_last,
    "gemm-activations": gemm_of_activations,
    "matmul-batch": lambda b: b.matmul(b.input((2, 3, 4, 5)), b.input((3, 5, 6))),
    "matmul-left": lambda b: b.matmul(b.weight((4, 5)), b.input((2, 5, 6))),
    "matmul-image": lambda b: b.matmul(image(b), b.weight((11, 6))),
    "matmul-vector": lambda b: b.matmul(b.input((2, 4, 5)), b.input((5,))),
    "matmul-by-vector": lambda b: b.matmul(b.input((2, 4, 5)), b.weight((5,))),
    "vector-matmul": lambda b: b.matmul(b.input((5,)), b.input((2, 5, 6))),
    "vector-by-matrix": lambda b: b.matmul(b.input((5,)), b.weight((5, 6))),
    "softmax-height": lambda b: b.softmax(image(b), 2),
    "softmax-rank-3": lambda b: b.softmax(b.input((2, 6, 5)), 1),
    "elu": lambda b: of_image(b, "Elu", alpha=0.7),
    "selu": lambda b: of_image(b, "Selu"),
    "celu": lambda b: of_image(b, "Celu", alpha=1.5),
    "softplus": lambda b: of_image(b, "Softplus"),
    "softsign": lambda b: of_image(b, "Softsign"),
    "thresholded": lambda b: of_image(b, "ThresholdedRelu", alpha=0.4),
    "tan": lambda b: b.op("Tan", [b.sigmoid(image(b))]),
    "atan": lambda b: of_image(b, "Atan"),
    "sign": lambda b: of_image(b, "Sign"),
    "reciprocal": partial(above_zero, op="Reciprocal"),
    "inverse-root": lambda b: b.op("Reciprocal", [above_zero(b, "Sqrt")]),
    "over-root": lambda b: b.div(image(b), above_zero(b, "Sqrt")),
    "div": lambda b: b.div(image(b), above_zero(b, "Sigmoid")),
    "cube": lambda b: b.op("Pow", [image(b), scalar(b, 3.0)]),
    "square-of-ints": lambda b: b.op("Pow", [image(b), b.weight((), "int64", (2,))]),
    "root": lambda b: b.op("Pow", [b.sigmoid(image(b)), scalar(b, 0.5)]),
    "power": lambda b: b.op("Pow", [b.sigmoid(image(b)), scalar(b, 1.7)]),
    "mean-of-three": lambda b: b.op("Mean", [image(b), image(b), b.weight((8, 1, 1))]),
    "mod": lambda b: b.op("Cast", [b.op("Mod", [b.input((4, 5), "int64"), ints(b, 3)])], {"to": 1}),
    "instance-norm": lambda b: b.op(
        "InstanceNormalization", [image(b), b.weight((8,)), b.weight((8,))]
    ),
    "unit-length": lambda b: of_image(b, "LpNormalization", axis=1, p=2),
    "unit-sum": lambda b: b.op("LpNormalization", [above_zero(b, "Sigmoid")], {"axis": 3, "p": 1}),
    "root-mean-pool": lambda b: of_image(
        b, "LpPool", kernel_shape=(3, 2), strides=(2, 2), pads=(1, 0, 1, 0)
    ),
    "global-root": lambda b: of_image(b, "GlobalLpPool", p=2),
    **{
        op.lower(): partial(of_image, op=op, axes=(1, 3), keepdims=0)
        for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
    },
    "reduceprod": lambda b: above_zero(b, "ReduceProd", axes=(1,)),
    "reducelogsum": lambda b: above_zero(b, "ReduceLogSum", axes=(2,)),
    "argmax": lambda b: b.op("Cast", [of_image(b, "ArgMax", axis=1)], {"to": 1}),
    "argmin": lambda b: b.op("Cast", [of_image(b, "ArgMin", axis=2, keepdims=0)], {"to": 1}),
    "running-sum": lambda b: b.op(
        "CumSum", [image(b), b.weight((), "int64", (1,))], {"reverse": 1}
    ),
    **{
        op.lower(): partial(compared, op=op)
        for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    },
    **{op.lower(): partial(truths, op=op) for op in ("And", "Or", "Xor")},
    "not": lambda b: b.op("Where", [b.op("Not", [b.input((1, 8), "bool")]), *_pair(b)]),
    "expand": lambda b: b.op("Expand", [b.input((1, 8, 1, 11)), ints(b, 2, 8, 13, 1)]),
    "expand-rank": lambda b: b.op("Expand", [b.input((8, 1)), ints(b, 3, 8, 5)]),
    "tile": lambda b: b.op("Tile", [image(b), ints(b, 1, 2, 1, 3)]),
    "pad-edge": lambda b: b.op(
        "Pad", [image(b), ints(b, 0, 1, 2, 0, 0, 0, 1, 3)], {"mode": "edge"}
    ),
    "slice-back": lambda b: b.op(
        "Slice", [image(b), ints(b, 6, 9), ints(b, 1, -20), ints(b, 1, 3), ints(b, -2, -1)]
    ),
    "shuffle-out": lambda b: of_image(b, "DepthToSpace", blocksize=2, mode="CRD"),
    "clip-below": lambda b: b.op("Clip", [image(b), scalar(b, -0.3)]),
    "shape": lambda b: b.add(
        image(b), b.op("Cast", [b.slice(b.op("Shape", [image(b)]), (3,), (4,), (0,))], {"to": 1})
    ),
    **{
        f"nearest-{factor}-{where}-{rounding}": partial(
            resized,
            factor=factor,
            mode="nearest",
            coordinate_transformation_mode=where,
            nearest_mode=rounding,
        )
        for factor, where, rounding in (
            (2.0, "asymmetric", "floor"),
            (2.0, "half_pixel", "round_prefer_floor"),
            (0.5, "half_pixel", "round_prefer_floor"),
            (1.5, "asymmetric", "ceil"),
            (2.0, "align_corners", "round_prefer_ceil"),
            (2.0, "pytorch_half_pixel", "floor"),
        )
    },
    **{
        f"linear-{factor}-{where}": partial(
            resized, factor=factor, mode="linear", coordinate_transformation_mode=where
        )
        for factor, where in (
            (2.0, "asymmetric"),
            (1.5, "half_pixel"),
            (0.5, "pytorch_half_pixel"),
            (2.0, "align_corners"),
        )
    },
}


def _pair(b: GraphBuilder) -> tuple[str, str]:
    return b.input((1, 8)), b.input((1, 8))


def graph_of(name: str) -> Graph:
    b = GraphBuilder(name)
    return b.build([OPS[name](b)])


def worst(expected: list[Any], found: list[Any]) -> float:
    return max(
        float(np.abs(e - f).max() / max(np.abs(e).max(), 1e-9))
        for e, f in zip(expected, found, strict=True)
    )


@pytest.mark.parametrize("name", list(OPS))
def test_float_ops_agree_with_onnxruntime(name: str, run_onnx: Run, lite: Any) -> None:
    graph = graph_of(name)
    expected = run_onnx(build_onnx(graph), graph)
    assert worst(expected, lite(build_tflite(graph)).run(graph)) < 1e-5


# Ops whose result can change completely when the operand changes by one quantisation step. In int8,
# at least 75 % of their results must be right.
JUMPING = {"argmax", "argmin", "equal", "less", "greater", "lessorequal", "greaterorequal", "sign"}
# Largest accepted error in int8, relative to the largest value; all other ops must stay within 0.2.
COARSE = {
    "thresholded": 0.3,
    "masked-attention": 0.3,
    "mod": 0.3,
    "and": 1.0,
    "or": 1.0,
    "xor": 1.0,
}


@pytest.mark.parametrize("name", list(OPS))
def test_int8_ops_run_and_are_near(name: str, run_onnx: Run, lite: Any) -> None:
    graph = graph_of(name)
    model = lite(build_tflite(graph, "int8"))
    kinds = {graph.type_of(t).dtype for t in (*graph.inputs, *graph.outputs)}
    allowed = {"float32": np.int8, "int64": np.int32, "bool": np.bool_}
    found = {detail["dtype"] for detail in (*model.inputs, *model.outputs)}
    assert found == {allowed[kind] for kind in kinds}
    expected, made = run_onnx(build_onnx(graph), graph), model.run(graph)
    if name in JUMPING:
        assert np.mean(np.abs(expected[0] - made[0]) < 0.1) > 0.75
    else:
        assert worst(expected, made) < COARSE.get(name, 0.2)


def test_embeddings_take_int32() -> None:
    model = translate(graph_of("embedding"))
    assert [model.tensors[i].dtype for i in model.inputs] == ["int32"]
    assert model.operators[0].code == "GATHER"


@pytest.mark.parametrize("name", ["gelu-pytorch", "gelu-halved-last"])
def test_gelu_is_one_operator_however_it_is_spelled(name: str) -> None:
    assert [operator.code for operator in translate(graph_of(name)).operators] == ["GELU"]


def test_pixels_become_tokens_and_back_without_a_transpose() -> None:
    assert tflite_report(graph_of("tokens")).operators["TRANSPOSE"] == 0


def test_layer_norm_multiplies_by_the_inverse_root() -> None:
    b = GraphBuilder("norm")
    graph = b.build([b.layer_norm(b.input((1, 6, 16)))])
    report = tflite_report(graph)
    assert report.operators["RSQRT"] == 1
    assert "DIV" not in report.operators
    assert report.float_islands == ()


def test_the_report_names_what_stayed_float() -> None:
    b = GraphBuilder("islands")
    x = b.relu(b.op("Sin", [b.conv(b.input((1, 4, 8, 8)), 8, 3)]))
    graph = b.build([b.op("Floor", [x])])
    report = tflite_report(graph)
    assert [(i.node, i.op, i.operator) for i in report.float_islands] == [
        ("sin_1", "Sin", "SIN"),
        ("floor_3", "Floor", "FLOOR"),
    ]
    assert report.operators["DEQUANTIZE"] == report.operators["QUANTIZE"] == 2
    assert report.layouts == {"input": (0, 2, 3, 1), "floor_3": (0, 2, 3, 1)}
    assert tflite_report(graph, "fp32").float_islands == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: resized(b, 2.0, mode="cubic"), r"'resize_0' \(Resize\): mode cubic"),
        (
            lambda b: resized(b, 1.3, mode="linear", coordinate_transformation_mode="asymmetric"),
            r"'resize_0' \(Resize\): linear interpolation at scales",
        ),
        (
            lambda b: b.op("Mod", [image(b), scalar(b, 2.0)], {"fmod": 1}),
            r"'mod_0' \(Mod\): a remainder",
        ),
        (lambda b: of_image(b, "LpPool", p=1, kernel_shape=(2, 2)), r"a norm of order 1"),
        (lambda b: b.op("Pow", [b.input((3,), "int64"), ints(b, 2)]), r"a power of integers"),
        (lambda b: b.op("Cast", [image(b)], {"to": 10}), r"is float16; TFLite takes float32"),
        (
            lambda b: of_image(b, "ArgMax", axis=1, select_last_index=1),
            r"'argmax_0' \(ArgMax\): the last of equals",
        ),
    ],
)
def test_refusals_name_the_node(make: Make, message: str) -> None:
    b = GraphBuilder("refused")
    graph = b.build([make(b)])
    with pytest.raises(BuildError, match=message):
        build_tflite(graph)
