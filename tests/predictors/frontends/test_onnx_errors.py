"""Files that are not usable models: errors of one line with the file, the node and the remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import ModelFileError, UnsupportedOpError
from latfarm_predictors.frontends.onnx import SIZE_LIMIT_BYTES, read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.testing.onnx_files import model_of


def small() -> Any:
    b = GraphBuilder("small")
    x = b.relu6(b.batch_norm(b.conv(b.input((1, 3, 8, 8)), 4, 3, 2)))
    x = b.concat([b.max_pool(x, 2), b.slice(b.pad(x, (1, 0, 0, 1)), [0, 0], [2, 2], [2, 3])])
    return model_of(b.build([b.softmax(b.fc(b.flatten(b.hard_swish(x)), 5))]))


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_onnx(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert ";" in message  # the fault, then the remedy
    return message


def test_no_file(tmp_path: Path) -> None:
    assert "no such file" in error_of(tmp_path / "gone.onnx")
    assert "folder" in error_of(tmp_path)
    assert "cannot be read" in error_of(tmp_path / "nul\0.onnx")


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    assert "is empty" in error_of(path)
    for data in (b"PK\x03\x04 a zip", b"hello, world", b"\x80\x02 pickle", bytes(range(256))):
        path.write_bytes(data)
        assert "not an ONNX model" in error_of(path)
    path.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    assert "no graph" in error_of(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        os.truncate(file.fileno(), SIZE_LIMIT_BYTES + 1)  # a sparse file, which takes no disk space
    assert "2 GiB" in error_of(path)


def saved(folder: Path, model: Any) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_opsets(tmp_path: Path) -> None:
    model = small()
    for version in (6, 999):
        model.opset_import[0].version = version
        assert f"opset {version}" in error_of(saved(tmp_path, model))
    model.opset_import[0].domain = "com.microsoft"
    assert "does not say its opset" in error_of(saved(tmp_path, model))


def test_external_data_of_a_node_are_refused_by_name(tmp_path: Path) -> None:
    tensor = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "inner")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "data"
    constant = node("Constant", outputs=["c"], value=tensor)
    del constant.input[:]
    message = error_of(saved(tmp_path, model_with([constant, node("Add", "x", "c")])))
    assert "'inner'" in message
    assert "external_data" in message


def model_with(
    nodes: Sequence[Any], inputs: Sequence[Any] = (), weights: Sequence[Any] = ()
) -> Any:
    value = onnx.helper.make_tensor_value_info
    ins = list(inputs) or [value("x", 1, (1, 4, 8, 8))]
    graph = onnx.helper.make_graph(list(nodes), "g", ins, [value("y", 1, None)], list(weights))
    ids = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=ids)


def node(op: str, *inputs: str, outputs: Sequence[str] = ("y",), **attrs: Any) -> Any:
    return onnx.helper.make_node(op, inputs or ("x",), outputs, name=f"the {op}", **attrs)


BRANCH = onnx.helper.make_graph([], "branch", [], [])
DAMAGED = onnx.TensorProto(name="shape", data_type=7, dims=[2], raw_data=b"\1\2\3")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("If", "x", then_branch=BRANCH, else_branch=BRANCH)], "control flow"),
        ([node("Loop", "", "x", body=BRANCH)], "control flow"),
        ([node("FusedConv", domain="com.microsoft")], "domain 'com.microsoft'"),
        ([node("Frobnicate")], "not part of ONNX opset 13"),
        ([node("QuantizeLinear", "x", "x")], "blocks came with opset 21"),
        ([node("QLinearConv", *["x"] * 8)], "quantisation to float32; int8 and uint8 are"),
        ([node("ConvInteger", "x", "x")], "quantisation to float32; int8 and uint8 are"),
        ([node("BatchNormalization", *["x"] * 5, training_mode=1)], "inference"),
        ([node("Cast", to=16)], "not supported"),
        ([node("Resize", "x", "", "x", mode="cubic", antialias=1)], "antialias"),
        ([node("Constant", outputs=["y"], value_string="text")], "value_string"),
    ],
)
def test_unsupported_ops_name_the_node(nodes: list[Any], message: str, tmp_path: Path) -> None:
    path = saved(tmp_path, model_with(nodes))
    line = error_of(path)
    assert message in line
    assert f"'the {nodes[-1].op_type}'" in line


def test_blocks_and_control_flow_are_unsupported_not_damaged(tmp_path: Path) -> None:
    for op in ("ConvInteger", "Scan"):
        with pytest.raises(UnsupportedOpError):
            read_onnx(saved(tmp_path, model_with([node(op, "x", "x")])))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", "nowhere")], "used before it is made"),
        ([node("Conv", "x", "shape", kernel_shape=[1, 1])], "does not fit"),
        ([node("Reshape", "x", "x")], "depends on the data"),
        ([node("Reshape", "x", "shape")], "damaged"),
        ([node("Transpose", perm=[0, 1])], "perm"),
        ([node("Concat", "x", "x", axis=7)], "out of range"),
        ([node("LeakyRelu", alpha=float("nan"))], "not a finite number"),
        ([node("MaxPool", kernel_shape=[0, 0])], "at least 1"),
        ([node("Gemm", "x", "x")], "matrices"),
        ([node("Sub", "x", "", "x")], "operand 1 is missing"),
    ],
)
def test_contradictions_name_the_node(nodes: list[Any], message: str, tmp_path: Path) -> None:
    line = error_of(saved(tmp_path, model_with(nodes, weights=[DAMAGED])))
    assert message in line
    assert f"'the {nodes[-1].op_type}'" in line


def test_inputs_that_are_not_float_tensors(tmp_path: Path) -> None:
    sequence = onnx.helper.make_tensor_sequence_value_info("x", 1, (1, 4))
    assert "not a tensor" in error_of(saved(tmp_path, model_with([node("Relu")], [sequence])))
    text = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, (1, 4))
    assert "string" in error_of(saved(tmp_path, model_with([node("Relu")], [text])))


def test_outputs_that_need_no_input(tmp_path: Path) -> None:
    constant = node("Constant", outputs=["y"], value_float=1.0)
    constant.input.pop()
    assert "no op is left" in error_of(saved(tmp_path, model_with([constant])))


def test_wrong_options(tmp_path: Path) -> None:
    path = saved(tmp_path, small())
    assert "--batch" in error_of(path, batch=0)
    assert "has no input 'data'" in error_of(path, shapes={"data": (1, 3, 8, 8)})
    assert "does not fit input 'input'" in error_of(path, shapes={"input": (1, 3, 8)})
    assert "does not fit input 'input'" in error_of(path, shapes={"input": (1, 3, 8, 0)})


def test_a_damaged_tensor_that_nobody_needs_does_not_matter(tmp_path: Path) -> None:
    graph = read_onnx(saved(tmp_path, model_with([node("Relu")], weights=[DAMAGED])))
    assert [n.op for n in graph.nodes] == ["Relu"]


GOOD = small().SerializeToString()


@given(st.integers(0, len(GOOD) - 1))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_truncated_files(tmp_path: Path, length: int) -> None:
    outcome(tmp_path, GOOD[:length])


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_mutated_files(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    outcome(tmp_path, bytes(data))


@given(st.binary(max_size=200))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_bytes(tmp_path: Path, data: bytes) -> None:
    outcome(tmp_path, data)


def outcome(folder: Path, data: bytes) -> None:
    """Read a file: a graph, or one of our errors with a text of one line; else the test fails."""
    path = folder / "fuzz.onnx"
    path.write_bytes(data)
    try:
        graph = read_onnx(path)
    except ModelFileError as error:
        told_in_one_line = "\n" not in str(error)
    else:
        told_in_one_line = bool(hash_of(graph))
    assert told_in_one_line
