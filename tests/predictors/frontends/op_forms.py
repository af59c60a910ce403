"""Ops in the forms of different opsets, each with the code that builds an equal graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

X = (2, 4, 6, 6)
Weights = Mapping[str, Any]
Step = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]


def read(
    folder: Path,
    opset: int,
    steps: Sequence[Step],
    weights: Weights | None = None,
    shape: Sequence[int | str | None] = X,
    **options: Any,
) -> Graph:
    """Write the steps as a model that reads "x" and makes "y", and read it."""
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node(op, ins, outs, **attrs) for op, ins, outs, attrs in steps]
    held = [onnx.numpy_helper.from_array(np.asarray(w), k) for k, w in (weights or {}).items()]
    graph = onnx.helper.make_graph(
        nodes, "model", [value("x", 1, shape)], [value("y", 1, None)], held
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return read_onnx(path, **options)


def built(make: Callable[[GraphBuilder, str], str], shape: tuple[int, ...] = X) -> Graph:
    b = GraphBuilder("built")
    return b.build([make(b, b.input(shape))])


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def one(op: str, *inputs: str, **attrs: Any) -> list[Step]:
    return [(op, ["x", *inputs], ["y"], attrs)]


ZEROS = {name: np.zeros(4, np.float32) for name in "abcd"}
NORM = one("BatchNormalization", "a", "b", "c", "d")

SAME: dict[str, tuple[int, list[Step], Weights, Callable[[GraphBuilder, str], str]]] = {
    "clip 6": (6 + 1, one("Clip", min=0.0, max=6.0), {}, lambda b, x: b.relu6(x)),
    "clip 13": (
        13,
        one("Clip", "lo", "hi"),
        {"lo": np.float32(0), "hi": np.float32(6)},
        lambda b, x: b.relu6(x),
    ),
    "clip made by Constant": (
        12,
        [
            ("Constant", [], ["lo"], {"value_float": 0.0}),
            ("Constant", [], ["hi"], {"value": onnx.numpy_helper.from_array(f32(6.0))}),
            ("Clip", ["x", "lo", "hi"], ["y"], {}),
        ],
        {},
        lambda b, x: b.relu6(x),
    ),
    "pad 10": (
        10,
        one("Pad", pads=[0, 0, 1, 1, 0, 0, 2, 2]),
        {},
        lambda b, x: b.pad(x, (1, 1, 2, 2)),
    ),
    "pad 11": (
        11,
        one("Pad", "p"),
        {"p": i64(0, 0, 1, 1, 0, 0, 2, 2)},
        lambda b, x: b.pad(x, (1, 1, 2, 2)),
    ),
    "pad 18": (
        18,
        one("Pad", "p", "", "axes"),
        {"p": i64(1, 1, 2, 2), "axes": i64(2, -1)},
        lambda b, x: b.pad(x, (1, 1, 2, 2)),
    ),
    "squeeze 11": (
        11,
        [("GlobalAveragePool", ["x"], ["p"], {}), ("Squeeze", ["p"], ["y"], {"axes": [-1, 2]})],
        {},
        lambda b, x: b.op("Squeeze", [b.global_avg_pool(x), b.weight((2,), "int64", (2, 3))]),
    ),
    "unsqueeze 11": (
        11,
        one("Unsqueeze", axes=[-1]),
        {},
        lambda b, x: b.op("Unsqueeze", [x, b.weight((1,), "int64", (4,))]),
    ),
    "split 11": (
        11,
        [
            ("Split", ["x"], ["p", "q"], {"axis": 1, "split": [1, 3]}),
            ("Concat", ["q", "p"], ["y"], {"axis": 1}),
        ],
        {},
        lambda b, x: b.concat(b.split(x, (1, 3))[::-1]),
    ),
    "split 18": (
        18,
        [
            ("Split", ["x"], ["p", "q"], {"axis": -3, "num_outputs": 2}),
            ("Concat", ["q", "p"], ["y"], {"axis": -3}),
        ],
        {},
        lambda b, x: b.concat(b.split(x, (2, 2))[::-1]),
    ),
    "slice 9": (
        9,
        one("Slice", starts=[1, -2], ends=[2**31 - 1, 2**63 - 1], axes=[2, 3]),
        {},
        lambda b, x: b.slice(x, [1, 4], [6, 6], [2, 3]),
    ),
    "slice 10": (
        10,
        one("Slice", "s", "e", "a"),
        {"s": i64(-2, 1), "e": i64(9, 9), "a": i64(-1, -2)},
        lambda b, x: b.slice(x, [1, 4], [6, 6], [2, 3]),
    ),
    "batch norm 7": (7, NORM, ZEROS, lambda b, x: b.batch_norm(x)),
    "batch norm 8 with training outputs": (
        8,
        [
            (
                "BatchNormalization",
                ["x", "a", "b", "c", "d"],
                ["y", "m", "v", "sm", "sv"],
                {"momentum": 0.5, "epsilon": 0.001, "spatial": 1},
            )
        ],
        ZEROS,
        lambda b, x: b.batch_norm(x),
    ),
    "batch norm 15": (15, NORM, ZEROS, lambda b, x: b.batch_norm(x)),
    "sum of two": (8, one("Sum", "x"), {}, lambda b, x: b.add(x, x)),
    "sum of three": (8, one("Sum", "x", "x"), {}, lambda b, x: b.op("Sum", [x, x, x])),
    "dropout 7": (
        7,
        [("Dropout", ["x"], ["d", "mask"], {"ratio": 0.3}), ("Relu", ["d"], ["y"], {})],
        {},
        lambda b, x: b.relu(x),
    ),
    "dropout 13": (
        13,
        [
            ("Dropout", ["x", "r", "t"], ["d"], {}),
            ("Identity", ["d"], ["i"], {}),
            ("Relu", ["i"], ["y"], {}),
        ],
        {"r": np.float32(0.3), "t": np.array(False)},
        lambda b, x: b.relu(x),
    ),
    "upsample 7": (
        7,
        one("Upsample", mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]),
        {},
        lambda b, x: b.resize(x, 2),
    ),
    "upsample 9": (9, one("Upsample", "s"), {"s": f32(1, 1, 2, 2)}, lambda b, x: b.resize(x, 2)),
    "resize 10": (10, one("Resize", "s"), {"s": f32(1, 1, 2, 2)}, lambda b, x: b.resize(x, 2)),
    "resize 13 by scales": (
        13,
        one(
            "Resize",
            "",
            "s",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
            cubic_coeff_a=-0.5,
        ),
        {"s": f32(1, 1, 2, 2)},
        lambda b, x: b.resize(x, 2),
    ),
    "resize 13 by sizes": (
        13,
        one(
            "Resize",
            "",
            "",
            "s",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        {"s": i64(2, 4, 12, 12)},
        lambda b, x: b.resize(x, 2),
    ),
    "resize 18 by axes": (
        18,
        one(
            "Resize",
            "",
            "s",
            mode="linear",
            coordinate_transformation_mode="asymmetric",
            axes=[2, 3],
        ),
        {"s": f32(2, 2)},
        lambda b, x: b.resize(x, 2, "linear"),
    ),
    "reshape by -1 and 0": (
        13,
        one("Reshape", "s"),
        {"s": i64(0, -1)},
        lambda b, x: b.reshape(x, (2, 144)),
    ),
    "two reshapes": (
        13,
        [("Reshape", ["x", "s"], ["r"], {}), ("Reshape", ["r", "t"], ["y"], {})],
        {"s": i64(0, 2, 2, 36), "t": i64(2, 144)},
        lambda b, x: b.reshape(x, (2, 144)),
    ),
    "reshape by a shape chain": (
        11,
        [
            ("Shape", ["x"], ["shape"], {}),
            ("Constant", [], ["zero"], {"value_int": 0}),
            ("Gather", ["shape", "zero"], ["batch"], {"axis": 0}),
            ("Unsqueeze", ["batch"], ["batches"], {"axes": [0]}),
            ("Concat", ["batches", "rest"], ["wanted"], {"axis": 0}),
            ("Reshape", ["x", "wanted"], ["y"], {}),
        ],
        {"rest": i64(-1)},
        lambda b, x: b.reshape(x, (2, 144)),
    ),
    "resize by a shape chain": (
        11,
        [
            ("Shape", ["x"], ["shape"], {}),
            ("Slice", ["shape", "two", "four"], ["sides"], {}),
            ("Cast", ["sides"], ["floats"], {"to": 1}),
            ("Mul", ["floats", "factor"], ["larger"], {}),
            ("Floor", ["larger"], ["whole"], {}),
            ("Cast", ["whole"], ["ints"], {"to": 7}),
            ("Slice", ["shape", "nil", "two"], ["start"], {}),
            ("Concat", ["start", "ints"], ["sizes"], {"axis": 0}),
            (
                "Resize",
                ["x", "", "", "sizes"],
                ["y"],
                {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            ),
        ],
        {"nil": i64(0), "two": i64(2), "four": i64(4), "factor": f32(2)},
        lambda b, x: b.resize(x, 2),
    ),
    "softmax 11 over the last axis": (
        11,
        one("Softmax", axis=3),
        {},
        lambda b, x: b.softmax(x),
    ),
    "softmax 11 over the rest": (
        11,
        one("Softmax"),
        {},
        lambda b, x: b.reshape(b.softmax(b.reshape(x, (2, 144))), X),
    ),
    "softmax 13": (13, one("Softmax"), {}, lambda b, x: b.softmax(x)),
    "reduce mean 13": (
        13,
        one("ReduceMean", axes=[-1, 2]),
        {},
        lambda b, x: b.reduce_mean(x, [2, 3]),
    ),
    "reduce mean 18": (
        18,
        one("ReduceMean", "a"),
        {"a": i64(2, -1)},
        lambda b, x: b.reduce_mean(x, [2, 3]),
    ),
    "reduce sum 11": (
        11,
        one("ReduceSum", axes=[1], keepdims=0),
        {},
        lambda b, x: b.op("ReduceSum", [x, b.weight((1,), "int64", (1,))], {"keepdims": 0}),
    ),
    "hard swish 14": (14, one("HardSwish"), {}, lambda b, x: b.hard_swish(x)),
    "gelu 20": (20, one("Gelu"), {}, lambda b, x: b.gelu(x)),
    "layer norm 17": (
        17,
        one("LayerNormalization", "s", "b"),
        {"s": f32(*[1.0] * 6), "b": f32(*[0.0] * 6)},
        lambda b, x: b.layer_norm(x),
    ),
    "gemm of [in, out]": (
        13,
        [("Flatten", ["x"], ["f"], {}), ("Gemm", ["f", "w", "b"], ["y"], {"alpha": 0.5})],
        {"w": np.zeros((144, 5), np.float32), "b": np.zeros((1, 5), np.float32)},
        lambda b, x: b.fc(b.flatten(x), 5),
    ),
    "conv by auto_pad": (
        9,
        one("Conv", "w", auto_pad="SAME_UPPER", strides=[2, 2]),
        {"w": np.zeros((8, 4, 3, 3), np.float32)},
        lambda b, x: b.conv(x, 8, 3, 2),
    ),
    "conv of weights made of weights": (
        9,
        [
            ("ConstantOfShape", ["s"], ["w"], {}),
            ("Transpose", ["w"], ["t"], {"perm": [3, 2, 0, 1]}),
            ("Conv", ["x", "t"], ["y"], {"auto_pad": "SAME_UPPER"}),
        ],
        {"s": i64(3, 3, 4, 64)},
        lambda b, x: b.conv(x, 64, 3),
    ),
    "conv transpose by output_shape": (
        13,
        one("ConvTranspose", "w", output_shape=[12, 12], strides=[2, 2], auto_pad="SAME_UPPER"),
        {"w": np.zeros((4, 5, 4, 4), np.float32)},
        lambda b, x: b.conv_transpose(x, 5, 4, 2),
    ),
    "conv transpose to a shape beyond the window": (
        13,
        one("ConvTranspose", "w", output_shape=[19, 13], strides=[3, 2]),
        {"w": np.zeros((4, 5, 3, 3), np.float32)},
        lambda b, x: b.conv_transpose(x, 5, 3, (3, 2), 0, output_padding=(1, 0)),
    ),
    "cast like": (
        15,
        one("CastLike", "w"),
        {"w": np.float16(1)},
        lambda b, x: b.op("Cast", [x], {"to": 10}),
    ),
    "leaky relu, default spelled out": (
        13,
        one("LeakyRelu", alpha=0.01),
        {},
        lambda b, x: b.leaky_relu(x),
    ),
    "views that change nothing": (
        13,
        [
            ("Transpose", ["x"], ["t"], {"perm": [0, 1, 2, 3]}),
            ("Cast", ["t"], ["c"], {"to": 1}),
            ("Concat", ["c"], ["d"], {"axis": 1}),
            ("Slice", ["d", "nil", "all"], ["e"], {}),
            ("Expand", ["e", "one"], ["f"], {}),
            ("Tile", ["f", "ones"], ["g"], {}),
            ("Pad", ["g", "none"], ["h"], {}),
            ("Relu", ["h"], ["y"], {}),
        ],
        {
            "nil": i64(0),
            "all": i64(2**62),
            "one": i64(1),
            "ones": i64(1, 1, 1, 1),
            "none": i64(*[0] * 8),
        },
        lambda b, x: b.relu(x),
    ),
    "dead branches": (
        13,
        [("Relu", ["x"], ["y"], {}), ("Exp", ["y"], ["nobody"], {})],
        {"unused": f32(1.0)},
        lambda b, x: b.relu(x),
    ),
    "mul by a folded constant": (
        13,
        [("Sqrt", ["four"], ["two"], {}), ("Mul", ["x", "two"], ["y"], {})],
        {"four": np.float32(4.0)},
        lambda b, x: b.mul(x, b.scalar_like(x, 2.0)),
    ),
}
