"""Runs ncnn models, and compares their results with those of onnxruntime."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from latfarm_controller.builders.ncnn.build import build_ncnn
from latfarm_controller.builders.ncnn.file import BIN_NAME, PARAM_NAME
from latfarm_controller.builders.noise import inputs
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
Make = Callable[[GraphBuilder], str]
_HALF_FLOATS = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
)

# The shared small graphs that ncnn cannot express, and the pattern of each error message.
REFUSED = {
    "batch-norm-rows": r"\(BatchNormalization\): a batch of 3",
    "resize-linear": r"\(Resize\): linear interpolation by asymmetric",
}


def small(name: str, make: Make) -> Graph:
    b = GraphBuilder(name)
    return b.build([make(b)])


def reference(graph: Graph, weights: Mapping[str, NDArray[Any]] | None = None) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = build_onnx(graph, "fp32", weights)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(made) for made in session.run(None, inputs(graph, 1))]


def lines_of(model: bytes) -> list[list[str]]:
    """Return the layers in the model's `.param` file, each as a list of words."""
    text = zipfile.ZipFile(BytesIO(model)).read(PARAM_NAME).decode()
    return [line.split() for line in text.splitlines()[2:]]


def blobs_of(line: list[str]) -> tuple[list[str], list[str]]:
    bottoms, tops = int(line[2]), int(line[3])
    return line[4 : 4 + bottoms], line[4 + bottoms : 4 + bottoms + tops]


def token_ids(model: bytes) -> set[str]:
    """Return the blobs that reach an Embed layer.

    A blob reaches it directly, or through Split, Reshape and Flatten layers.
    """
    found: set[str] = set()
    for line in reversed(lines_of(model)):
        bottoms, tops = blobs_of(line)
        if line[0] == "Embed" or (line[0] in ("Split", "Reshape", "Flatten") and found & set(tops)):
            found |= set(bottoms)
    return found


def run(model: bytes, graph: Graph, folder: Path) -> Arrays:
    """Run a model in ncnn on one thread, without half floats.

    Returns all outputs for `inputs(graph, 1)`.
    """
    import ncnn

    zipfile.ZipFile(BytesIO(model)).extractall(folder)
    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_vulkan_compute = False
    for option in _HALF_FLOATS:
        setattr(net.opt, option, False)
    assert net.load_param(str(folder / PARAM_NAME)) == 0
    assert net.load_model(str(folder / BIN_NAME)) == 0
    extractor = net.create_extractor()
    ids = token_ids(model)
    heads = [line for line in lines_of(model) if line[0] == "Input"]
    kept = []
    for head, data in zip(heads, inputs(graph, 1).values(), strict=True):
        sizes = dict(param.split("=") for param in head[5:])
        dims = [int(sizes[key]) for key in ("2", "11", "1", "0") if key in sizes]
        kind = np.int32 if head[1] in ids else np.float32
        # The array must live until it is cloned; only the clone has ncnn's alignment.
        array = np.ascontiguousarray(data.reshape(dims), kind)
        kept.append(ncnn.Mat(array).clone())
        assert extractor.input(head[1], kept[-1]) == 0
    found = []
    for index, tensor in enumerate(graph.outputs):
        code, made = extractor.extract(f"out{index}")
        assert code == 0
        found.append(np.array(made).reshape(graph.type_of(tensor).shape))
    return found


def worst(expected: Arrays, found: Arrays) -> float:
    """Return the largest error of all outputs.

    The error of an output is divided by the largest absolute value that is expected in it.
    """
    return max(
        float(np.abs(e.astype(np.float64) - f).max() / max(np.abs(e).max(), 1e-9))
        for e, f in zip(expected, found, strict=True)
    )


def agrees(graph: Graph, folder: Path, limit: float = 1e-5) -> bytes:
    model = build_ncnn(graph)
    assert worst(reference(graph), run(model, graph, folder)) < limit
    return model


def image(b: GraphBuilder) -> str:
    return b.input((1, 8, 13, 11))


def gate(b: GraphBuilder, x: str) -> str:
    return b.mul(x, b.tanh(b.op("Softplus", [x])))


def number(b: GraphBuilder, value: float) -> str:
    return b.weight((), values=(value,))


def ints(b: GraphBuilder, *values: int) -> str:
    return b.weight((len(values),), "int64", values)


def resized(scale: float, **attrs: str) -> Make:
    return lambda b: b.op(
        "Resize", [image(b), "", b.weight((4,), values=(1, 1, scale, scale))], attrs
    )
