"""MNN models by MNN's session interpreter, on the CPU and on GPUs.

Only `MNN` itself is imported, never `MNN.tools`: when those modules are imported, they install a
package with pip that sends usage data.
"""

from __future__ import annotations

import gc
import re
import time
from pathlib import Path
from typing import Any, Collection, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.gpu_options import read_options
from latfarm_agent.runtimes.mnn import gpu as mnn_gpu
from latfarm_agent.runtimes.mnn.gpu import Output, TuningCache
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.printed import one_line, printed
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.trace import middle_mean

_PROFILE_WARMUP = 3
"""Runs before a profile whose times are not counted."""
_OPTIONS: Mapping[str, Any] = {
    "opencl": True,
    "vulkan": True,
    "software_devices": False,
    "tuning": mnn_gpu.TUNINGS,
    "memory": mnn_gpu.MEMORIES,
    "cache_dir": "",
}
_LEAST_BYTES = 8
"""Size of the smallest file that is given to MNN. For shorter ones the library returns a null
pointer, with which its Python binding ends the process."""
_RESIZE_STATUS = 3  # code of getSessionInfo; the answer is 0 once shapes and memory are settled
_UNSUPPORTED = re.compile(r"don't support type \[?([^\]\s]+)|not support", re.IGNORECASE)


class MnnRuntime:
    """MNN in high precision (float32 throughout), and on GPUs in low precision too.

    Args:
        threads: threads of the CPU.
        options: "opencl", "vulkan" (default true): whether to look for GPUs. "software_devices"
            (default false): whether to offer drivers that emulate a GPU on the CPU, for example
            lavapipe. "tuning" (one of `TUNINGS`) and "memory" (one of `MEMORIES`, for OpenCL): see
            MNN's GPU modes. "cache_dir": folder for the results of tuning; empty: none are kept.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if an option is unknown or has a wrong type.
    """

    wants_cache_dir = True

    def __init__(self, threads: int = 1, **options: Any) -> None:
        self._threads = threads
        self._options = read_options("mnn", options, _OPTIONS)
        folder = self._options["cache_dir"]
        self._cache = TuningCache(Path(folder) if folder else None)
        self._net: Any = None
        self._session: Any = None
        self._outputs: list[Output] = []

    def describe(self) -> Description:
        """Offer fp32 on the CPU, and fp32 and fp16 on the GPUs that this MNN supports."""
        module = _import()
        version = str(module.version())
        short = ".".join(version.split(".")[:2])
        settings = {"backend": "CPU", "precision": "high", "threads": str(self._threads)}
        name = f"mnn{short}-fp32-{self._threads}t"
        offered = [PlatformSpec(name, "mnn", "fp32", settings)]
        tuning, memory = self._options["tuning"], self._options["memory"]
        for backend, gpu in mnn_gpu.devices(module).items():
            wanted = self._options[backend.lower()]
            if wanted and (self._options["software_devices"] or not gpu.software):
                offered += mnn_gpu.platforms(short, backend, gpu, tuning, memory, self._threads)
        return Description(version, tuple(offered))

    def prepare(self, job: Job) -> Prepared:
        """Load the file into a fresh session and fill its inputs with noise."""
        self._net = self._session = None
        self._outputs = []
        gc.collect()
        begun = time.perf_counter()
        self._net, self._session = self._load(job)
        spent_ms = (time.perf_counter() - begun) * 1e3
        if _backend(job.settings) == "CPU":
            clock = "thread" if self._threads == 1 else "process"
            return Prepared(cpu_clock=clock, probe=matrix_probe())
        self._outputs = _outputs(self._net, self._session)
        # MNN compiles and tunes kernels when it makes the session; loading takes little time.
        return Prepared(compile_ms=spent_ms, cpu_clock="none", probe=matrix_probe())

    def run(self) -> float | None:
        """Run one inference; MNN keeps its input tensors as they were filled.

        On a GPU, the run ends when the outputs are on the host, as in MNN's own benchmark.
        """
        if self._net is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        code = self._net.runSession(self._session)
        if code:
            raise RuntimeFailure(
                "OUT_OF_MEMORY" if code == 1 else "MODEL_FAILED", f"MNN ended with code {code}"
            )
        for output in self._outputs:
            output.fetch()
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times between MNN's callbacks before and after each op, named as in the file.

        MNN's converter has fused ops earlier: an op has the name of the first node that it covers.
        Copies that MNN inserts to change a layout are called "Reorder". `device` is the GPU, or
        "CPU" for an op that the back end lacks. A GPU works asynchronously, so each of its times
        includes waiting for it and copying the op's result to the host; the sum exceeds the time of
        a run.
        """
        module = _import()
        net, session = self._load(job)
        places: dict[tuple[str, str], str] = {}
        fetched: dict[tuple[str, str], list[Output]] = {}
        times: dict[tuple[str, str], list[float]] = {}
        began = [0.0]

        def before(_tensors: Any, _info: Any) -> bool:
            began[0] = time.perf_counter()
            return True

        def after(tensors: Any, info: Any) -> bool:
            op = (str(info.getName()), str(info.getType()))
            for output in fetched.get(op, ()):
                output.fetch()
            spent_ms = (time.perf_counter() - began[0]) * 1e3
            times.setdefault(op, []).append(spent_ms)
            if op not in places:
                places[op] = mnn_gpu.place(tensors, job.settings)
                if places[op] != "CPU":
                    fetched[op] = [Output(module, tensor) for tensor in tensors]
            return True

        for turn in range(_PROFILE_WARMUP + runs):
            if turn == _PROFILE_WARMUP:
                times.clear()
            net.runSessionWithCallBackInfo(session, before, after)
        names = {name for name, _ in times}
        return [
            LayerTime(name or op, _kind(name, op, names), middle_mean(spent), places[name, op])
            for (name, op), spent in times.items()
        ]

    def _load(self, job: Job) -> tuple[Any, Any]:
        module = _import()
        if job.model_path.stat().st_size < _LEAST_BYTES:
            raise RuntimeFailure("MODEL_INVALID", "the file is too short for an MNN model")
        config = mnn_gpu.session_config(job.settings, self._threads)
        version = str(module.version())
        loan = self._cache.lend(job.model_path, job.settings, version, job.scratch_dir)
        try:
            net = module.Interpreter(str(job.model_path))
            loan.give(net)
            session = net.createSession(config)
            ready = net.getSessionInfo(session, _RESIZE_STATUS) == 0
            inputs = net.getSessionInputAll(session)
        except Exception as error:
            raise _failure(error) from error
        if not ready:
            del session, inputs
            _, said = printed(lambda: net.createSession(config), job.scratch_dir / "said")
            raise _unready(one_line(said))
        if not inputs:
            raise RuntimeFailure("MODEL_INVALID", "MNN reads no model with inputs in the file")
        mnn_gpu.check(net, session, job.settings)
        loan.take_back(net, session)
        for name, tensor in inputs.items():
            self._fill(module, name, tensor)
        return net, session

    def _fill(self, module: Any, name: str, tensor: Any) -> None:
        """Fill an input with the same random values each time; see `input_noise`."""
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
    """Return the type of an op; a raster that is named after another op is a change of layout."""
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


def _outputs(net: Any, session: Any) -> list[Output]:
    module = _import()
    names = list(net.getSessionOutputAll(session))
    return [Output(module, net.getSessionOutput(session, name)) for name in names]


def _unready(said: str) -> RuntimeFailure:
    """Return why MNN could not prepare a session: an op that it lacks, or too little memory.

    Args:
        said: what MNN printed meanwhile, which is the only place where it names the op.
    """
    found = _UNSUPPORTED.search(said)
    if found:
        op = f"the operator {found[1]}" if found[1] else "an operator"
        return RuntimeFailure("MODEL_UNSUPPORTED", f"MNN lacks {op}: {said}")
    if "error" in said.lower():
        return RuntimeFailure("MODEL_INVALID", f"MNN cannot prepare the model: {said}")
    return RuntimeFailure("OUT_OF_MEMORY", f"MNN could not allocate the model's tensors: {said}")


def _failure(error: Exception) -> RuntimeFailure:
    """Turn an exception of MNN into a typed failure with a message of one line."""
    message = " ".join(str(error).split())[:600]
    memory = isinstance(error, MemoryError) or "bad_alloc" in message.lower()
    code = "OUT_OF_MEMORY" if memory else "MODEL_INVALID"
    return RuntimeFailure(code, message or "MNN does not read the file")
