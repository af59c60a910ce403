"""Engines that run a model file and give its outputs, each in a process of its own.

An engine that crashes or hangs ends its own process only, and `Engine.run` reports it. Inputs and
outputs are float32 or int64 arrays in the order of the graph's axes (NCHW).
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
"""The outputs of a model, in order."""
Feeds = Mapping[str, NDArray[Any]]
"""The inputs of a model by name, in order."""


@dataclass(frozen=True)
class Output:
    """An output of the graph.

    Attributes:
        name: the tensor's name.
        shape: its shape in the graph.
        layout: for each axis of the stored tensor the axis of the graph's tensor.
    """

    name: str
    shape: tuple[int, ...]
    layout: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """A model file to run.

    Attributes:
        model: the bytes of the file.
        feeds: the inputs by name, in the graph's order and with its axes.
        layouts: for each input, the axis of the graph's tensor of each axis of the stored one.
        outputs: the outputs.
    """

    model: bytes
    feeds: Feeds
    layouts: tuple[tuple[int, ...], ...]
    outputs: tuple[Output, ...]


Runner = Callable[[Task], Arrays]
"""Runs a task and gives its outputs."""

_MNN_WINOGRAD_LEVEL = 3
"""MNN's number of the hint that limits the tiles of Winograd convolutions."""


class EngineError(Exception):
    """The engine refused the model, crashed or took too long."""


def run_onnxruntime(task: Task) -> Arrays:
    """Run onnxruntime on one thread of the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(task.model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(None, dict(task.feeds))]


def run_openvino(task: Task) -> Arrays:
    """Run OpenVINO on one thread of the CPU, in float32."""
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(io.BytesIO(task.model)), "CPU", options)
    found = compiled([task.feeds[port.any_name] for port in compiled.inputs])
    return [np.array(found[port]) for port in compiled.outputs]


def run_litert(task: Task) -> Arrays:
    """Run LiteRT on one thread; inputs and outputs of integer models are scaled."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter: Any = Interpreter(model_content=task.model, num_threads=1)
    interpreter.allocate_tensors()
    given = zip(interpreter.get_input_details(), task.feeds.values(), task.layouts, strict=True)
    for detail, array, layout in given:
        interpreter.set_tensor(detail["index"], _stored(array.transpose(layout), detail))
    interpreter.invoke()
    return [
        _read(interpreter.get_tensor(detail["index"]), detail)
        .transpose(np.argsort(output.layout))
        .reshape(output.shape)
        for detail, output in zip(interpreter.get_output_details(), task.outputs, strict=True)
    ]


def run_ncnn(task: Task) -> Arrays:
    """Run ncnn in float32 on one thread; its blobs have no batch axis."""
    import ncnn

    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(io.BytesIO(task.model)) as archive,
    ):
        archive.extractall(folder)
        ids = _token_blobs(archive.read("model.param").decode())
        net = ncnn.Net()
        for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
            setattr(net.opt, name, False)
        net.opt.use_bf16_storage = net.opt.use_vulkan_compute = False
        net.opt.num_threads = 1
        for part, load in (("model.param", net.load_param), ("model.bin", net.load_model)):
            if load(str(Path(folder) / part)):
                raise EngineError(f"ncnn refused {part}")
    found = []
    with net.create_extractor() as extractor:
        for index, array in enumerate(task.feeds.values()):
            if extractor.input(f"in{index}", _blob(ncnn, array, f"in{index}" in ids)):
                raise EngineError(f"ncnn refused input {index}")
        for index, output in enumerate(task.outputs):
            code, blob = extractor.extract(f"out{index}")
            if code:
                raise EngineError(f"ncnn failed with {code} on output {index}")
            found.append(np.array(blob).reshape(output.shape))
    return found


def _token_blobs(param: str) -> set[str]:
    """The blobs that an embedding reads: only these contain integers in ncnn."""
    found: set[str] = set()
    for line in reversed(param.splitlines()[2:]):
        kind, _, bottoms, tops, *rest = line.split()
        reads = rest[: int(bottoms)]
        makes = rest[int(bottoms) : int(bottoms) + int(tops)]
        passed = kind in ("Split", "Reshape", "Flatten") and found.intersection(makes)
        if kind == "Embed" or passed:
            found.update(reads)
    return found


def _blob(ncnn: Any, array: NDArray[Any], whole: bool) -> Any:
    """A blob with a copy of the array; the array must live until the blob is cloned."""
    inner = array[0] if array.ndim > 1 else array
    data = np.ascontiguousarray(inner, np.int32 if whole else np.float32)
    return ncnn.Mat(data).clone()


def run_mnn(task: Task) -> Arrays:
    """Run MNN in high precision on one thread of the CPU.

    A hint limits Winograd convolutions to small tiles: the largest lose three digits in a deep
    network.
    """
    from MNN import expr, nn

    runtime = nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": 1},))
    runtime.set_hint(_MNN_WINOGRAD_LEVEL, 1)
    names = [output.name for output in task.outputs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mnn"
        path.write_bytes(task.model)
        module = nn.load_module_from_file(
            str(path), list(task.feeds), names, runtime_manager=runtime
        )
    fed, held = [], []
    for array in task.feeds.values():
        whole = array.dtype.kind in "iu"
        data = np.ascontiguousarray(array, np.int32 if whole else np.float32)
        held.append(data)
        kind = expr.int if whole else expr.float
        fed.append(expr.const(data, list(data.shape), expr.NCHW, kind))
    made = module.forward(fed)
    found = []
    for variable, output in zip(
        made if isinstance(made, list | tuple) else [made], task.outputs, strict=True
    ):
        if variable.data_format == expr.NC4HW4:
            variable = expr.convert(variable, expr.NCHW)
        found.append(np.array(variable.read()).reshape(output.shape))
    return found


ENGINES: Mapping[str, tuple[str, str, Runner]] = {
    "onnxruntime-fp32": ("onnx", "fp32", run_onnxruntime),
    "onnxruntime-fp16": ("onnx", "fp16", run_onnxruntime),
    "onnxruntime-int8": ("onnx", "int8", run_onnxruntime),
    "litert-fp32": ("tflite", "fp32", run_litert),
    "litert-int8": ("tflite", "int8", run_litert),
    "openvino-fp32": ("onnx", "fp32", run_openvino),
    "ncnn-fp32": ("ncnn", "fp32", run_ncnn),
    "mnn-fp32": ("mnn", "fp32", run_mnn),
}
"""Each engine's model format, element type and function that runs it."""


class Engine:
    """A process that runs models one after the other; a new one is started after a crash."""

    def __init__(self, name: str, timeout_s: float = 180.0) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Any = None

    def run(self, task: Task) -> Arrays:
        """The outputs of the task's model.

        Raises:
            EngineError: the engine refused the model, crashed or took too long; the message says
                which.
        """
        if self._process is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(self.name, theirs))
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(task)
            if not self._pipe.poll(self._timeout_s):
                self.close()
                raise EngineError(f"no answer within {self._timeout_s:.0f} s")
            kind, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(10)
            code = self._process.exitcode
            self.close()
            raise EngineError(f"the engine's process ended with code {code}") from error
        if kind == "error":
            raise EngineError(answer)
        made: Arrays = answer
        return made

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = None


def _serve(name: str, pipe: Any) -> None:
    """Run the tasks that come through the pipe, in the engine's own process."""
    runner = ENGINES[name][2]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # MNN writes a greeting to standard output
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", runner(task)))
        except Exception as error:
            pipe.send(("error", " ".join(f"{type(error).__name__}: {error}".split())[:400]))


def _stored(data: NDArray[Any], detail: Mapping[str, Any]) -> NDArray[Any]:
    """An input with the element type and the scale that the model needs."""
    if detail["dtype"] is np.int8:
        scale, zero = detail["quantization"]
        data = np.clip(np.rint(data / scale) + zero, -128, 127)
    return np.ascontiguousarray(data.astype(detail["dtype"]))


def _read(array: NDArray[Any], detail: Mapping[str, Any]) -> NDArray[Any]:
    """An output as real numbers."""
    if detail["dtype"] is not np.int8:
        return array
    scale, zero = detail["quantization"]
    real: NDArray[Any] = (array.astype(np.float32) - zero) * scale
    return real
