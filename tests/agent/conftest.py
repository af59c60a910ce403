"""Fixtures of all tests of the agent, among them models that no tool of the project has written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.worker import keeper

BAD_RUNTIMES = Path(__file__).parent / "bench" / "bad_runtimes.py"


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Checks after the test that no new child process is left."""
    before = keeper.descendants(os.getpid())
    yield
    assert keeper.descendants(os.getpid()) <= before


@pytest.fixture
def bad_runtimes(tmp_path: Path) -> Path:
    """A folder from which workers can import `bad_runtimes`, outside of the tests' folder."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "bad_runtimes.py").write_text(BAD_RUNTIMES.read_text())
    return folder


def graph_json(
    nodes: Sequence[tuple[str, str, Sequence[str], Sequence[str]]],
    types: Mapping[str, Sequence[int]],
    weights: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = ("y",),
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """A graph as simulated boards read it: nodes as (name, op, inputs, outputs), input "x"."""
    return {
        "name": "test",
        "inputs": ["x"],
        "outputs": list(outputs),
        "nodes": [
            {
                "name": name,
                "op": op,
                "inputs": list(read),
                "outputs": list(made),
                "attrs": dict((attrs or {}).get(name, {})),
            }
            for name, op, read, made in nodes
        ],
        "weights": {
            name: {"dtype": "float32", "shape": list(shape)}
            for name, shape in (weights or {}).items()
        },
        "types": {
            name: {"dtype": "float32", "shape": list(shape)} for name, shape in types.items()
        },
    }


@pytest.fixture
def make_graph() -> Callable[..., dict[str, Any]]:
    """`graph_json`."""
    return graph_json


def write_conv_graph(path: Path, ops: Sequence[str] = ("Relu",), name: str = "conv") -> Path:
    """A graph with one convolution and element-wise ops behind it."""
    shape = [1, 8, 16, 16]
    nodes: list[tuple[str, str, Sequence[str], Sequence[str]]] = [
        (name, "Conv", ["x", "w"], ["t0"])
    ]
    nodes += [(f"{op}{i}", op, [f"t{i}"], [f"t{i + 1}"]) for i, op in enumerate(ops)]
    types = dict({f"t{i}": shape for i in range(len(ops) + 1)}, x=shape)
    graph = graph_json(nodes, types, {"w": [8, 8, 3, 3]}, outputs=[f"t{len(ops)}"])
    path.write_text(json.dumps(graph))
    return path


@pytest.fixture
def conv_graph() -> Callable[..., Path]:
    """`write_conv_graph`."""
    return write_conv_graph


def onnx_weight(helper: Any, kind: int, name: str, *shape: int) -> Any:
    """A tensor with values that repeat after 101 elements."""
    count = 1
    for size in shape:
        count *= size
    values = [((i * 37) % 101 - 50) / 500 for i in range(count)]
    return helper.make_tensor(name, kind, shape, values)


def conv_network(helper: Any, kind: int) -> tuple[list[Any], list[Any]]:
    """Nodes and weights of two convolutions, a batch normalisation, and element-wise ops."""
    weights = [onnx_weight(helper, kind, name, 8, 8, 3, 3) for name in ("w0", "w1")]
    ones = [1.0] * 8
    names = ("scale", "bias", "mean", "var")
    weights += [helper.make_tensor(name, kind, (8,), ones) for name in names]
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    normalised = ["c0", "scale", "bias", "mean", "var"]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "conv0", **pads),
        helper.make_node("BatchNormalization", normalised, ["b0"], "bn0"),
        helper.make_node("Relu", ["b0"], ["r0"], "relu0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "conv1", **pads),
        helper.make_node("Add", ["c1", "r0"], ["a1"], "add1"),
        helper.make_node("Sigmoid", ["a1"], ["y"], "sigmoid1"),
    ]
    return nodes, weights


def write_onnx(path: Path, kind: str = "conv") -> Path:
    """An ONNX file.

    "conv": a small network. "greedy": its output needs 4 GB. "open": its batch size is open.
    "custom": an unknown op. "future": a future opset. "int": its input is of integers.
    """
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    float32, int64 = kinds.FLOAT, kinds.INT64

    shape: list[int | str] = [1, 8, 16, 16]
    given, out, opset = shape, shape, 13
    in_type = float32
    nodes, weights = conv_network(helper, float32)
    if kind == "greedy":
        given, out, weights = [1, 1], [65536, 16384], []
        sizes = helper.make_tensor("sizes", int64, [2], [65536, 16384])
        weights = [sizes]
        nodes = [helper.make_node("Expand", ["x", "sizes"], ["y"], "expand")]
    elif kind == "open":
        given, out, weights = ["batch", 4], ["batch", 4], []
        nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    elif kind == "custom":
        weights = []
        nodes = [helper.make_node("NoSuchOp", ["x"], ["y"], "strange", domain="elsewhere")]
    elif kind == "future":
        weights, opset = [], 9999
        nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    elif kind == "int":
        in_type, given, out = int64, [4], [4, 3]
        weights = [onnx_weight(helper, float32, "table", 2, 3)]
        nodes = [helper.make_node("Gather", ["table", "x"], ["y"], "gather")]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", in_type, given)],
        [helper.make_tensor_value_info("y", float32, out)],
        weights,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def onnx_file() -> Callable[..., Path]:
    """`write_onnx`."""
    return write_onnx


def write_tflite(path: Path, kind: str = "add", dtype: str = "fp32") -> Path:
    """A TFLite file of one op: "add", "greedy" (its output needs 4 GB) or "custom" (unknown op)."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    flatbuffers = pytest.importorskip("flatbuffers")
    side = 32768 if kind == "greedy" else 256
    shapes = [[side, 1], [1, side], [side, side]]

    def tensor(index: int, shape: list[int]) -> Any:
        made = schema.TensorT()
        made.name, made.shape, made.buffer = f"t{index}".encode(), shape, 0
        made.type = schema.TensorType.FLOAT32 if dtype == "fp32" else schema.TensorType.INT8
        if dtype == "int8":
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [0.05], [0]
        return made

    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0, 1], [2]
    code = schema.OperatorCodeT()
    code.version = 2 if dtype == "int8" else 1
    if kind == "custom":
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
        code.customCode = b"NoSuchOp"
    else:
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
        operator.builtinOptionsType = schema.BuiltinOptions.AddOptions
        operator.builtinOptions = schema.AddOptionsT()
    graph = schema.SubGraphT()
    graph.tensors = [tensor(index, shape) for index, shape in enumerate(shapes)]
    graph.inputs, graph.outputs, graph.operators = [0, 1], [2], [operator]
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
    model.buffers = [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


@pytest.fixture
def tflite_file() -> Callable[..., Path]:
    """`write_tflite`."""
    return write_tflite
