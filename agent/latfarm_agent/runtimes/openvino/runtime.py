"""ONNX models by OpenVINO on its CPU, GPU and NPU devices.

OpenVINO itself returns the graph that a device really runs (`get_runtime_model`). Its nodes say
which layers of the model they came from. The devices HETERO and AUTO are never used: a model runs
on its device as a whole, or it is refused.
"""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any, ClassVar, Iterator, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.onnx.wire import read_nodes
from latfarm_agent.runtimes.openvino.inference import infer, kernel_times
from latfarm_agent.runtimes.openvino.layers import ExecNode, layer_times
from latfarm_agent.runtimes.probe import matrix_probe

_UNSUPPORTED = ("not supported", "unsupported", "no conversion rule", "not implemented")
_DTYPES = {"CPU": ("fp32", "int8"), "GPU": ("fp32", "fp16", "int8"), "NPU": ("fp16", "int8")}
# The floating-point type that a device computes with, where the model does not use integers.
_HINTS = {
    "CPU": {"fp32": "f32", "int8": "f32"},
    "GPU": {"fp32": "f32", "fp16": "f16", "int8": "f16"},
    "NPU": {"fp16": "f16", "int8": "f16"},
}
# Properties of a device that distinguish it from others of its kind.
_IDENTITY = ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "NPU_DRIVER_VERSION")
_CACHE_LIMIT_BYTES = 1 << 30
"""Size of the cache above which its oldest files are removed; our choice."""


class OpenVinoRuntime:
    """OpenVINO with one stream, which runs one inference at a time.

    Args:
        threads: threads of the CPU device.
        properties: more of OpenVINO's own properties by the kind of device, for example
            {"GPU": {"GPU_QUEUE_THROTTLE": "LOW"}}.
        cache_dir: folder in which accelerators keep compiled models; empty: none.
    """

    wants_cache_dir: ClassVar[bool] = True

    def __init__(
        self,
        threads: int = 1,
        properties: Mapping[str, Mapping[str, Any]] | None = None,
        cache_dir: str = "",
    ) -> None:
        self._threads = threads
        self._properties = _checked(properties or {})
        self._cache_dir = cache_dir
        self._request: Any = None

    def describe(self) -> Description:
        """Offer a platform for each device and element type; int8 platforms read QDQ models."""
        ov = _import()
        version = str(ov.__version__).split("-", maxsplit=1)[0]
        short = ".".join(version.split(".")[:2])
        core = ov.Core()
        platforms = []
        for device in core.available_devices:
            kind = device.split(".")[0]
            for dtype in _DTYPES.get(kind, ()):
                settings = {"device": device, "streams": "1", "precision": _HINTS[kind][dtype]}
                if self._properties.get(kind):
                    settings["properties"] = json.dumps(self._properties[kind], sort_keys=True)
                name = f"openvino{short}-{dtype}-{self._threads}t"
                if kind == "CPU":
                    settings["threads"] = str(self._threads)
                else:
                    settings.update(_identity(core, device))
                    name = f"openvino{short}-{device.lower().replace('.', '')}-{dtype}"
                platforms.append(PlatformSpec(name, "onnx", dtype, settings))
        return Description(version, tuple(platforms))

    def prepare(self, job: Job) -> Prepared:
        """Compile the file for its device and fill the inputs with noise."""
        self._request = None
        gc.collect()
        compiled, compile_ms = self._compile(job, profiling=False)
        self._request = compiled.create_infer_request()
        self._fill(self._request, compiled)
        device = _device(job.settings)
        clock, conditions = "none", {}
        if device.startswith("CPU"):
            clock = "thread" if self._threads == 1 else "process"
        else:
            ran_on = compiled.get_property("EXECUTION_DEVICES")
            names = [ran_on] if isinstance(ran_on, str) else [str(name) for name in ran_on]
            if any(not name.startswith(device.split(".")[0]) for name in names):
                raise RuntimeFailure(
                    "MODEL_UNSUPPORTED", f"{device} leaves the model to {', '.join(names)}"
                )
            conditions["ran_on"] = ", ".join(names)
        return Prepared(
            compile_ms=compile_ms, cpu_clock=clock, probe=matrix_probe(), conditions=conditions
        )

    def run(self) -> float | None:
        """Run one inference; inputs and outputs stay where they are."""
        infer(self._request, _while_running)
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the device's kernels, named after the nodes that they cover.

        Nodes that the device folded into others, or never runs, have no row. `device` is the
        device and the implementation that it chose.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE if the device does not say what it runs.
        """
        self._request = None
        compiled, _ = self._compile(job, profiling=True)
        request = compiled.create_infer_request()
        self._fill(request, compiled)
        device = _device(job.settings)
        times_ms = kernel_times(
            request, runs, _told_times, _while_running, averages=device.startswith("CPU")
        )
        if not times_ms:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", f"{device} reports no times of its kernels")
        try:
            ops = compiled.get_runtime_model().get_ordered_ops()
        except Exception as error:
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE", f"{device} does not report what it runs: {error}"
            ) from error
        inputs = {str(port.any_name) for port in compiled.inputs}
        graph = [_exec_node(op) for op in ops]
        return layer_times(graph, read_nodes(job.model_path), times_ms, inputs, device)

    def _compile(self, job: Job, *, profiling: bool) -> tuple[Any, float]:
        """Compile the model; return it with the milliseconds that compiling took."""
        ov = _import()
        device = _device(job.settings)
        kind = device.split(".")[0]
        options: dict[str, Any] = {
            "PERF_COUNT": profiling,
            "INFERENCE_PRECISION_HINT": _HINTS[kind].get(job.dtype, "f32"),
        }
        if kind == "CPU":
            options.update(INFERENCE_NUM_THREADS=self._threads, ENABLE_CPU_PINNING=False)
        elif self._cache_dir:
            _trim(Path(self._cache_dir))
            options["CACHE_DIR"] = self._cache_dir
        if kind == "NPU":
            options["PERFORMANCE_HINT"] = "LATENCY"
        else:
            options["NUM_STREAMS"] = 1
        options.update(self._properties.get(kind, {}))
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
        begun = time.perf_counter()
        try:
            compiled = core.compile_model(model, device, options)
        except Exception as error:
            raise _failure(error, loading=True) from error
        return compiled, (time.perf_counter() - begun) * 1e3

    def _fill(self, request: Any, compiled: Any) -> None:
        """Fill the inputs with the same random values each time; see `input_noise`."""
        import numpy as np

        ov = _import()
        draw = np.random.default_rng(0)
        for index, port in enumerate(compiled.inputs):
            array = input_noise(draw, tuple(port.shape), port.element_type.to_dtype())
            request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(array)))


def _import() -> Any:
    try:
        import openvino

        openvino.Core  # noqa: B018 - versions before 2023 do not have it in this module
    except (ImportError, AttributeError) as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"openvino cannot be imported ({error}); "
            "install it with: pip install 'latfarm-agent[openvino]'",
        ) from error
    return openvino


def _checked(properties: Any) -> dict[str, dict[str, Any]]:
    wrong = not isinstance(properties, dict)
    for kind, values in properties.items() if not wrong else ():
        wrong = wrong or kind not in _DTYPES or not isinstance(values, dict)
    if wrong:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"the openvino runtime's option properties must be an object of {', '.join(_DTYPES)}, "
            "each an object of OpenVINO's properties",
        )
    return {kind: dict(values) for kind, values in properties.items()}


def _identity(core: Any, device: str) -> dict[str, str]:
    found = {}
    offered = {str(name) for name in core.get_property(device, "SUPPORTED_PROPERTIES")}
    for name in _IDENTITY:
        if name in offered:
            found[name.lower()] = str(core.get_property(device, name))
    return found


def _trim(folder: Path) -> None:
    """Make the folder of a cache, and remove its oldest files if it exceeds the limit."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(
        ((path.stat(), path) for path in folder.rglob("*") if path.is_file()),
        key=lambda pair: pair[0].st_mtime,
    )
    held_bytes = sum(stat.st_size for stat, _ in files)
    for stat, path in files:
        if held_bytes <= _CACHE_LIMIT_BYTES:
            return
        path.unlink()
        held_bytes -= stat.st_size


def _device(settings: Mapping[str, str]) -> str:
    return settings.get("device", "CPU")


def _told_times(request: Any) -> Iterator[tuple[str, float]]:
    """Yield the name of each node that runs, with its time in milliseconds.

    OpenVINO counts whole microseconds and reports a node whose mean is below one as not run. Such
    a node still names its implementation, unlike a node that was fused into another one.
    """
    entries = request.profiling_info
    if all("NOT_RUN" in str(entry.status) for entry in entries):
        return
    for entry in entries:
        kind = str(getattr(entry, "exec_type", "")) or "undef"
        if "NOT_RUN" not in str(entry.status) or not kind.startswith(("undef", "unknown")):
            yield str(entry.node_name), entry.real_time.total_seconds() * 1e3


def _exec_node(op: Any) -> ExecNode:
    info = op.get_rt_info()

    def told(key: str) -> str:
        if key not in info:
            return ""
        value = info[key]
        return str(value.astype(str) if hasattr(value, "astype") else value)

    return ExecNode(
        name=str(op.get_friendly_name()),
        kind=told("layerType") or str(op.get_type_name()),
        primitive=told("primitiveType"),
        layers=tuple(told("originalLayersNames").split(",")),
        reads=tuple(str(value.get_node().get_friendly_name()) for value in op.input_values()),
    )


def _while_running(error: Exception) -> RuntimeFailure:
    return _failure(error, loading=False)


def _failure(error: Exception, *, loading: bool) -> RuntimeFailure:
    """Turn an exception of OpenVINO into a typed failure with a message of one line."""
    message = " ".join(str(error).split())[:600]
    low = message.lower()
    code = "MODEL_INVALID" if loading else "MODEL_FAILED"
    if isinstance(error, MemoryError) or "bad_alloc" in low or "alloc" in low:
        code = "OUT_OF_MEMORY"
    elif any(sign in low for sign in _UNSUPPORTED):
        code = "MODEL_UNSUPPORTED"
    return RuntimeFailure(code, message)
