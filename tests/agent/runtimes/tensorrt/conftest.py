"""The doubles of NVIDIA's libraries, compiled here, and models for TensorRT to parse."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

DOUBLE = Path(__file__).parent / "double"


def compile_library(source: Path, target: Path, *flags: str) -> Path:
    """A shared library from C; skips the test without a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not here to compile the doubles")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
    subprocess.run([*command, "-o", str(target), str(source), "-lpthread"], check=True)
    return target


@pytest.fixture(scope="session", name="compile_library")
def _compile_library() -> Callable[..., Path]:
    """`compile_library`."""
    return compile_library


@pytest.fixture(scope="session", name="driver")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA driver's double, under the name that the loader looks for."""
    return compile_library(DOUBLE / "cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


@pytest.fixture(scope="class", name="gpu_host")
def _gpu_host(driver: Path) -> Iterator[pytest.MonkeyPatch]:
    """Workers that are started now find the driver's double."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(driver.parent))
        patch.setenv("LATFARM_TENSORRT_DOUBLE", "10.3")
        yield patch


def write_model(path: Path, kind: str = "conv") -> Path:
    """An ONNX file.

    "conv": a small network; "fp16" and "int8": the same as the controller builds it, with float
    inputs and outputs; "region": convolutions around a softmax; "unnamed": nodes without names;
    "external", "custom", "greedy", "open", "int" and "shape": what their names say.
    """
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    real = kinds.FLOAT16 if kind == "fp16" else kinds.FLOAT
    shape: list[int | str] = [1, 8, 16, 16]
    given, out, in_type = shape, shape, kinds.FLOAT
    weights: list[Any] = []
    nodes: list[Any] = []

    def constant(name: str, values: Sequence[float], *shape: int, dtype: int = real) -> str:
        weights.append(helper.make_tensor(name, dtype, shape, values))
        return name

    def node(op: str, reads: list[str], makes: str, name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, reads, [makes], name, **attributes))
        return makes

    def conv(reads: str, makes: str, name: str, weight: str = "") -> str:
        values = [((i * 37) % 101 - 50) / 500 for i in range(576)]
        weight = weight or constant(f"w_{name}", values, 8, 8, 3, 3)
        pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        return node("Conv", [reads, weight], makes, name, **pads)

    if kind in ("conv", "fp16", "unnamed"):
        x = node("Cast", ["x"], "h", "cast_in", to=real) if kind == "fp16" else "x"
        norm = [constant(n, [1.0] * 8, 8) for n in ("scale", "bias", "mean", "var")]
        b0 = node("BatchNormalization", [conv(x, "c0", "conv0"), *norm], "b0", "bn0")
        r0 = node("Relu", [b0], "r0", "relu0")
        a1 = node("Add", [conv(r0, "c1", "conv1"), r0], "a1", "add1")
        last = "s1" if kind == "fp16" else "y"
        node("Sigmoid", [a1], last, "sigmoid1")
        if kind == "fp16":
            node("Cast", [last], "y", "cast_out", to=kinds.FLOAT)
    elif kind == "int8":
        scale, zero = constant("s", [0.05]), constant("z", [0], dtype=kinds.INT8)
        values = [(i * 37) % 101 - 50 for i in range(576)]
        raw = constant("w", values, 8, 8, 3, 3, dtype=kinds.INT8)
        weight = node("DequantizeLinear", [raw, scale, zero], "wd", "w_dq")
        q0 = node("QuantizeLinear", ["x", scale, zero], "q0", "x_q")
        d0 = node("DequantizeLinear", [q0, scale, zero], "d0", "x_dq")
        r0 = node("Relu", [conv(d0, "c0", "conv0", weight)], "r0", "relu0")
        q1 = node("QuantizeLinear", [r0, scale, zero], "q1", "r_q")
        node("DequantizeLinear", [q1, scale, zero], "y", "r_dq")
    elif kind == "region":
        i0 = node("Identity", [conv("x", "c0", "conv0")], "i0", "identity0")
        conv(node("Softmax", [i0], "p0", "softmax0", axis=1), "y", "conv1")
    elif kind == "greedy":
        given, out = [1, 1], [65536, 16384]
        constant("sizes", [65536, 16384], 2, dtype=kinds.INT64)
        node("Expand", ["x", "sizes"], "y", "expand")
    elif kind == "open":
        given = out = ["batch", 4]
        node("Relu", ["x"], "y", "relu")
    elif kind == "int":
        in_type, given, out = kinds.INT64, [4], [4, 3]
        node("Gather", [constant("table", [0.5] * 6, 2, 3), "x"], "y", "gather")
    elif kind == "shape":
        in_type, given, out = kinds.INT64, [2], [2, 2]
        node("Reshape", [constant("table", [0.5] * 4, 4), "x"], "y", "reshape")
    else:
        nodes.append(helper.make_node("NoSuchOp", ["x"], ["y"], "strange", domain="elsewhere"))
    if kind == "unnamed":
        for made in nodes:
            made.name = ""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", in_type, given)],
        [helper.make_tensor_value_info("y", kinds.FLOAT, out)],
        weights,
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    if kind == "external":
        entry = model.graph.initializer.add(name="far", data_type=kinds.FLOAT, dims=[1])
        entry.data_location = kinds.EXTERNAL
        entry.external_data.add(key="location", value="../elsewhere.bin")
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def write() -> Callable[..., Path]:
    """`write_model`."""
    return write_model
