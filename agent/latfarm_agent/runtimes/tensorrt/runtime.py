"""ONNX models by TensorRT, on the GPU or a deep-learning accelerator (DLA) of the board itself.

An engine is built from ONNX on the board that runs it, once for each request. Each session has a
fresh execution context with fresh memory. By default, the latency of a platform is the time on the
host: from the call of one synchronous inference to the end of the wait, while inputs and outputs
stay on the GPU. The conditions also hold the time that the GPU itself measured for the same runs.
"""

from __future__ import annotations

import gc
import importlib
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

from latfarm_agent.nvidia.gpu import NvidiaBoard
from latfarm_agent.runtimes.base import Description, Job, LayerTime, Prepared, RuntimeFailure
from latfarm_agent.runtimes.cuda import Cuda, CudaDevice
from latfarm_agent.runtimes.tensorrt.build import (
    BuiltEngine,
    EnginePlan,
    Journal,
    OnnxFiles,
    build,
    make_logger,
)
from latfarm_agent.runtimes.tensorrt.cache import TimingCache
from latfarm_agent.runtimes.tensorrt.layers import layer_times, placed_names, read_inspector
from latfarm_agent.runtimes.tensorrt.log import SessionLog
from latfarm_agent.runtimes.tensorrt.options import (
    TensorRtCapabilities,
    TensorRtOptions,
    lacking,
    platforms,
)
from latfarm_agent.runtimes.tensorrt.session import SessionMode, TensorRtSession

_OLDEST = (8, 4)
"""The oldest version of TensorRT that is supported."""
_PROFILE_WARMUP = 3
"""Runs before a profile whose times are not counted."""
_SHOWN = 12
"""At most this many nodes are named in a condition."""
_REMEDY = (
    "on a Jetson: apt-get install python3-libnvinfer, and give the agent an environment made with "
    "--system-site-packages; elsewhere: pip install 'latfarm-agent[tensorrt]'"
)
# Element type -> property of the builder. Versions without these properties only support GPUs that
# are fast at both.
_FAST = {"fp16": "platform_has_fast_fp16", "int8": "platform_has_fast_int8"}


class TensorRtRuntime:
    """TensorRT 8.4 to 11; `options` are the fields of `tensorrt.options.TensorRtOptions`."""

    wants_cache_dir = True

    def __init__(self, threads: int = 1, **options: Any) -> None:
        del threads  # the number of the host's threads does not change the latency
        self._options = TensorRtOptions.read(options)
        self._journal = Journal()
        self._trt: Any = None
        self._logger: Any = None
        self._cuda: Cuda | None = None
        self._board: NvidiaBoard | None = None
        self._index = 0
        self._built: tuple[tuple[object, ...], BuiltEngine] | None = None
        self._untold_ms = 0.0  # time of a build that no session has reported yet
        self._session: TensorRtSession | None = None
        self._log: SessionLog | None = None
        self._gpu_latency = False

    def describe(self) -> Description:
        """Offer a platform for each element type that the GPU is fast at, and their variants."""
        trt, cuda = self._open()
        version = str(trt.__version__)
        offer = self._offer(trt, cuda.device)
        return Description(version, platforms(self._options, offer), lacking(self._options, offer))

    def prepare(self, job: Job) -> Prepared:
        """Build the engine, unless this request has one already, and open a fresh session.

        `compile_ms` is the time of the build. It is reported once, because the later sessions of a
        request share the engine.
        """
        self._close_session()
        built = self._engine(job)
        compile_ms, self._untold_ms = self._untold_ms, 0.0
        trt, cuda = self._open()
        settings = job.settings
        mode = SessionMode(
            transfers=settings.get("transfers") == "each run",
            graph=settings.get("cuda_graph") == "yes",
        )
        self._session = TensorRtSession(trt, cuda, built.engine, self._journal, mode)
        self._gpu_latency = settings.get("latency") == "gpu"
        board, index = self._sensors(cuda)
        self._log = SessionLog(
            _conditions(job, built),
            lambda: board.read(index),
            locked=board.locked(),
            end=board.rest,
        )
        return Prepared(
            compile_ms=compile_ms,
            cpu_clock="none",
            flush=self._session.flush,
            conditions=self._log,
            device_memory_bytes=0 if cuda.device.integrated else self._session.device_bytes,
        )

    def run(self) -> float | None:
        """Run one inference; return its latency by the clock that the platform asks for."""
        session, log = self._session, self._log
        if session is None or log is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        try:
            times = session.run()
        except BaseException:
            log.close()
            raise
        log.add(times)
        return times.gpu_ms if self._gpu_latency else times.host_ms

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the engine's layers, named after the nodes that they cover.

        The engine is the same as for the latency. Layers run one after the other while they are
        timed. On a DLA, the row "... from nvm" is the time of waiting for the DLA.
        """
        self._close_session()
        trt, cuda = self._open()
        built = self._engine(job)
        profiler = make_profiler(trt)
        mode = SessionMode(profiler=profiler)
        session = TensorRtSession(trt, cuda, built.engine, self._journal, mode)
        told: list[list[tuple[str, float]]] = []
        try:
            for turn in range(_PROFILE_WARMUP + runs):
                profiler.rows = []
                session.run()
                if turn >= _PROFILE_WARMUP:
                    told.append(profiler.rows)
        finally:
            session.close()
        if not any(told):
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "TensorRT's profiler reported no layer")
        inspector = built.engine.create_engine_inspector()
        text = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
        core = job.settings.get("dla_core", "none")
        return layer_times(
            told,
            read_inspector(text),
            built.nodes,
            built.inputs,
            on_dla=built.on_dla,
            dla=f"DLA {core}",
        )

    def _open(self) -> tuple[Any, Cuda]:
        """Open TensorRT and the GPU once, and return both."""
        if self._trt is None:
            trt = _import()
            self._cuda = Cuda(self._options.device, spin=self._options.spin_wait)
            self._logger = make_logger(trt, self._journal)
            self._trt = trt
        assert self._cuda is not None
        return self._trt, self._cuda

    def _offer(self, trt: Any, device: CudaDevice) -> TensorRtCapabilities:
        builder = trt.Builder(self._logger)
        flags = trt.NetworkDefinitionCreationFlag
        return TensorRtCapabilities(
            version=str(trt.__version__),
            device=device,
            dtypes=("fp32", *(d for d, fast in _FAST.items() if getattr(builder, fast, True))),
            strong=hasattr(flags, "STRONGLY_TYPED"),
            weak=hasattr(trt.BuilderFlag, "FP16"),
            dla_cores=int(builder.num_DLA_cores),
        )

    def _engine(self, job: Job) -> BuiltEngine:
        """Return the engine of a request's model, and build it if needed.

        Raises:
            RuntimeFailure: as `build`.
        """
        trt, cuda = self._open()
        plan = _plan(self._options, job)
        files = OnnxFiles(job.model_path, job.companions)
        stamps = tuple(_stamp(job.model_path.parent / name) for name in job.companions)
        stamps = (_stamp(job.model_path), *stamps)
        key = (job.request_id, job.sequence, str(job.model_path), stamps, plan)
        if self._built is not None and self._built[0] == key:
            return self._built[1]
        self._built = None  # two engines at once may not fit into the GPU's memory
        gc.collect()
        folder = self._options.cache_dir
        cache = TimingCache(Path(folder) if folder else None, str(trt.__version__), cuda.device)
        built = build(trt, self._logger, self._journal, files, plan, cache)
        self._built, self._untold_ms = (key, built), built.compile_ms
        return built

    def _sensors(self, cuda: Cuda) -> tuple[NvidiaBoard, int]:
        if self._board is None:
            self._board = NvidiaBoard()
            self._index = self._board.index_of(cuda.device.bus_id)
        return self._board, self._index

    def _close_session(self) -> None:
        session, log = self._session, self._log
        self._session = self._log = None
        if log is not None:
            log.close()
        if session is not None:
            session.close()
        gc.collect()


def _import() -> Any:
    try:
        tensorrt = importlib.import_module("tensorrt")
    except Exception as error:
        # An ImportError, or another exception of its own loader if a library of CUDA is missing.
        raise RuntimeFailure(
            "RUNTIME_MISSING", f"tensorrt cannot be imported ({error}); install it, {_REMEDY}"
        ) from error
    version = str(getattr(tensorrt, "__version__", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise RuntimeFailure(
            "RUNTIME_MISSING", f"tensorrt {version} is too old; install 8.4 or newer, {_REMEDY}"
        )
    return tensorrt


def make_profiler(trt: Any) -> Any:
    """Make a profiler for TensorRT that keeps the reported layers and times in `rows`."""

    class _Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.rows: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.rows.append((layer_name, float(ms)))

    return _Profiler()


def _plan(options: TensorRtOptions, job: Job) -> EnginePlan:
    core = job.settings.get("dla_core", "none")
    return EnginePlan(
        dtype=job.dtype,
        typing=job.settings.get("typing", "weak"),
        tf32=options.tf32,
        dla_core=int(core) if core.isdigit() else None,
        workspace_mib=options.workspace_mib,
        optimization_level=options.optimization_level,
    )


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of change of a file, which differ when the file has changed."""
    try:
        found = path.stat()
    except OSError:
        return (0, time.monotonic_ns())
    return (found.st_size, found.st_mtime_ns)


def _conditions(job: Job, built: BuiltEngine) -> Mapping[str, str]:
    told = {
        "latency_of": job.settings.get("latency", "host"),
        "timing_cache": "warm" if built.cached else "cold",
        "gpu": job.settings.get("gpu", "unknown"),
    }
    if job.dtype == "int8" and not built.quantised:
        told["precision"] = "the model has no quantised node: computed as fp32"
    if job.settings.get("dla_core", "none") != "none":
        fallen = placed_names(built.on_gpu, built.nodes)
        more = f" and {len(fallen) - _SHOWN} more" if len(fallen) > _SHOWN else ""
        told["on_gpu"] = ", ".join(fallen[:_SHOWN]) + more if fallen else "none"
    return told
