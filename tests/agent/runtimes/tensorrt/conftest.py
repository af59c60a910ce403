"""The doubles of NVIDIA's libraries, which are compiled here, and ONNX models for TensorRT."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

DOUBLE = Path(__file__).parent / "double"


def compile_library(source: Path, target: Path, *flags: str) -> Path:
    """Compile a shared library from C; skips the test if there is no compiler."""
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
    """The double of the CUDA driver, under the file name that the loader looks for."""
    return compile_library(DOUBLE / "cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


@pytest.fixture(scope="class", name="gpu_host")
def _gpu_host(driver: Path) -> Iterator[pytest.MonkeyPatch]:
    """Workers that are started while this fixture is active find the driver's double."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(driver.parent))
        patch.setenv("LATFARM_TENSORRT_DOUBLE", "10.3")
        yield patch


class OnnxFile:
    """An ONNX file in the making: a chain of nodes from the input "x" to the output "y".

    `real` is the element type of the constants and of what the nodes compute.
    """

    def __init__(self, onnx: Any, real: int) -> None:
        self.onnx = onnx
        self.real = real
        self.in_type = onnx.TensorProto.FLOAT
        self.in_shape: list[int | str] = [1, 8, 16, 16]
        self.out_shape: list[int | str] = [1, 8, 16, 16]
        self.weights: list[Any] = []
        self.nodes: list[Any] = []

    def constant(
        self, name: str, values: Sequence[float], *shape: int, dtype: int | None = None
    ) -> str:
        kind = self.real if dtype is None else dtype
        self.weights.append(self.onnx.helper.make_tensor(name, kind, shape, values))
        return name

    def node(self, op: str, reads: list[str], makes: str, name: str, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(op, reads, [makes], name, **attributes))
        return makes

    def conv(self, reads: str, makes: str, name: str, weight: str = "") -> str:
        """A 3x3 convolution of 8 channels."""
        values = [((i * 37) % 101 - 50) / 500 for i in range(576)]
        weight = weight or self.constant(f"w_{name}", values, 8, 8, 3, 3)
        pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        return self.node("Conv", [reads, weight], makes, name, **pads)

    def write(self, path: Path, *, external: bool) -> Path:
        """Write the file; `external`: with one more weight that lies in another file."""
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        graph = helper.make_graph(
            self.nodes,
            "test",
            [helper.make_tensor_value_info("x", self.in_type, self.in_shape)],
            [helper.make_tensor_value_info("y", kinds.FLOAT, self.out_shape)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 13), helper.make_opsetid("elsewhere", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        if external:
            entry = model.graph.initializer.add(name="far", data_type=kinds.FLOAT, dims=[1])
            entry.data_location = kinds.EXTERNAL
            entry.external_data.add(key="location", value="../elsewhere.bin")
        path.write_bytes(model.SerializeToString())
        return path


def write_model(path: Path, kind: str = "conv") -> Path:
    """Write an ONNX file of some kind.

    "conv": a small network; "fp16" and "int8": the same as the controller builds it, with float
    inputs and outputs; "region": convolutions around a softmax; "unnamed": nodes without names;
    "external", "custom", "greedy", "open", "int" and "shape": what their names say.
    """
    onnx = pytest.importorskip("onnx")
    kinds = onnx.TensorProto
    file = OnnxFile(onnx, kinds.FLOAT16 if kind == "fp16" else kinds.FLOAT)
    if kind in ("conv", "fp16", "unnamed"):
        _convolutions(file, casts=kind == "fp16")
    elif kind == "int8":
        _integers(file)
    elif kind == "region":
        i0 = file.node("Identity", [file.conv("x", "c0", "conv0")], "i0", "identity0")
        file.conv(file.node("Softmax", [i0], "p0", "softmax0", axis=1), "y", "conv1")
    elif kind == "greedy":
        file.in_shape, file.out_shape = [1, 1], [65536, 16384]
        file.constant("sizes", [65536, 16384], 2, dtype=kinds.INT64)
        file.node("Expand", ["x", "sizes"], "y", "expand")
    elif kind == "open":
        file.in_shape = file.out_shape = ["batch", 4]
        file.node("Relu", ["x"], "y", "relu")
    elif kind == "int":
        file.in_type, file.in_shape, file.out_shape = kinds.INT64, [4], [4, 3]
        file.node("Gather", [file.constant("table", [0.5] * 6, 2, 3), "x"], "y", "gather")
    elif kind == "shape":
        file.in_type, file.in_shape, file.out_shape = kinds.INT64, [2], [2, 2]
        file.node("Reshape", [file.constant("table", [0.5] * 4, 4), "x"], "y", "reshape")
    else:
        file.node("NoSuchOp", ["x"], "y", "strange", domain="elsewhere")
    if kind == "unnamed":
        for made in file.nodes:
            made.name = ""
    return file.write(path, external=kind == "external")


def _convolutions(file: OnnxFile, *, casts: bool) -> None:
    """Two convolutions with a sum; `casts`: to half precision and back around them."""
    kinds = file.onnx.TensorProto
    x = file.node("Cast", ["x"], "h", "cast_in", to=file.real) if casts else "x"
    norm = [file.constant(name, [1.0] * 8, 8) for name in ("scale", "bias", "mean", "var")]
    c0 = file.conv(x, "c0", "conv0")
    b0 = file.node("BatchNormalization", [c0, *norm], "b0", "bn0")
    r0 = file.node("Relu", [b0], "r0", "relu0")
    a1 = file.node("Add", [file.conv(r0, "c1", "conv1"), r0], "a1", "add1")
    last = "s1" if casts else "y"
    file.node("Sigmoid", [a1], last, "sigmoid1")
    if casts:
        file.node("Cast", [last], "y", "cast_out", to=kinds.FLOAT)


def _integers(file: OnnxFile) -> None:
    """A quantised convolution with its activation, as QDQ."""
    int8 = file.onnx.TensorProto.INT8
    scale, zero = file.constant("s", [0.05]), file.constant("z", [0], dtype=int8)
    values = [(i * 37) % 101 - 50 for i in range(576)]
    raw = file.constant("w", values, 8, 8, 3, 3, dtype=int8)
    weight = file.node("DequantizeLinear", [raw, scale, zero], "wd", "w_dq")
    q0 = file.node("QuantizeLinear", ["x", scale, zero], "q0", "x_q")
    d0 = file.node("DequantizeLinear", [q0, scale, zero], "d0", "x_dq")
    r0 = file.node("Relu", [file.conv(d0, "c0", "conv0", weight)], "r0", "relu0")
    q1 = file.node("QuantizeLinear", [r0, scale, zero], "q1", "r_q")
    file.node("DequantizeLinear", [q1, scale, zero], "y", "r_dq")


@pytest.fixture
def write() -> Callable[..., Path]:
    """`write_model`."""
    return write_model
