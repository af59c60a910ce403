"""ONNX models by onnxruntime, on the CPU and on every other execution provider that is present.

The CPU runs fp32, and int8 as QDQ models. It does not offer fp16: the CPU provider has few float16
kernels, puts Casts to float32 around all other nodes, and is slower than with the float32 model.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.onnx.covers import Cover, covers
from latfarm_agent.runtimes.onnx.wire import read_nodes
from latfarm_agent.runtimes.onnxruntime import providers as onnx_providers
from latfarm_agent.runtimes.onnxruntime.providers import ProviderTarget
from latfarm_agent.runtimes.onnxruntime.trace import (
    CPU,
    TracedKernel,
    compiled_covers,
    placement,
    read_kernels,
    read_places,
)
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.trace import middle_mean

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
    "fallback to the cpu ep has been explicitly disabled",
    "ir version",
    "opset",
)
_ERRORS_ONLY = 3  # log_severity_level of onnxruntime
_OPTIMISED_LIMIT_BYTES = 1 << 30
"""Size of the largest model whose optimised form is saved; our choice, to spare the disk."""
_SPARE_DISK = 4
"""The optimised form is saved only if the disk has this many times the model's size free."""
_PROFILE_WARMUP = 3
"""Runs before a profile whose times are not counted."""
# Providers that launch kernels and do not wait: the host's clock says nothing about their time.
_ASYNCHRONOUS = (
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "ROCMExecutionProvider",
    "TensorrtExecutionProvider",
)


class OnnxRuntime:
    """onnxruntime with all graph optimisations, which executes one op at a time.

    Args:
        threads: threads that compute one op.
        providers: entries as `onnxruntime.providers` describes them; a provider that loads without
            options needs no entry.
        cache_dir: folder for the timing cache of TensorRT; empty: none is kept.
    """

    wants_cache_dir: ClassVar[bool] = True
    _found: ClassVar[dict[str, tuple[ProviderTarget, ...]]] = {}

    def __init__(
        self, threads: int = 1, providers: Sequence[Any] = (), cache_dir: str = ""
    ) -> None:
        self._threads = threads
        self._chosen = onnx_providers.configured(providers)
        self._cache_dir = cache_dir
        self._session: Any = None
        self._binding: Any = None
        self._synchronise = False

    def describe(self) -> Description:
        """Offer fp32 and int8 on the CPU, and the platforms of each other provider."""
        ort = _import()
        version = str(ort.__version__)
        short = ".".join(version.split(".")[:2])
        common = {
            "threads": str(self._threads),
            "graph_optimization": "all",
            "execution": "sequential",
        }
        platforms = [
            PlatformSpec(
                f"onnxruntime{short}-{dtype}-{self._threads}t", "onnx", dtype, dict(common)
            )
            for dtype in ("fp32", "int8")
        ]
        for target in self._targets():
            tail = f"-{self._threads}t" if target.on_cpu else ""
            platforms += [
                PlatformSpec(
                    f"onnxruntime{short}-{target.label}-{dtype}{tail}",
                    "onnx",
                    dtype,
                    dict(common, **target.settings),
                )
                for dtype in target.dtypes
            ]
        return Description(version, tuple(platforms))

    def prepare(self, job: Job) -> Prepared:
        """Load the file and bind noise to its inputs, in the memory in which the provider computes.

        Where the provider compiles, `compile_ms` is the whole time of making the session, because
        onnxruntime does not separate the two. The conditions say how many nodes the CPU executes.
        """
        self._session = self._binding = None
        gc.collect()
        ort = _import()
        target = self._target(job)
        begun = time.perf_counter()
        session = self._open(ort, job, self._options(ort), target)
        spent_ms = (time.perf_counter() - begun) * 1e3
        memory, device = "cpu", 0
        conditions: dict[str, str] = {}
        if target is not None:
            memory, device = target.memory, int(target.options.get("device_id", "0"))
            wanted = (target.provider, *target.helpers)
            conditions = {"provider": target.provider, **placement(read_places(session), wanted)}
        binding = session.io_binding()
        try:
            for name, array in _noise(session.get_inputs()).items():
                value = ort.OrtValue.ortvalue_from_numpy(array, memory, device)
                binding.bind_ortvalue_input(name, value)
            for output in session.get_outputs():
                binding.bind_output(output.name, memory, device)
        except Exception as error:
            raise _failure(error, loading=False) from error
        self._session, self._binding = session, binding
        self._synchronise = memory != "cpu"
        clock = "none"
        if target is None or target.on_cpu:
            clock = "thread" if self._threads == 1 and target is None else "process"
        return Prepared(
            compile_ms=spent_ms if target is not None and target.compiles else 0.0,
            cpu_clock=clock,
            probe=matrix_probe(),
            conditions=conditions,
        )

    def run(self) -> float | None:
        """Run one inference to its end; inputs and outputs stay where they are."""
        if self._session is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        try:
            self._session.run_with_iobinding(self._binding)
            if self._synchronise:
                self._binding.synchronize_outputs()
        except Exception as error:
            raise _failure(error, loading=False) from error
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the kernels from onnxruntime's trace, named after the covered nodes.

        The time of a kernel is the mean of the middle half of its runs, see `trace.middle_mean`.
        `device` is the provider that ran it. A compiled piece of the graph is one kernel.
        """
        self._session = self._binding = None
        ort = _import()
        target = self._target(job)
        options = self._options(ort)
        options.enable_profiling = True
        options.profile_file_prefix = str(job.scratch_dir / "trace")
        optimised = job.scratch_dir / "optimised.onnx"
        # The optimised file holds all weights again, so large models would fill the disk. A session
        # with compiled pieces cannot save one at all.
        saves = target is None or not target.compiles
        if saves and _may_save(job):
            options.optimized_model_filepath = str(optimised)
        session = self._open(ort, job, options, target)
        places = None if target is None else read_places(session)
        if target is not None:
            placement(places, (target.provider, *target.helpers))
        feeds = _noise(session.get_inputs())
        try:
            for _ in range(_PROFILE_WARMUP + runs):
                session.run(None, feeds)
            trace = Path(session.end_profiling())
        except Exception as error:
            raise _failure(error, loading=False) from error
        finally:
            del session
        kernels = read_kernels(json.loads(trace.read_text()))
        trace.unlink()
        found: list[Cover] = []
        nodes = []
        if optimised.exists():
            nodes = [(node.name, node.op) for node in read_nodes(optimised)]
            found = covers(read_nodes(job.model_path), read_nodes(optimised), feeds.keys())
            optimised.unlink()
        elif not saves:
            found = compiled_covers(read_nodes(job.model_path), kernels, places, feeds.keys())
            nodes = [(kernel.name, kernel.op) for kernel in kernels]
        return _layers(kernels, nodes, found)

    def _targets(self) -> tuple[ProviderTarget, ...]:
        """Return the providers that load; searched once per process, because loading takes time."""
        key = repr(self._chosen)
        if key not in self._found:
            self._found[key] = onnx_providers.present(_import(), self._chosen)
        return self._found[key]

    def _target(self, job: Job) -> ProviderTarget | None:
        """Return the provider of the job's platform; None for the CPU."""
        label = job.settings.get("label")
        if label is None:
            return None
        for target in self._targets():
            if target.label == label:
                return target
        raise RuntimeFailure("RUNTIME_MISSING", f"no provider with the label {label!r} is here")

    def _open(self, ort: Any, job: Job, options: Any, target: ProviderTarget | None) -> Any:
        try:
            if target is None:
                return ort.InferenceSession(str(job.model_path), options, providers=[CPU])
            extra = onnx_providers.extra_options(target, job, self._threads, self._cache_dir)
            return onnx_providers.open_session(ort, str(job.model_path), options, target, extra)
        except Exception as error:
            raise _failure(error, loading=True) from error

    def _options(self, ort: Any) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = _ERRORS_ONLY
        return options


def _may_save(job: Job) -> bool:
    files = (job.model_path, *(job.model_path.parent / name for name in job.companions))
    size_bytes = sum(file.stat().st_size for file in files)
    spare_bytes = shutil.disk_usage(job.scratch_dir).free
    return size_bytes <= _OPTIMISED_LIMIT_BYTES and _SPARE_DISK * size_bytes <= spare_bytes


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


def _noise(inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the same random inputs each time; see `input_noise`."""
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
    """Turn an exception of onnxruntime into a typed failure with a message of one line."""
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
    kernels: Sequence[TracedKernel], nodes: Sequence[tuple[str, str]], found: Sequence[Cover]
) -> list[LayerTime]:
    """Return the kernels of a trace as layers, in the order of execution.

    Raises:
        RuntimeFailure: PROFILE_UNAVAILABLE if the trace only holds the time that the host took to
            launch a GPU's kernels, which says nothing about the layers.
    """
    by_order = [kernel.op for kernel in kernels] == [op for _, op in nodes]
    by_name = {name: cover for (name, _), cover in zip(nodes, found) if name}
    layers: list[LayerTime] = []
    for position, kernel in enumerate(kernels):
        durations = kernel.host_ms
        if kernel.provider in _ASYNCHRONOUS:
            durations = kernel.device_ms
        if not durations:
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE",
                f"the trace of this onnxruntime has no device times of {kernel.provider}",
            )
        fallback = Cover(kernel.name, kernel.op)
        cover = found[position] if by_order else by_name.get(kernel.name, fallback)
        latency_ms = middle_mean(durations[_PROFILE_WARMUP:])
        layers.append(LayerTime(cover.name, cover.op, latency_ms, kernel.provider))
    return layers
