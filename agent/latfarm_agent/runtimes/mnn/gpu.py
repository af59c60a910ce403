"""MNN on GPUs by OpenCL and Vulkan: which GPUs exist, how to make a session, where ops ran.

The published package is built for CPUs alone. MNN's own build script makes one with GPUs
(`build_deps.py opencl,vulkan` in its folder pymnn/pip_package). MNN uses the first GPU of the first
OpenCL platform, and the first Vulkan device; its Python package cannot choose another one.
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
"""Names of MNN's GPU back ends -> their numbers in MNN (MNNForwardType)."""

TUNINGS = ("wide", "none", "fast", "normal", "heavy")
"""How thoroughly MNN searches for fast kernels; "wide" is MNN's own default."""
MEMORIES = ("buffer", "image")
"""The kind of OpenCL memory that holds tensors."""

_TUNING_BITS = {"none": 1, "heavy": 2, "wide": 4, "normal": 8, "fast": 16}  # MNNGpuMode
_MEMORY_BITS = {"buffer": 64, "image": 128}  # MNNGpuMode
# MNN's Vulkan back end has three of the tunings. It treats "fast" and "normal" as these two.
_VULKAN_TUNINGS = {"fast": "none", "normal": "wide"}
_PRECISIONS = {"fp32": "high", "fp16": "low"}
_BACKEND_INFO = 2  # code of getSessionInfo for the back end that a session runs on
_FILE = "tuned"  # name of the file that MNN reads and writes in the scratch folder


def devices(module: Any) -> dict[str, Gpu]:
    """Return the GPU back ends that this MNN has and for which the system has a device."""
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
    """Return the platforms of a back end: fp32 and fp16.

    Args:
        short: version of MNN for the names of the platforms.
        backend: one of `BACKENDS`.
        gpu: the GPU that the back end uses.
        tuning: one of `TUNINGS`.
        memory: one of `MEMORIES`; only OpenCL uses it.
        threads: threads of the CPU, for the ops that the back end lacks.
    """
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
    """Return the configuration that MNN's `createSession` needs for a platform."""
    backend = settings.get("backend", "CPU")
    precision = settings.get("precision", "high")
    if backend not in BACKENDS:
        return {"backend": "CPU", "numThread": threads, "precision": precision}
    # On GPUs, MNN reads numThread as the bits of an MNNGpuMode.
    mode = _TUNING_BITS[settings["tuning"]] | _MEMORY_BITS.get(settings.get("memory", ""), 0)
    return {"backend": backend, "numThread": mode, "precision": precision}


def check(net: Any, session: Any, settings: Mapping[str, str]) -> None:
    """Check that a session runs on the GPU of its platform; MNN falls back to the CPU silently.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if it runs on the CPU.
    """
    backend = settings.get("backend", "CPU")
    if backend in BACKENDS and net.getSessionInfo(session, _BACKEND_INFO) != BACKENDS[backend]:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"MNN finds no {backend} device any more ({settings.get('gpu', 'none')}); check its "
            "driver and restart the agent",
        )


class Output:
    """An output of a session. Copying it to the host is the only call that waits for a GPU."""

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
        """Wait for the output and copy it to the host.

        Raises:
            RuntimeFailure: MODEL_FAILED if MNN does not copy it.
        """
        if not self._tensor.copyToHostTensor(self._host):
            raise RuntimeFailure("MODEL_FAILED", "MNN does not copy an output to the host")


def place(tensors: Any, settings: Mapping[str, str]) -> str:
    """Return where the op ran that wrote these tensors: the name of the GPU, or "CPU".

    What the CPU computes lies in the host's memory.
    """
    if settings.get("backend", "CPU") not in BACKENDS:
        return "CPU"
    for tensor in tensors:
        try:
            if tensor.getHost() is not None:
                return "CPU"
        except ValueError:  # MNN's binding fails to return a null pointer, which GPU tensors have
            continue
    return settings.get("gpu", "GPU")


@dataclass(frozen=True)
class TuningCache:
    """Keeps the results of MNN's tuning, so that MNN tunes each model only once.

    `folder`: where the results are kept; None: nowhere.
    """

    folder: Path | None

    def lend(self, job_path: Path, settings: Mapping[str, str], version: str, work: Path) -> Loan:
        """Copy the known results about a model to a file in `work` that MNN may read and write.

        MNN does not write the file in one step, so it never gets the kept file itself.
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
    """A copy of the tuning results of one model.

    `kept`: the file in the cache; None: nothing is kept. `mine`: the copy that MNN uses.
    """

    kept: Path | None
    mine: Path

    def give(self, net: Any) -> None:
        """Name the copy to MNN; call this before the session is made."""
        if self.kept is not None:
            net.setCacheFile(str(self.mine))

    def take_back(self, net: Any, session: Any) -> None:
        """Replace the file in the cache by what MNN has found."""
        if self.kept is None:
            return
        net.updateCacheFile(session, 0)
        if self.mine.is_file():
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            made = self.kept.with_suffix(f".{time.monotonic_ns()}")
            shutil.copyfile(str(self.mine), str(made))
            made.replace(self.kept)
