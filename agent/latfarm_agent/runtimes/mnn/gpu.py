"""MNN on GPUs by OpenCL and Vulkan: what is there, how a session is asked for, where ops ran.

The package on the index is built for CPUs alone: MNN's own build script makes one with GPUs
(`build_deps.py opencl,vulkan` in its pymnn/pip_package). MNN takes the first GPU of the first
OpenCL platform, and the first Vulkan device; its Python package cannot choose another.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from latfarm_agent.runtimes.base import PlatformSpec, RuntimeFailure
from latfarm_agent.runtimes.gpu_options import Gpu
from latfarm_agent.runtimes.gpus import opencl_gpus, vulkan_gpus

BACKENDS: Mapping[str, int] = {"OPENCL": 3, "VULKAN": 7}
"""MNN's names of GPU back ends, and its numbers of them (MNNForwardType)."""

TUNINGS = ("wide", "none", "fast", "normal", "heavy")
"""How long MNN looks for good kernels; "wide" is its own default."""
MEMORIES = ("buffer", "image")
"""What OpenCL keeps tensors in."""

_TUNING_BITS = {"none": 1, "heavy": 2, "wide": 4, "normal": 8, "fast": 16}
_MEMORY_BITS = {"buffer": 64, "image": 128}
# Vulkan knows three of the tunings.
_VULKAN_TUNINGS = {"fast": "none", "normal": "wide"}
_PRECISIONS = {"fp32": "high", "fp16": "low"}
_BACKEND_INFO = 2  # of what a session can tell: the back end that it is on
_FILE = "tuned"


def devices(module: Any) -> dict[str, Gpu]:
    """GPU back ends that this MNN has and the system has a device for."""
    if not hasattr(module.Interpreter, "createRuntime"):
        return {}
    found: dict[str, Gpu] = {}
    for backend, look in (("OPENCL", opencl_gpus), ("VULKAN", vulkan_gpus)):
        gpus = look()
        if gpus and _has(module, backend):
            found[backend] = gpus[0]
    return found


def _has(module: Any, backend: str) -> bool:
    config = {"backend": backend, "precision": "high", "numThread": _TUNING_BITS["none"]}
    _runtime, present = module.Interpreter.createRuntime((config,))
    return bool(present[0])


def platforms(
    short: str, backend: str, gpu: Gpu, tuning: str, memory: str, threads: int
) -> list[PlatformSpec]:
    """fp32 and fp16 on a back end. `threads`: of the CPU, for the ops that the GPU lacks."""
    common = {
        "backend": backend,
        "gpu": gpu.name,
        "driver": gpu.driver,
        "tuning": tuning,
        "cpu_threads": str(threads),
        "outputs": "copied to the host",
    }
    if backend == "OPENCL":
        common["memory"] = memory
    else:
        common["tuning"] = _VULKAN_TUNINGS.get(tuning, tuning)
    if gpu.software:
        common["software_device"] = "yes"
    return [
        PlatformSpec(
            f"mnn{short}-{backend.lower()}-{dtype}",
            "mnn",
            dtype,
            dict(common, precision=precision),
        )
        for dtype, precision in _PRECISIONS.items()
    ]


def session_config(settings: Mapping[str, str], threads: int) -> dict[str, Any]:
    """What `createSession` is given for a platform."""
    backend = settings.get("backend", "CPU")
    precision = settings.get("precision", "high")
    if backend not in BACKENDS:
        return {"backend": "CPU", "numThread": threads, "precision": precision}
    # For GPUs, the number of threads means bits that say how to tune.
    mode = _TUNING_BITS[settings["tuning"]] | _MEMORY_BITS.get(settings.get("memory", ""), 0)
    return {"backend": backend, "numThread": mode, "precision": precision}


def check(net: Any, session: Any, settings: Mapping[str, str]) -> None:
    """See that a session is on the GPU that was asked for: MNN takes the CPU without a word.

    Raises:
        RuntimeFailure: RUNTIME_MISSING.
    """
    backend = settings.get("backend", "CPU")
    if backend in BACKENDS and net.getSessionInfo(session, _BACKEND_INFO) != BACKENDS[backend]:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"MNN finds no {backend} device any more ({settings.get('gpu', 'none')}); see to its "
            "driver and restart the agent",
        )


class Output:
    """A session's output, to be fetched to the host: only that waits for a GPU."""

    def __init__(self, module: Any, tensor: Any) -> None:
        import numpy as np

        shape = tuple(int(size) for size in tensor.getShape())
        kind = tensor.getDataType()
        dtype = np.int32 if kind == module.Halide_Type_Int else np.float32
        self._tensor = tensor
        self._host = module.Tensor(
            shape, kind, np.zeros(shape, dtype), module.Tensor_DimensionType_Caffe
        )

    def fetch(self) -> None:
        """Wait for it and copy it.

        Raises:
            RuntimeFailure: MODEL_FAILED.
        """
        if not self._tensor.copyToHostTensor(self._host):
            raise RuntimeFailure("MODEL_FAILED", "MNN does not copy an output to the host")


def place(tensors: Any, settings: Mapping[str, str]) -> str:
    """Where an op ran that wrote these tensors: what the CPU computes lies in the host's memory."""
    if settings.get("backend", "CPU") not in BACKENDS:
        return "CPU"
    for tensor in tensors:
        try:
            if tensor.getHost() is not None:
                return "CPU"
        except ValueError:  # a capsule cannot hold a null pointer
            continue
    return settings.get("gpu", "GPU")


@dataclass(frozen=True)
class TuningCache:
    """What MNN found out about a model's kernels, kept so that it tunes a model once."""

    folder: Path | None

    def lend(self, job_path: Path, settings: Mapping[str, str], version: str, work: Path) -> Loan:
        """A file for MNN to read and write, in `work`, with what is known so far in it.

        MNN does not write whole files at once: the kept one is replaced when it is done.
        """
        mine = work / _FILE
        if self.folder is None or settings.get("backend", "CPU") not in BACKENDS:
            return Loan(None, mine)
        digest = hashlib.sha256(job_path.read_bytes())
        digest.update(repr((version, sorted(settings.items()))).encode())
        kept = self.folder / f"{digest.hexdigest()}.mnn-tuning"
        with contextlib.suppress(FileNotFoundError):
            mine.unlink()
        if kept.is_file():
            shutil.copyfile(str(kept), str(mine))
        return Loan(kept, mine)


@dataclass(frozen=True)
class Loan:
    """A copy of one model's tuning; `kept` None: there is nothing to keep."""

    kept: Path | None
    mine: Path

    def give(self, net: Any) -> None:
        """Tell MNN before it makes the session."""
        if self.kept is not None:
            net.setCacheFile(str(self.mine))

    def take_back(self, net: Any, session: Any) -> None:
        """Keep what MNN learnt."""
        if self.kept is None:
            return
        net.updateCacheFile(session, 0)
        if self.mine.is_file():
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            made = self.kept.with_suffix(f".{time.monotonic_ns()}")
            shutil.copyfile(str(self.mine), str(made))
            made.replace(self.kept)
