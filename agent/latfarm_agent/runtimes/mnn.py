"""MNN models by MNN's session interpreter on the CPU.

Only `MNN` itself is imported, never `MNN.tools`: those modules install a package with pip when they
are imported, to send usage data.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.trace import middle_mean

_PROFILE_WARMUP = 3
# The library gives null pointers for what is no model, and its binding then ends the process.
_MAGIC_ROOM = 8
_RESIZE_STATUS = 3  # of what a session can tell: 0 once shapes and memory are settled
_UNSUPPORTED = re.compile(r"don't support type \[?([^\]\s]+)|not support", re.IGNORECASE)


class MnnRuntime:
    """MNN in high precision (float32 throughout), one session a model."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._net: Any = None
        self._session: Any = None
        self._held: list[Any] = []

    def describe(self) -> Description:
        """One platform, fp32 on the CPU."""
        module = _import()
        version = str(module.version())
        short = ".".join(version.split(".")[:2])
        settings = {"backend": "CPU", "precision": "high", "threads": str(self._threads)}
        name = f"mnn{short}-fp32-{self._threads}t"
        return Description(version, (PlatformSpec(name, "mnn", "fp32", settings),))

    def prepare(self, job: Job) -> Prepared:
        """Load the file into a fresh session and fill its inputs with noise."""
        self._net = self._session = None
        self._held = []
        gc.collect()
        self._net, self._session = self._load(job)
        return Prepared(
            cpu_clock="thread" if self._threads == 1 else "process", probe=matrix_probe()
        )

    def run(self) -> float | None:
        """One inference; MNN keeps its input tensors as they were filled."""
        if self._net is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        code = self._net.runSession(self._session)
        if code:
            raise RuntimeFailure(
                "OUT_OF_MEMORY" if code == 1 else "MODEL_FAILED", f"MNN ended with code {code}"
            )
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Times between MNN's callbacks before and after each op, named as in the MNN file.

        MNN's converter has fused before: an op bears the name of the first node that it covers.
        Copies that MNN puts before or behind an op to change a layout are called "Reorder".
        """
        net, session = self._load(job)
        times: dict[tuple[str, str], list[float]] = {}
        began = [0.0]

        def before(_tensors: Any, _info: Any) -> bool:
            began[0] = time.perf_counter()
            return True

        def after(_tensors: Any, info: Any) -> bool:
            spent_ms = (time.perf_counter() - began[0]) * 1e3
            times.setdefault((str(info.getName()), str(info.getType())), []).append(spent_ms)
            return True

        for turn in range(_PROFILE_WARMUP + runs):
            if turn == _PROFILE_WARMUP:
                times.clear()
            net.runSessionWithCallBackInfo(session, before, after)
        names = {name for name, _ in times}
        return [
            LayerTime(name or op, _kind(name, op, names), middle_mean(spent), "CPU")
            for (name, op), spent in times.items()
        ]

    def _load(self, job: Job) -> tuple[Any, Any]:
        module = _import()
        if job.model_path.stat().st_size < _MAGIC_ROOM:
            raise RuntimeFailure("MODEL_INVALID", "the file is too short for an MNN model")
        config = {
            "backend": _backend(job.settings),
            "numThread": self._threads,
            "precision": "high",
        }
        try:
            net = module.Interpreter(str(job.model_path))
            session = net.createSession(config)
            ready = net.getSessionInfo(session, _RESIZE_STATUS) == 0
            inputs = net.getSessionInputAll(session)
        except Exception as error:
            raise _failure(error) from error
        if not ready:
            del session, inputs
            raise _unready(_printed(lambda: net.createSession(config), job.scratch_dir / "said"))
        if not inputs:
            raise RuntimeFailure("MODEL_INVALID", "MNN reads no model with inputs in the file")
        for name, tensor in inputs.items():
            self._fill(module, name, tensor)
        return net, session

    def _fill(self, module: Any, name: str, tensor: Any) -> None:
        """Deterministic inputs; see `input_noise`."""
        import numpy as np

        shape = tuple(int(size) for size in tensor.getShape())
        if any(size < 1 for size in shape):
            raise RuntimeFailure("MODEL_INVALID", f"input {name!r} has an open dimension: {shape}")
        draw = np.random.default_rng(0)
        kind = tensor.getDataType()
        if kind == module.Halide_Type_Float:
            data = input_noise(draw, shape, np.float32)
        elif kind == module.Halide_Type_Int:
            data = input_noise(draw, shape, np.int32)
        else:
            raise RuntimeFailure("MODEL_INVALID", f"input {name!r} is neither float nor int32")
        host = module.Tensor(shape, kind, data, module.Tensor_DimensionType_Caffe)
        if not tensor.copyFrom(host):
            raise RuntimeFailure("MODEL_INVALID", f"input {name!r} cannot be filled")


def _kind(name: str, op: str, names: Collection[str]) -> str:
    """What an op is called; a raster beside the op that it is named after changes a layout."""
    stem, mark, number = name.rpartition("_raster_")
    if op == "Raster" and mark and number.isdecimal() and stem in names:
        return "Reorder"
    return op or name


def _import() -> Any:
    try:
        import MNN
    except ImportError as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"MNN cannot be imported ({error}); install it with: pip install 'latfarm-agent[mnn]'",
        ) from error
    return MNN


def _backend(settings: Mapping[str, str]) -> str:
    return settings.get("backend", "CPU")


def _printed(work: Callable[[], object], path: Path) -> str:
    """What a call of the library prints, in one line; it has no other words for its reasons."""
    flush = ctypes.CDLL(None).fflush
    flush(None)
    kept = os.dup(1), os.dup(2)
    with path.open("w+b") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            work()
        finally:
            flush(None)
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
        file.seek(0)
        lines = file.read().decode("utf-8", "replace").splitlines()
    path.unlink()
    return " | ".join(line.strip() for line in lines if line.strip())[:600]


def _unready(said: str) -> RuntimeFailure:
    """Why a session has no memory plan: an op that MNN lacks, which it prints, or no memory."""
    found = _UNSUPPORTED.search(said)
    if found:
        op = f"the operator {found[1]}" if found[1] else "an operator"
        return RuntimeFailure("MODEL_UNSUPPORTED", f"MNN lacks {op}: {said}")
    if "error" in said.lower():
        return RuntimeFailure("MODEL_INVALID", f"MNN cannot prepare the model: {said}")
    return RuntimeFailure("OUT_OF_MEMORY", f"MNN could not allocate the model's tensors: {said}")


def _failure(error: Exception) -> RuntimeFailure:
    """The typed failure for one of MNN's exceptions, its message cut to one line."""
    message = " ".join(str(error).split())[:600]
    memory = isinstance(error, MemoryError) or "bad_alloc" in message.lower()
    return RuntimeFailure("OUT_OF_MEMORY" if memory else "MODEL_INVALID", message or "no model")
