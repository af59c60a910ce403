"""TFLite models by LiteRT (ai-edge-litert), or by tflite-runtime on old boards.

XNNPACK computes on the CPU by default. External delegates, LiteRT's GPU accelerator and the
interpreter's own kernels are platforms of their own, which the agent's configuration switches on.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import resource
from pathlib import Path
from typing import Any, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.tflite import delegates as tflite_delegates
from latfarm_agent.runtimes.tflite import gpu as tflite_gpu
from latfarm_agent.runtimes.tflite import profile as tflite_profile
from latfarm_agent.runtimes.tflite.cache import GraphCache
from latfarm_agent.runtimes.tflite.delegates import Delegate
from latfarm_agent.runtimes.tflite.litert import OLDEST, CompiledModel, LitertDevice
from latfarm_agent.runtimes.tflite.sessions import (
    GraphStore,
    TfliteSession,
    noise,
    open_external,
    open_gpu,
    open_interpreter,
    operators,
)
from latfarm_agent.runtimes.tflite.vela import estimate_of
from latfarm_agent.runtimes.tflite_format.check import check_file

_PACKAGES = (
    # module, distribution, name in the names of platforms
    ("ai_edge_litert.interpreter", "ai-edge-litert", "litert"),
    ("tflite_runtime.interpreter", "tflite-runtime", "tflite"),
)
_KERNELS = ("xnnpack", "builtin", "reference")
_GPU = "gpu"
_PRECISIONS = ("fp16", "fp32")
_MIB = 1 << 20

# Results of trying delegates and the GPU in a process of its own: once for all thread counts.
_tried: dict[tuple[object, ...], str] = {}


class TfliteRuntime:
    """The TFLite interpreter.

    Args:
        threads: threads of the kernels on the CPU.
        kernels: which kernels compute on the CPU, one platform for each: "xnnpack", "builtin" (the
            interpreter's own), "reference" (the interpreter's slow ones).
        delegates: external delegates, see `tflite.delegates.Delegate`.
        gpu: whether to offer LiteRT's GPU accelerator.
        cache_dir: folder for compiled graphs of delegates; empty: none are kept.
        cache_mb: bound on the size of these graphs, in MiB.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, naming the option that is wrong.
    """

    wants_cache_dir = True

    def __init__(
        self,
        threads: int = 1,
        *,
        kernels: Sequence[str] = ("xnnpack",),
        delegates: Sequence[Mapping[str, Any]] = (),
        gpu: bool = False,
        cache_dir: str = "",
        cache_mb: int = 512,
        **unknown: object,
    ) -> None:
        for name in unknown:
            known = "kernels, delegates, gpu, cache_dir, cache_mb"
            raise _wrong(name, f"is unknown; known: {known}")
        if not isinstance(kernels, (list, tuple)) or not set(kernels) <= set(_KERNELS):
            raise _wrong("kernels", f"must be a list of {', '.join(_KERNELS)}")
        if not isinstance(gpu, bool):
            raise _wrong("gpu", "must be true or false")
        if not isinstance(cache_dir, str):
            raise _wrong("cache_dir", "must be the path of a folder")
        if not isinstance(cache_mb, int) or isinstance(cache_mb, bool) or cache_mb < 0:
            raise _wrong("cache_mb", "must be a number of megabytes")
        self._threads = threads
        self._kernels = tuple(dict.fromkeys(kernels))
        self._delegates = {entry.name: entry for entry in tflite_delegates.parse(delegates)}
        self._gpu = gpu
        self._cache_dir = cache_dir
        self._cache_bytes = cache_mb * _MIB
        self._session: TfliteSession | None = None
        self._checked: tuple[object, ...] = ()

    def describe(self) -> Description:
        """Offer a platform for each way to compute and each element type."""
        _, version, label = _import()
        name = f"{label}{'.'.join(version.split('.')[:2])}"
        platforms = [
            PlatformSpec(
                f"{name}-{_infix(kernels)}{dtype}-{self._threads}t",
                "tflite",
                dtype,
                {"threads": str(self._threads), "delegate": kernels},
            )
            for kernels in self._kernels
            for dtype in ("fp32", "int8")
        ]
        lacking = []
        for delegate in self._delegates.values():
            reason = _tried_once(delegate)
            if reason:
                lacking.append(f"{name}-{delegate.name}: {reason}")
            else:
                platforms += self._of_delegate(name, delegate)
        if self._gpu:
            reason = _gpu_once(label)
            if reason:
                lacking.append(f"{name}-{_GPU}: {reason}")
            else:
                platforms += [
                    PlatformSpec(
                        f"{name}-{_GPU}-{precision}",
                        "tflite",
                        "fp32",  # of the file
                        {"delegate": _GPU, "precision": precision},
                    )
                    for precision in _PRECISIONS
                ]
        if not platforms:
            raise RuntimeFailure("RUNTIME_MISSING", "; ".join(lacking) or "kernels is empty")
        return Description(version, tuple(platforms), tuple(lacking))

    def prepare(self, job: Job) -> Prepared:
        """Check the file, load it, and fill its inputs with noise.

        A delegate that compiles slowly has finished compiling when this returns.
        """
        self._drop()
        self._check(job.model_path)
        way = _way(job.settings)
        self._session = session = self._open(job, way)
        if way not in _KERNELS:
            conditions = dict(session.conditions, **estimate_of(job.model_path))
            return Prepared(compile_ms=session.compile_ms, cpu_clock="none", conditions=conditions)
        clock = "thread" if self._threads == 1 else "process"
        return Prepared(cpu_clock=clock, probe=matrix_probe())

    def run(self) -> float | None:
        """Run one inference; the inputs stay as they were filled."""
        if self._session is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        self._session.run()
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the kernels, named after the operators that they cover.

        `device` is "CPU" for the interpreter's own kernels, "XNNPACK", or the name of a delegate.
        A partition of a delegate is one row. The kernels of XNNPACK have rows of their own if the
        package has LiteRT's profiler and no other delegate takes part.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE, with the reason.
        """
        self._drop()
        self._check(job.model_path)
        way = _way(job.settings)
        if way == _GPU:
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE",
                "LiteRT's GPU accelerator does not report the times of its kernels",
            )
        self._session = session = self._open(job, way, scouted=True)
        steps = session.steps()
        named = operators(session, job.model_path)
        if way == "xnnpack" and any(step.kernel for step in steps):
            module, version, label = _import()
            if label == "litert" and _numbers(version) >= OLDEST:
                try:
                    runs_seen = self._watch(module, job.model_path, runs)
                    return tflite_profile.by_events(steps, named, runs_seen)
                except RuntimeFailure as failure:
                    if failure.code not in ("PROFILE_UNAVAILABLE", "RUNTIME_MISSING"):
                        raise
        assert session.scout is not None
        with session.scout.clocks() as times_ms:
            for _ in range(tflite_profile.WARMUP + runs):
                session.run()
        return tflite_profile.by_steps(steps, named, times_ms, session.names)

    def _open(self, job: Job, way: str, *, scouted: bool = False) -> TfliteSession:
        module, version, _ = _import()
        if way in _KERNELS:
            return open_interpreter(
                module, job.model_path, self._threads, kernels=way, scouted=scouted
            )
        if way == _GPU:
            fp32 = job.settings.get("precision") != "fp16"
            return open_gpu(module, job.model_path, fp32=fp32)
        delegate = self._delegates.get(way)
        if delegate is None:
            raise RuntimeFailure("RUNTIME_MISSING", f"no delegate {way!r} is configured")
        store = None
        if self._cache_dir and self._cache_bytes:
            identity = (version, *(f"{k}={v}" for k, v in sorted(job.settings.items())))
            store = GraphStore(
                GraphCache(Path(self._cache_dir) / "graphs", self._cache_bytes), identity
            )
        return open_external(
            module, job.model_path, self._threads, delegate, job.scratch_dir, store
        )

    def _watch(self, module: Any, path: Path, runs: int) -> list[list[Any]]:
        """Profile some runs of a file with LiteRT's profiler, on the inputs of the session."""
        assert self._session is not None
        arrays = noise(self._session.interpreter.get_input_details())
        folder = Path(module.__file__).parent
        device = LitertDevice(threads=self._threads)
        compiled = CompiledModel(folder, path, device, profiling=True)
        try:
            for place, (_, array) in enumerate(arrays):
                compiled.fill(place, array.tobytes())
            return tflite_profile.timed_events(compiled.run, compiled.profile, runs)
        finally:
            compiled.close()

    def _of_delegate(self, name: str, delegate: Delegate) -> list[PlatformSpec]:
        settings = dict(tflite_delegates.settings_of(delegate), threads=str(self._threads))
        return [
            PlatformSpec(f"{name}-{delegate.name}-{dtype}", delegate.model_format, dtype, settings)
            for dtype in delegate.dtypes
        ]

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _check(self, path: Path) -> None:
        """Check a file, once for all sessions of a request."""
        stat = path.stat()
        same = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if same != self._checked:
            bound = resource.getrlimit(resource.RLIMIT_DATA)[0]
            check_file(path, 0 if bound == resource.RLIM_INFINITY else bound)
            self._checked = same


def _import() -> tuple[Any, str, str]:
    """Return the module, version and label of the first package that is installed."""
    reasons: list[str] = []
    for module, distribution, label in _PACKAGES:
        try:
            found = importlib.import_module(module)
            return found, importlib.metadata.version(distribution), label
        except (ImportError, AttributeError, importlib.metadata.PackageNotFoundError) as error:
            # tflite-runtime raises AttributeError with numpy 2.
            reasons.append(f"{distribution}: {error}")
    raise RuntimeFailure(
        "RUNTIME_MISSING",
        f"no TFLite interpreter ({'; '.join(reasons)}); "
        "install it with: pip install 'latfarm-agent[tflite]'",
    )


def _tried_once(delegate: Delegate) -> str:
    try:
        stat = delegate.library.stat()
    except OSError:
        stamp: tuple[object, ...] = ()
    else:
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    key = (delegate.library, tuple(sorted(delegate.options.items())), stamp)
    if key not in _tried:
        _tried[key] = tflite_delegates.loads(delegate)
    return _tried[key]


def _gpu_once(label: str) -> str:
    if label != "litert":
        return "tflite-runtime has no GPU accelerator; install ai-edge-litert 2.3 or newer"
    if (_GPU,) not in _tried:
        module, version, _ = _import()
        _tried[(_GPU,)] = (
            tflite_gpu.works(Path(module.__file__).parent)
            if _numbers(version) >= OLDEST
            else f"ai-edge-litert {version} is too old for its GPU; install 2.3 or newer"
        )
    return _tried[(_GPU,)]


def _way(settings: Mapping[str, str]) -> str:
    return settings.get("delegate", "xnnpack")


def _infix(kernels: str) -> str:
    return "" if kernels == "xnnpack" else f"{kernels}-"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _wrong(name: str, what: str) -> RuntimeFailure:
    return RuntimeFailure("RUNTIME_MISSING", f"option {name} {what}")
