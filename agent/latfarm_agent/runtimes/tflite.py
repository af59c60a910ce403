"""TFLite models by LiteRT (ai-edge-litert), or by tflite-runtime on old boards."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import resource
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
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.tflite_check import check_file

_PACKAGES = (
    # module, distribution, name in a platform
    ("ai_edge_litert.interpreter", "ai-edge-litert", "litert"),
    ("tflite_runtime.interpreter", "tflite-runtime", "tflite"),
)

_UNSUPPORTED = (
    "custom op",
    "didn't find op",
    "unsupported",
    "op code",
    "regular tensorflow ops",
)


class TfliteRuntime:
    """The TFLite interpreter with its default delegate (XNNPACK)."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._interpreter: Any = None
        self._inputs: list[tuple[int, Any]] = []
        self._checked: tuple[object, ...] = ()

    def describe(self) -> Description:
        """Two platforms, fp32 and int8, of whichever package is here."""
        _, version, label = _import()
        short = ".".join(version.split(".")[:2])
        settings = {"threads": str(self._threads), "delegate": "xnnpack"}
        return Description(
            version,
            tuple(
                PlatformSpec(f"{label}{short}-{dtype}-{self._threads}t", "tflite", dtype, settings)
                for dtype in ("fp32", "int8")
            ),
        )

    def prepare(self, job: Job) -> Prepared:
        """Look the file over, load it, allocate its tensors, fill its inputs with noise."""
        self._interpreter = None
        self._inputs = []
        gc.collect()
        module = _import()[0]
        self._check(job.model_path)
        try:
            interpreter = module.Interpreter(
                model_path=str(job.model_path), num_threads=self._threads
            )
        except Exception as error:
            raise _failure(error, loading=True) from error
        self._inputs = _noise(interpreter.get_input_details())
        try:
            interpreter.allocate_tensors()
            self._interpreter = interpreter
            self._refill()
        except RuntimeFailure:
            raise
        except Exception as error:
            raise _failure(error, loading=True) from error
        return Prepared(
            cpu_clock="thread" if self._threads == 1 else "process", probe=matrix_probe()
        )

    def run(self) -> float | None:
        """One inference; the interpreter keeps its input tensors as they were filled."""
        if self._interpreter is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        try:
            self._interpreter.invoke()
        except Exception as error:
            raise _failure(error, loading=False) from error
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Never: the Python interface has no profiler.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE.
        """
        del job, runs
        raise RuntimeFailure(
            "PROFILE_UNAVAILABLE",
            "the interpreter's Python interface has no per-op profiler; "
            "use single-op models, or benchmark_model with --enable_op_profiling",
        )

    def _check(self, path: Path) -> None:
        """Look a file over, once for all sessions of a request."""
        stat = path.stat()
        same = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if same != self._checked:
            bound = resource.getrlimit(resource.RLIMIT_DATA)[0]
            check_file(path, 0 if bound == resource.RLIM_INFINITY else bound)
            self._checked = same

    def _refill(self) -> None:
        for index, array in self._inputs:
            self._interpreter.set_tensor(index, array)


def _import() -> tuple[Any, str, str]:
    """(module, version, label) of the first package that is here."""
    reasons: list[str] = []
    for module, distribution, label in _PACKAGES:
        try:
            found = importlib.import_module(module)
            return found, importlib.metadata.version(distribution), label
        except (ImportError, AttributeError, importlib.metadata.PackageNotFoundError) as error:
            # AttributeError: tflite-runtime under numpy 2
            reasons.append(f"{distribution}: {error}")
    raise RuntimeFailure(
        "RUNTIME_MISSING",
        f"no TFLite interpreter ({'; '.join(reasons)}); "
        "install it with: pip install 'latfarm-agent[tflite]'",
    )


def _noise(details: Sequence[Any]) -> list[tuple[int, Any]]:
    """Deterministic inputs: normal noise for floats, the whole range for 8 bits, else 0 and 1."""
    import numpy as np

    draw = np.random.default_rng(0)
    made: list[tuple[int, Any]] = []
    for item in details:
        shape = [int(size) for size in item["shape"]]
        signature = [int(size) for size in item.get("shape_signature", item["shape"])]
        if any(size < 0 for size in signature):
            raise RuntimeFailure(
                "MODEL_INVALID", f"input {item['name']!r} has an open dimension: {signature}"
            )
        kind = np.dtype(item["dtype"])
        if kind.kind == "f":
            array = draw.standard_normal(shape).astype(kind)
        elif kind in (np.dtype("int8"), np.dtype("uint8")):
            low = -128 if kind.kind == "i" else 0
            array = draw.integers(low, low + 256, shape).astype(kind)
        elif kind.kind in "iub":
            array = draw.integers(0, 2, shape).astype(kind)
        else:
            raise RuntimeFailure("MODEL_INVALID", f"input {item['name']!r} is a {kind}")
        made.append((int(item["index"]), array))
    return made


def _failure(error: Exception, *, loading: bool) -> RuntimeFailure:
    """The typed failure for one of the interpreter's exceptions, its message cut to one line."""
    message = " ".join(str(error).split())[:600]
    if not message:
        # The interpreter has words for every failure but the one of its own memory plan.
        return RuntimeFailure("OUT_OF_MEMORY", "the interpreter could not allocate its tensors")
    low = message.lower()
    code = "MODEL_INVALID" if loading else "MODEL_FAILED"
    if isinstance(error, MemoryError) or "bad_alloc" in low or "failed to allocate" in low:
        code = "OUT_OF_MEMORY"
    elif any(sign in low for sign in _UNSUPPORTED):
        code = "MODEL_UNSUPPORTED"
    return RuntimeFailure(code, message)
