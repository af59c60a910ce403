from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.canonical import canonical_attrs, canonical_slice
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.shapes import infer, supported_ops
from latfarm_predictors.testing.onnx_files import model_of

X = (2, 8, 15, 13)

# Every method of the builder, and the shape of its result on X.
METHODS: dict[str, tuple[Callable[[GraphBuilder, str], str], tuple[int, ...]]] = {
    "conv same": (lambda b, x: b.conv(x, 16, 3, 2), (2, 16, 8, 7)),
    "conv valid bias": (lambda b, x: b.conv(x, 16, (1, 3), 1, "valid", bias=True), (2, 16, 15, 11)),
    "conv pads": (lambda b, x: b.conv(x, 16, 3, 2, (0, 1, 2, 3)), (2, 16, 8, 8)),
    "conv groups": (lambda b, x: b.conv(x, 12, 3, groups=4, dilation=2), (2, 12, 15, 13)),
    "depthwise": (lambda b, x: b.depthwise(x, 5, 2, bias=True), (2, 8, 8, 7)),
    "conv_transpose same": (lambda b, x: b.conv_transpose(x, 4, 4, 2), (2, 4, 30, 26)),
    "conv_transpose gap": (lambda b, x: b.conv_transpose(x, 4, 2, 3), (2, 4, 45, 39)),
    "conv_transpose int": (
        lambda b, x: b.conv_transpose(x, 4, 3, 2, 1, groups=2, bias=True, output_padding=1),
        (2, 4, 30, 26),
    ),
    "batch_norm": (lambda b, x: b.batch_norm(x), X),
    "relu": (lambda b, x: b.relu(x), X),
    "relu6": (lambda b, x: b.relu6(x), X),
    "clip": (lambda b, x: b.clip(x, -1, 1), X),
    "sigmoid": (lambda b, x: b.sigmoid(x), X),
    "tanh": (lambda b, x: b.tanh(x), X),
    "hard_sigmoid": (lambda b, x: b.hard_sigmoid(x), X),
    "hard_swish": (lambda b, x: b.hard_swish(x), X),
    "gelu": (lambda b, x: b.gelu(x), X),
    "leaky_relu": (lambda b, x: b.leaky_relu(x, 0.1), X),
    "softmax": (lambda b, x: b.softmax(x), X),
    "lrn": (lambda b, x: b.lrn(x, 5), X),
    "max_pool": (lambda b, x: b.max_pool(x, 3, 2), (2, 8, 7, 6)),
    "max_pool same": (lambda b, x: b.max_pool(x, 3, 2, "same"), (2, 8, 8, 7)),
    "avg_pool": (lambda b, x: b.avg_pool(x, (3, 2)), (2, 8, 5, 6)),
    "global_avg_pool": (lambda b, x: b.global_avg_pool(x), (2, 8, 1, 1)),
    "reduce_mean": (lambda b, x: b.reduce_mean(x, [-1, 2], keepdims=False), (2, 8)),
    "add": (lambda b, x: b.add(x, b.global_avg_pool(x)), X),
    "sub": (lambda b, x: b.sub(x, b.weight((1,))), X),
    "mul": (lambda b, x: b.mul(b.weight((8, 1, 1)), x), X),
    "div": (lambda b, x: b.div(x, x), X),
    "concat": (lambda b, x: b.concat([x, x, x]), (2, 24, 15, 13)),
    "concat back": (lambda b, x: b.concat([x, x], axis=-1), (2, 8, 15, 26)),
    "flatten": (lambda b, x: b.flatten(x), (2, 8 * 15 * 13)),
    "reshape": (lambda b, x: b.reshape(x, (0, 2, 4, -1)), (2, 2, 4, 195)),
    "transpose": (lambda b, x: b.transpose(x, (0, 2, 3, -3)), (2, 15, 13, 8)),
    "split": (lambda b, x: b.split(x, (3, 5))[1], (2, 5, 15, 13)),
    "slice": (lambda b, x: b.slice(x, [1, -2], [99, 99], [2, -1]), (2, 8, 14, 2)),
    "resize": (lambda b, x: b.resize(x, 2), (2, 8, 30, 26)),
    "resize linear": (lambda b, x: b.resize(x, (2, 3), "linear"), (2, 8, 30, 39)),
    "pad": (lambda b, x: b.pad(x, (1, 2, 3, 4)), (2, 8, 19, 19)),
    "pad all": (lambda b, x: b.pad(x, (0, 1, 0, 0, 0, 0, 0, 0), mode="edge"), (2, 9, 15, 13)),
    "matmul": (lambda b, x: b.matmul(x, b.weight((13, 7))), (2, 8, 15, 7)),
    "layer_norm": (lambda b, x: b.layer_norm(x), X),
    "fc": (lambda b, x: b.fc(b.flatten(x), 10), (2, 10)),
    "op": (lambda b, x: b.op("Selu", [x]), X),
    "depth_to_space": (lambda b, x: b.op("DepthToSpace", [x], {"blocksize": 2}), (2, 2, 30, 26)),
    "squeeze": (
        lambda b, x: b.op("Squeeze", [b.global_avg_pool(x), b.weight((2,), "int64", (2, 3))]),
        (2, 8),
    ),
    "unsqueeze": (
        lambda b, x: b.op("Unsqueeze", [x, b.weight((1,), "int64", (0,))]),
        (1, *X),
    ),
    "argmax": (lambda b, x: b.op("ArgMax", [x], {"axis": 1}), (2, 1, 15, 13)),
    "reduce_sum": (
        lambda b, x: b.op("ReduceSum", [x, b.weight((1,), "int64", (1,))]),
        (2, 1, 15, 13),
    ),
    "gather": (
        lambda b, x: b.op("Gather", [x, b.weight((3,), "int64", (0, 2, 1))], {"axis": 1}),
        (2, 3, 15, 13),
    ),
    "tile": (
        lambda b, x: b.op("Tile", [x, b.weight((4,), "int64", (1, 2, 1, 1))]),
        (2, 16, 15, 13),
    ),
    "expand": (
        lambda b, x: b.op("Expand", [x, b.weight((5,), "int64", (3, 1, 1, 1, 1))]),
        (3, *X),
    ),
    "cast": (lambda b, x: b.op("Cast", [x], {"to": 10}), X),
    "where": (lambda b, x: b.op("Where", [b.op("Greater", [x, b.relu(x)]), x, x]), X),
    "prelu": (lambda b, x: b.op("PRelu", [x, b.weight((8, 1, 1))]), X),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_agree_with_onnx(name: str) -> None:
    make, shape = METHODS[name]
    b = GraphBuilder(name)
    y = make(b, b.input(X))
    assert b.type_of(y).shape == shape
    # The checker infers shapes by itself and refuses a declared output that differs.
    assert model_of(b.build([y])).graph.output


@pytest.mark.parametrize("spatial", [1, 3])
def test_one_and_three_dimensions(spatial: int) -> None:
    b = GraphBuilder("nd")
    x = b.input((1, 4, *(9,) * spatial))
    y = b.max_pool(b.conv(x, 8, 3, 2), 2)
    assert b.type_of(y).shape == (1, 8, *(2,) * spatial)
    model_of(b.build([b.global_avg_pool(y)]))


@given(
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_windows_agree_with_onnx(
    size: int, kernel: int, stride: int, dilation: int, auto_pad: str, ceil: bool
) -> None:
    x = TensorType("float32", (1, 1, size))
    attrs: dict[str, Any] = {
        "kernel_shape": (kernel,),
        "strides": (stride,),
        "dilations": (dilation,),
    }
    asked = attrs | {"auto_pad": auto_pad} | ({"ceil_mode": 1} if ceil else {})
    full = canonical_attrs("MaxPool", asked, [x])
    if auto_pad == "VALID" and (kernel - 1) * dilation + 1 > size:
        with pytest.raises(GraphError, match="larger"):
            infer("MaxPool", [x], [None], full)
        return
    (made,) = infer("MaxPool", [x], [None], full)
    # With explicit pads onnx rounds by ceil_mode; "same" is defined by its result.
    assert made.shape[2] == onnx_window(size, full, ceil)
    if auto_pad != "VALID":
        assert made.shape[2] == -(-size // stride)


def onnx_window(size: int, attrs: dict[str, Any], ceil: bool) -> int:
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MaxPool", ["x"], ["y"], **attrs)
    graph = onnx.helper.make_graph(
        [node], "g", [value("x", 1, (1, 1, size))], [value("y", 1, None)]
    )
    # Opset 22 states what runtimes do at all opsets: no window starts in the padding at the end.
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)])
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    return int(found.graph.output[0].type.tensor_type.shape.dim[2].dim_value)


@given(
    st.lists(st.tuples(*[st.integers(-12, 12)] * 2, st.sampled_from([-2, -1, 1, 2, 3])), max_size=3)
)
@settings(max_examples=80, deadline=None)
def test_canonical_slices_select_the_same(parts: list[tuple[int, int, int]]) -> None:
    import numpy as np

    data = np.arange(6 * 7 * 8).reshape(6, 7, 8)
    axes = list(range(len(parts)))
    starts, ends, places, steps = canonical_slice(
        data.shape, [p[0] for p in parts], [p[1] for p in parts], axes, [p[2] for p in parts]
    )

    def cut(bounds: list[tuple[int, int, int]]) -> Any:
        return data[tuple(slice(*bound) for bound in bounds)]

    again = [(s, e, d) for s, e, _, d in zip(starts, ends, places, steps, strict=True)]
    assert np.array_equal(cut(parts), cut(again))


def test_every_default_attribute_is_one_of_opset_13() -> None:
    for op in sorted(supported_ops()):
        schema = onnx.defs.get_schema(op, 13, "")
        x = TensorType("float32", (1, 4, 8, 8))
        types = {"Conv": [x, x], "ConvTranspose": [x, x]}.get(op, [x])
        asked: dict[str, Any] = {"kernel_shape": (8, 8)} if "Pool" in op else {}
        if op.startswith("Global"):
            asked = {}
        assert set(canonical_attrs(op, asked, types)) <= set(schema.attributes), op


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: b.add(x, b.input((3, 5))), "do not broadcast"),
        (lambda b, x: b.conv(x, 8, 3, groups=3), "groups"),
        (lambda b, x: b.conv(x, 8, 30, pads="valid"), "larger than its padded input"),
        (lambda b, x: b.conv(x, 8, (3, 3, 3)), "should have 2"),
        (lambda b, x: b.fc(x, 3), "must be matrices"),
        (lambda b, x: b.matmul(x, x), "do not multiply"),
        (lambda b, x: b.concat([x, b.relu(b.input((2, 8, 15, 12)))]), "differ outside axis"),
        (lambda b, x: b.reshape(x, (7, -1)), "does not fit"),
        (lambda b, x: b.transpose(x, (0, 1, 2, 2)), "not a permutation"),
        (lambda b, x: b.split(x, (3, 4)), "do not split"),
        (lambda b, x: b.slice(x, [3], [3], [1]), "empty"),
        (lambda b, x: b.softmax(x, 4), "out of range"),
        (lambda b, x: b.op("Selu", ["nowhere"]), "no tensor"),
        (lambda b, x: b.op("Resize", [x]), "constant"),
        (lambda b, x: b.op("Frobnicate", [x]), "no shape inference"),
        (lambda b, x: b.op("Cast", [x], {"to": 16}), "not supported"),
        (lambda b, x: b.op("LeakyRelu", [x], {"alpha": float("inf")}), "not a finite number"),
        (lambda b, x: b.op("Conv", [x]), "missing"),
        (lambda b, x: b.input((1, 0)), "at least 1"),
        (lambda b, x: b.input((1,), "float8"), "unknown element type"),
        (lambda b, x: b.weight((2,), values=(1.0,)), "1 values"),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    make: Callable[[GraphBuilder, str], str], message: str
) -> None:
    b = GraphBuilder("bad")
    with pytest.raises(GraphError, match=message):
        make(b, b.input(X))


def test_several_outputs_have_names_of_their_own() -> None:
    b = GraphBuilder("split")
    parts = b.split(b.input(X), (4, 4))
    assert len(set(parts)) == 2
    values, indices = b.op("MaxPool", [parts[0]], {"kernel_shape": (3, 3)}, outputs=2)
    assert b.type_of(indices).dtype == "int64"
    assert b.type_of(values).shape == (2, 4, 13, 11)
