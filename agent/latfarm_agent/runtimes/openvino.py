"""ONNX models by OpenVINO on its CPU, GPU and NPU devices.

The graph that a device really runs comes from OpenVINO itself (`get_runtime_model`): its nodes say
which layers of the model they came from, and how long they took.
"""

from __future__ import annotations

import gc
from typing import Any, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.onnx_layers import covers
from latfarm_agent.runtimes.onnx_wire import WireNode, read_nodes
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.trace import middle_mean

_PROFILE_WARMUP = 3
_UNSUPPORTED = ("not supported", "unsupported", "no conversion rule", "not implemented")
_DTYPES = {"CPU": ("fp32", "int8"), "GPU": ("fp32", "fp16", "int8"), "NPU": ("fp16", "int8")}
_HINTS = {"fp32": "f32", "fp16": "f16", "int8": "f32"}
# Kinds of a runtime model's nodes that are no work of the model.
_PASSIVE = frozenset({"Const", "Constant", "Parameter", "Input", "Result", "Output"})


class OpenVinoRuntime:
    """OpenVINO with one stream; `threads` of the CPU device compute one inference at a time."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._request: Any = None

    def describe(self) -> Description:
        """A platform for each device and element type; int8 reads QDQ models."""
        ov = _import()
        version = str(ov.__version__).split("-", maxsplit=1)[0]
        short = ".".join(version.split(".")[:2])
        platforms = []
        for device in _devices(ov):
            kind = device.split(".")[0]
            for dtype in _DTYPES[kind]:
                settings = {"device": device, "streams": "1"}
                name = f"openvino{short}-{dtype}"
                if kind == "CPU":
                    settings["threads"] = str(self._threads)
                    name += f"-{self._threads}t"
                else:
                    name += "-" + device.lower().replace(".", "")
                platforms.append(PlatformSpec(name, "onnx", dtype, settings))
        return Description(version, tuple(platforms))

    def prepare(self, job: Job) -> Prepared:
        """Compile the file for its device and fill the inputs with noise."""
        self._request = None
        gc.collect()
        compiled = self._compile(job, profiling=False)
        self._request = compiled.create_infer_request()
        self._fill(self._request, compiled)
        clock = "none"
        if _device(job.settings).startswith("CPU"):
            clock = "thread" if self._threads == 1 else "process"
        return Prepared(cpu_clock=clock, probe=matrix_probe())

    def run(self) -> float | None:
        """One inference; inputs and outputs stay where they are."""
        if self._request is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        try:
            self._request.infer()
        except Exception as error:
            raise _failure(error, loading=False) from error
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Times of the device's kernels, named after the nodes of the model that they cover.

        Nodes that the device folded into others, or never runs, have no row. `device` is the
        device and the implementation that it chose.
        """
        self._request = None
        compiled = self._compile(job, profiling=True)
        request = compiled.create_infer_request()
        self._fill(request, compiled)
        times: dict[str, list[float]] = {}
        try:
            for turn in range(_PROFILE_WARMUP + runs):
                request.infer()
                if turn < _PROFILE_WARMUP:
                    continue
                for entry in request.profiling_info:
                    if "NOT_RUN" not in str(entry.status):
                        spent_ms = entry.real_time.total_seconds() * 1e3
                        times.setdefault(str(entry.node_name), []).append(spent_ms)
        except Exception as error:
            raise _failure(error, loading=False) from error
        nodes = read_nodes(job.model_path)
        ops = compiled.get_runtime_model().get_ordered_ops()
        ran = [op for op in ops if _name(op) in times]
        wired = _wired(ops, nodes, times)
        inputs = {str(port.any_name) for port in compiled.inputs}
        found = covers(nodes, wired, inputs)
        device = _device(job.settings)
        return [
            LayerTime(
                cover.name,
                cover.op,
                middle_mean(times[_name(op)]),
                f"{device} {_told(op, 'primitiveType')}".strip(),
            )
            for op, cover in zip(ran, found)
        ]

    def _compile(self, job: Job, *, profiling: bool) -> Any:
        ov = _import()
        device = _device(job.settings)
        options: dict[str, Any] = {
            "PERF_COUNT": profiling,
            "INFERENCE_PRECISION_HINT": _HINTS.get(job.dtype, "f32"),
        }
        if device.startswith("CPU"):
            options.update(INFERENCE_NUM_THREADS=self._threads, ENABLE_CPU_PINNING=False)
        if not device.startswith("NPU"):
            options["NUM_STREAMS"] = 1
        core = ov.Core()
        try:
            model = core.read_model(str(job.model_path))
        except Exception as error:
            raise _failure(error, loading=True) from error
        for port in model.inputs:
            if port.partial_shape.is_dynamic:
                raise RuntimeFailure(
                    "MODEL_INVALID",
                    f"input {port.any_name!r} has an open dimension: {port.partial_shape}",
                )
        try:
            return core.compile_model(model, device, options)
        except Exception as error:
            raise _failure(error, loading=True) from error

    def _fill(self, request: Any, compiled: Any) -> None:
        """Deterministic inputs; see `input_noise`."""
        import numpy as np

        ov = _import()
        draw = np.random.default_rng(0)
        for index, port in enumerate(compiled.inputs):
            array = input_noise(draw, tuple(port.shape), port.element_type.to_dtype())
            request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(array)))


def _import() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"openvino cannot be imported ({error}); "
            "install it with: pip install 'latfarm-agent[openvino]'",
        ) from error
    return openvino


def _devices(ov: Any) -> list[str]:
    return [name for name in ov.Core().available_devices if name.split(".")[0] in _DTYPES]


def _device(settings: Mapping[str, str]) -> str:
    return settings.get("device", "CPU")


def _name(op: Any) -> str:
    return str(op.get_friendly_name())


def _told(op: Any, key: str) -> str:
    """An entry of a node's runtime information, empty where there is none."""
    info = op.get_rt_info()
    if key not in info:
        return ""
    value = info[key]
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _wired(
    ops: Sequence[Any], nodes: Sequence[WireNode], times: Mapping[str, object]
) -> list[WireNode]:
    """The kernels that ran, as nodes between tensors of the model.

    A kernel makes what the last of the layers that it names makes; names of layers that OpenVINO
    rewrote on the way (a convolution with its batch-norm folded) are unknown, but the last one of a
    kernel is not.
    """
    places: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in (node.name, *node.outputs):
            if name:
                places.setdefault(name, index)
    made: dict[str, str] = {}
    wired = []
    for op in ops:
        name = _name(op)
        kind = _told(op, "layerType") or str(op.get_type_name())
        sources = [_name(value.get_node()) for value in op.input_values()]
        reads = tuple(made.get(source, source) for source in sources)
        known = [
            places[part] for part in _told(op, "originalLayersNames").split(",") if part in places
        ]
        if known:
            made[name] = nodes[max(known)].outputs[0]
        elif reads:
            made[name] = reads[0]  # a copy into another layout
        if kind in _PASSIVE and not known:
            made[name] = name
        if name in times:
            outputs = (made[name],) if known else (name,)
            wired.append(WireNode(name, kind, reads, outputs))
    return wired


def _failure(error: Exception, *, loading: bool) -> RuntimeFailure:
    """The typed failure for one of OpenVINO's exceptions, its message cut to one line."""
    message = " ".join(str(error).split())[:600]
    low = message.lower()
    code = "MODEL_INVALID" if loading else "MODEL_FAILED"
    if isinstance(error, MemoryError) or "bad_alloc" in low or "alloc" in low:
        code = "OUT_OF_MEMORY"
    elif any(sign in low for sign in _UNSUPPORTED):
        code = "MODEL_UNSUPPORTED"
    return RuntimeFailure(code, message)
