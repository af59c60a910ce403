"""ONNX models by onnxruntime on the CPU."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.onnx_layers import Cover, covers
from latfarm_agent.runtimes.onnx_wire import read_nodes
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.trace import middle_mean

_PROVIDER = "CPUExecutionProvider"
_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(uint16)": "uint16",
    "tensor(int32)": "int32",
    "tensor(uint32)": "uint32",
    "tensor(int64)": "int64",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}
_UNSUPPORTED = (
    "not_implemented",
    "not a registered",
    "no op registered",
    "ir version",
    "opset",
)
_ERRORS_ONLY = 3
_OPTIMISED_LIMIT_BYTES = 256 << 20
_PROFILE_WARMUP = 3


class OnnxRuntime:
    """onnxruntime with all graph optimisations; `threads` within an op, one op at a time."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._session: Any = None
        self._binding: Any = None

    def describe(self) -> Description:
        """One platform, fp32."""
        version = str(_import().__version__)
        short = ".".join(version.split(".")[:2])
        settings = {
            "threads": str(self._threads),
            "graph_optimization": "all",
            "execution": "sequential",
        }
        name = f"onnxruntime{short}-fp32-{self._threads}t"
        return Description(version, (PlatformSpec(name, "onnx", "fp32", settings),))

    def prepare(self, job: Job) -> Prepared:
        """Load the file by its path and bind noise to its inputs."""
        self._session = self._binding = None
        gc.collect()
        ort = _import()
        session = _session(ort, job.model_path, self._options(ort))
        binding = session.io_binding()
        for name, array in _noise(session.get_inputs()).items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        names = [output.name for output in session.get_outputs()]
        for name in names:
            binding.bind_output(name, "cpu")
        self._session, self._binding = session, binding
        return Prepared(
            cpu_clock="thread" if self._threads == 1 else "process", probe=matrix_probe()
        )

    def run(self) -> float | None:
        """One inference; inputs and outputs stay where they are."""
        if self._session is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise _failure(error, loading=False) from error
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Times of the kernels by onnxruntime's own trace, named after the nodes that they cover.

        A kernel's time is the mean of the middle half of its runs: the trace counts in whole
        microseconds, so that a median of short kernels would fall onto a grid.
        """
        self._session = self._binding = None
        ort = _import()
        options = self._options(ort)
        options.enable_profiling = True
        options.profile_file_prefix = str(job.scratch_dir / "trace")
        optimised = job.scratch_dir / "optimised.onnx"
        # The optimised file holds all weights again: not for models that would fill the disk.
        if job.model_path.stat().st_size <= _OPTIMISED_LIMIT_BYTES:
            options.optimized_model_filepath = str(optimised)
        session = _session(ort, job.model_path, options)
        feeds = _noise(session.get_inputs())
        try:
            for _ in range(_PROFILE_WARMUP + runs):
                session.run(None, feeds)
            trace = Path(session.end_profiling())
        except Exception as error:
            raise _failure(error, loading=False) from error
        finally:
            del session
        events = json.loads(trace.read_text())
        trace.unlink()
        found: list[Cover] = []
        nodes = []
        if optimised.exists():
            nodes = read_nodes(optimised)
            found = covers(read_nodes(job.model_path), nodes, feeds.keys())
            optimised.unlink()
        return _layers(events, [(node.name, node.op) for node in nodes], found)

    def _options(self, ort: Any) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = _ERRORS_ONLY
        return options


def _import() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"onnxruntime cannot be imported ({error}); "
            "install it with: pip install 'latfarm-agent[onnxruntime]'",
        ) from error
    return onnxruntime


def _session(ort: Any, path: Path, options: Any) -> Any:
    try:
        return ort.InferenceSession(str(path), options, providers=[_PROVIDER])
    except Exception as error:
        raise _failure(error, loading=True) from error


def _noise(inputs: Sequence[Any]) -> dict[str, Any]:
    """Deterministic inputs; see `input_noise`."""
    import numpy as np

    draw = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for item in inputs:
        if item.type not in _TYPES:
            raise RuntimeFailure("MODEL_INVALID", f"input {item.name!r} is a {item.type}")
        if any(not isinstance(size, int) or size < 0 for size in item.shape):
            raise RuntimeFailure(
                "MODEL_INVALID", f"input {item.name!r} has an open dimension: {list(item.shape)}"
            )
        made[item.name] = input_noise(draw, item.shape, _TYPES[item.type])
    return made


def _failure(error: Exception, *, loading: bool) -> RuntimeFailure:
    """The typed failure for one of onnxruntime's exceptions, its message cut to one line."""
    if isinstance(error, RuntimeFailure):
        return error
    message = " ".join(str(error).split())[:600]
    low = message.lower()
    kind = type(error).__name__
    code = "MODEL_INVALID" if loading else "MODEL_FAILED"
    if isinstance(error, MemoryError) or "bad_alloc" in low or "failed to allocate memory" in low:
        code = "OUT_OF_MEMORY"
    elif kind == "NotImplemented" or any(sign in low for sign in _UNSUPPORTED):
        code = "MODEL_UNSUPPORTED"
    elif kind == "InvalidArgument":
        code = "MODEL_INVALID"
    elif "external" in low and loading:
        message = f"the model keeps weights in another file, which is not accepted: {message}"
    return RuntimeFailure(code, message)


def _layers(
    events: Sequence[dict[str, Any]], nodes: Sequence[tuple[str, str]], found: Sequence[Cover]
) -> list[LayerTime]:
    """The trace's kernel events as one layer a kernel, in order of execution."""
    times: dict[str, list[float]] = {}
    told: dict[str, tuple[str, str, str]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        args = event["args"]
        index = str(args.get("node_index", name))
        times.setdefault(index, []).append(float(event["dur"]) / 1e3)
        told.setdefault(
            index,
            (name[: -len("_kernel_time")], str(args["op_name"]), str(args.get("provider", ""))),
        )
    ran = [told[index][:2] for index in times]
    by_order = [op for _, op in ran] == [op for _, op in nodes]
    by_name = {name: cover for (name, _), cover in zip(nodes, found) if name}
    layers: list[LayerTime] = []
    for position, (index, durations) in enumerate(times.items()):
        name, op, provider = told[index]
        cover = found[position] if by_order else by_name.get(name, Cover(name, op))
        latency_ms = middle_mean(durations[_PROFILE_WARMUP:])
        layers.append(LayerTime(cover.name, cover.op, latency_ms, provider))
    return layers
