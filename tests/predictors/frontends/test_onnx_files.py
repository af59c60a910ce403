"""Opening a file: weights stay in it, functions are inlined, known branches are chosen."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from latfarm_predictors.errors import ModelFileError, UnsupportedOpError
from latfarm_predictors.frontends import onnx_file
from latfarm_predictors.frontends.onnx import read_onnx, read_onnx_weights
from latfarm_predictors.frontends.onnx_wire import BIG_BYTES, WireError, skeleton_of
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.hash import hash_of

HEAD = '<ir_version: 8, opset_import: ["" : 13, "own" : 1]>'
ARRAY = np.arange(3_000_000, dtype=np.float32).reshape(3000, 1000)


def written(folder: Path, model: Any) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def parsed(folder: Path, text: str) -> Path:
    return written(folder, onnx.parser.parse_model(text))


def product(weight: Any, *, constant: bool = False) -> Any:
    """x [1, 3000] times a weight, which is an initializer or in a Constant node."""
    weight.name = "w"
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[1, 3000] x) => (float[1, 1000] y) {{ y = MatMul (x, w) }}"
    )
    if constant:
        node = onnx.helper.make_node("Constant", [], ["w"], value=weight)
        nodes = [node, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    else:
        model.graph.initializer.append(weight)
    return model


def packed(array: Any) -> Any:
    return onnx.helper.make_tensor("w", 1, array.shape, array.reshape(-1))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("make", [onnx.numpy_helper.from_array, packed])
def test_large_weights_stay_in_the_file(make: Any, constant: bool, tmp_path: Path) -> None:
    path = written(tmp_path, product(make(ARRAY), constant=constant))
    assert path.stat().st_size > 12e6
    read_onnx(path)  # imports
    tracemalloc.start()
    try:
        graph = read_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6
    assert [w.type for w in graph.weights.values()] == [TensorType("float32", ARRAY.shape)]
    again, weights = read_onnx_weights(path)
    assert hash_of(again) == hash_of(graph)
    ((_, found),) = weights.items()
    assert (found == ARRAY).all()


def test_how_weights_are_stored_changes_nothing(tmp_path: Path) -> None:
    made = {
        hash_of(read_onnx(written(tmp_path, product(make(ARRAY[:, :width]), constant=constant))))
        for make in (onnx.numpy_helper.from_array, packed)
        for constant in (False, True)
        for width in (100, 1, 1)  # small ones are parsed with the file
    }
    assert len(made) == 2


def test_a_skeleton_is_the_model_without_data() -> None:
    model = product(onnx.numpy_helper.from_array(ARRAY[:6]))
    model.graph.value_info.add(name="dropped")
    model.training_info.add()
    data = model.SerializeToString()
    skeleton = skeleton_of(memoryview(data))
    assert len(skeleton.data) < 300
    assert set(skeleton.places) == {"w"}
    place = skeleton.places["w"]
    assert place.raw is not None
    assert data[slice(*place.raw)] == ARRAY[:6].tobytes()
    copy = onnx.ModelProto.FromString(skeleton.data)
    assert copy.graph.node == model.graph.node
    assert copy.graph.initializer[0].dims == [6, 1000]
    model.graph.initializer[0].ClearField("raw_data")
    del model.graph.value_info[:], model.training_info[:]
    assert copy == model


def test_a_skeleton_of_a_small_model_is_the_model() -> None:
    model = product(onnx.numpy_helper.from_array(ARRAY[:3, :1000]))
    assert len(model.SerializeToString()) < BIG_BYTES
    assert onnx.ModelProto.FromString(skeleton_of(memoryview(model.SerializeToString())).data) == (
        model
    )


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\xff" * 12, b"\x0b", b"\x0d\0", b"\0"])
def test_bytes_that_are_no_protobuf_message_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        skeleton_of(memoryview(data))


def test_a_pipe_is_read_and_a_device_is_not() -> None:
    with pytest.raises(ModelFileError, match="is a device"):
        read_onnx("/dev/zero")
    ours, theirs = os.pipe()
    model = product(onnx.numpy_helper.from_array(ARRAY[:, :1]))
    with os.fdopen(theirs, "wb") as pipe:
        pipe.write(model.SerializeToString())
    try:
        assert [node.op for node in read_onnx(f"/dev/fd/{ours}").nodes] == ["MatMul"]
    finally:
        os.close(ours)


FUNCTION = f"""{HEAD} g (float[1, 8] x) => (float[1, 8] y) {{ y = own.twice (x) }}
<domain: "own", opset_import: ["" : 13, "own" : 1]>
twice (a) => (b) {{ t = own.once (a) b = own.once (t) }}
<domain: "own", opset_import: ["" : 13, "own" : 1]>
once (a) => (b) {{ b = Relu (a) }}"""


def test_functions_are_inlined(tmp_path: Path) -> None:
    graph = read_onnx(parsed(tmp_path, FUNCTION))
    assert [node.op for node in graph.nodes] == ["Relu", "Relu"]


def test_functions_in_a_circle(tmp_path: Path) -> None:
    circle = FUNCTION.replace("b = Relu (a)", "b = own.twice (a)")
    with pytest.raises(ModelFileError, match="in a circle"):
        read_onnx(parsed(tmp_path, circle))


def doubling(depth: int) -> Any:
    """A function that calls another twice, which calls another twice, and so on."""
    model = onnx.parser.parse_model(FUNCTION)
    del model.functions[:]
    ids = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("own", 1)]
    for index in range(depth):
        last = index + 1 == depth
        op, domain = ("Relu", "") if last else (f"f{index + 1}", "own")
        nodes = [
            onnx.helper.make_node(op, ["a"], ["t"], domain=domain),
            onnx.helper.make_node(op, ["t"], ["b"], domain=domain),
        ]
        name = "twice" if index == 0 else f"f{index}"
        model.functions.append(onnx.helper.make_function("own", name, ["a"], ["b"], nodes, ids))
    return model


def test_functions_that_grow_without_bound(tmp_path: Path) -> None:
    assert len(read_onnx(written(tmp_path, doubling(5))).nodes) == 32
    with pytest.raises(ModelFileError, match=r"has \d+ nodes, more than 50000"):
        read_onnx(written(tmp_path, doubling(40)))
    with pytest.raises(ModelFileError, match="more than 50 deep"):
        read_onnx(written(tmp_path, doubling(200)))


def test_too_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parsed(tmp_path, FUNCTION)
    monkeypatch.setattr(onnx_file, "NODE_LIMIT", 4)
    with pytest.raises(ModelFileError, match="more than 4; export a smaller model"):
        read_onnx(path)


BRANCHES = f"""{HEAD} g (float[1, 8] x) => (float[1, 8] y) <int64[1] two = {{2}}> {{
    s = Shape (x)
    r = Size (s)
    c = Equal (r, two)
    y = If (c) <then_branch = t () => (float[1, 8] a) <float[1] k = {{3}}> {{ a = Mul (x, k) }},
                else_branch = e () => (float[1, 8] b) {{ b = Exp (x) }}>
}}"""


def test_a_branch_whose_condition_is_known_is_taken(tmp_path: Path) -> None:
    graph = read_onnx(parsed(tmp_path, BRANCHES))
    assert [node.op for node in graph.nodes] == ["Mul"]
    graph = read_onnx(parsed(tmp_path, BRANCHES.replace("two = {2}", "two = {3}")))
    assert [node.op for node in graph.nodes] == ["Exp"]


def test_a_branch_that_depends_on_the_data_is_not(tmp_path: Path) -> None:
    text = BRANCHES.replace("r = Size (s)", "m = ReduceMax <keepdims = 0> (x)")
    text = text.replace("c = Equal (r, two)", "c = Cast <to = 9> (m)")
    with pytest.raises(UnsupportedOpError, match="depends on the data"):
        read_onnx(parsed(tmp_path, text))


@pytest.mark.parametrize(
    "first",
    [
        """If (c) <
            then_branch = t () => (float[1, 8] a, float[1, 8] b) { a = Relu (x) b = Exp (x) },
            else_branch = e () => (float[1, 8] d, float[1, 8] f) { d = Exp (x) f = Exp (x) }
        >""",
        "Dropout (x)",
    ],
)
def test_a_result_that_is_left_out_is_no_operand_that_is_left_out(
    first: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[1, 8] x) => (float[1, 8] y) <bool c = {{1}}, float top = {{6}}> {{
            h, none = {first}
            y = Clip (h, , top)
        }}"""
    )
    model.graph.node[0].output[1] = ""
    clip = read_onnx(written(tmp_path, model)).nodes[-1]
    assert (clip.op, clip.inputs[1]) == ("Clip", "")


@pytest.mark.parametrize(
    "nodes",
    [
        "y = ConstantOfShape (s)",
        "y = Expand (one, s)",
        "y = Tile (one, s)",
        "e = ConstantOfShape (s) y = NonZero (e)",
        "r = Range (z, far, step) y = Cast <to = 1> (r)",
        "e = Expand (one, s) f = Exp (e) y = MatMul (f, f)",
    ],
)
def test_giant_constants_are_never_allocated(nodes: str, tmp_path: Path) -> None:
    path = parsed(
        tmp_path,
        f"""{HEAD} g (float[1, 8] x) => (float[N, M] y) <int64[2] s = {{4000000, 4000000}},
        float[1, 1] one = {{1}}, int64 z = {{0}}, int64 far = {{9000000000000}},
        int64 step = {{1}}> {{ {nodes} }}""",
    )
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            read_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6


def test_a_huge_broadcast_of_small_constants_is_never_allocated(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[1, 8] x) => (float[N] y)"
        " { d = Max (a, b, c) e = Add (d, d) f = ReduceMax <keepdims = 0> (e) y = Add (f, x) }"
    )
    for axis, name in enumerate("abc"):
        dims = [1000 if at == axis else 1 for at in range(3)]
        model.graph.initializer.append(onnx.helper.make_tensor(name, 1, dims, range(1000)))
    graph = read_onnx(written(tmp_path, model))
    assert [node.op for node in graph.nodes] == ["Add"]
