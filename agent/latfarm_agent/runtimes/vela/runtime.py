"""Vela's estimate of the latency of a TFLite model on Arm's Ethos-U NPUs.

No NPU is needed and none is timed: the result is the estimate of the compiler, which is the same
each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import io
import shutil
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.tflite_format.check import check_file
from latfarm_agent.runtimes.vela.report import VelaEstimate, read_estimate, read_operators

_OLDEST = 5  # oldest major version of Vela that gives right estimates
_KEPT = 16  # number of estimates that a worker remembers
_SHOWN = 12  # at most this many operators are named in a condition
# Parts of Vela's messages about element types and shapes that the NPU does not support.
_UNSUPPORTED = ("does not have valid tflite semantics", "could not run on npu")
_REMEDY = "install it with: pip install 'latfarm-agent[vela]'"


@dataclass(frozen=True)
class Target:
    """An NPU with its memories, described by Vela's own options.

    `config`: a file of system configurations, either one of Vela's own ("Arm/vela.ini") or a path.
    """

    accelerator: str
    system_config: str
    memory_mode: str
    config: str = "Arm/vela.ini"

    @property
    def settings(self) -> dict[str, str]:
        """All fields as settings of a platform."""
        return dict(self.__dict__)


class VelaRuntime:
    """Vela with one platform for each of `targets`; the keys are part of the platforms' names.

    These targets are the ones that Vela itself chooses for an accelerator by default. To offer the
    real configuration of a board, write a subclass with other targets and register it under an
    entry point of its own.
    """

    targets: ClassVar[Mapping[str, Target]] = {
        "ethosu65-256": Target("ethos-u65-256", "Ethos_U65_Client_Server", "Dedicated_Sram_384KB"),
        "ethosu55-128": Target("ethos-u55-128", "Ethos_U55_High_End_Embedded", "Shared_Sram"),
    }

    def __init__(self, threads: int = 1) -> None:
        del threads  # the number of the host's threads does not change the estimate
        self._known: OrderedDict[tuple[str, ...], tuple[VelaEstimate, float]] = OrderedDict()
        self._latency_ms: float | None = None

    def describe(self) -> Description:
        """Offer one platform for each target, the same on every host."""
        _, version = _import()
        short = ".".join(version.split(".")[:2])
        return Description(
            version,
            tuple(
                PlatformSpec(
                    f"vela{short}-{name}-int8",
                    "tflite",
                    "int8",
                    target.settings,
                    real_time=False,
                    whole_name=True,
                )
                for name, target in self.targets.items()
            ),
        )

    def prepare(self, job: Job) -> Prepared:
        """Compile the file, unless this worker has compiled it before.

        The latency is that of the NPU alone; the conditions name the operators that stay on the
        CPU. `compile_ms` is the time that the compilation took.
        """
        self._latency_ms = None
        estimate, compile_ms = self._estimate(job)
        self._latency_ms = estimate.latency_ms
        conditions = {"latency_of": "NPU, estimated by its compiler"}
        if estimate.on_cpu:
            conditions["latency_of"] = "NPU alone, estimated by its compiler"
            conditions["on_cpu"] = _listed(estimate.on_cpu)
        return Prepared(
            compile_ms=compile_ms,
            cpu_clock="none",
            flush=_nothing,
            settles=False,
            conditions=conditions,
        )

    def run(self) -> float | None:
        """Return the estimated latency of the network in milliseconds."""
        if self._latency_ms is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        return self._latency_ms

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the NPU's operations, named after the operators that they cover.

        Operators that stay on the CPU have the device "cpu" and the time 0. Operators that cost
        nothing on the NPU have no row.
        """
        del runs
        return self._estimate(job)[0].layers

    def _estimate(self, job: Job) -> tuple[VelaEstimate, float]:
        """Return Vela's estimate, and the milliseconds that the compilation took.

        Raises:
            RuntimeFailure: Vela cannot compile the file, or nothing of it runs on the NPU.
        """
        target = Target(**job.settings)
        digest = hashlib.sha256(job.model_path.read_bytes()).hexdigest()
        key = (digest, *job.settings.values())
        if key not in self._known:
            check_file(job.model_path)
            operators = read_operators(job.model_path)
            begun = time.perf_counter()
            summary, database = _compile(job.model_path, target, job.scratch_dir)
            compile_ms = (time.perf_counter() - begun) * 1e3
            estimate = read_estimate(summary, database, operators, target.accelerator)
            self._known[key] = estimate, compile_ms
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        estimate, compile_ms = self._known[key]
        if estimate.latency_ms <= 0:
            stays = f"; on the CPU: {_listed(estimate.on_cpu)}" if estimate.on_cpu else ""
            raise RuntimeFailure("MODEL_UNSUPPORTED", f"nothing of it runs on the NPU{stays}")
        return estimate, compile_ms


def _import() -> tuple[Any, str]:
    """Return Vela's module and its version."""
    try:
        vela = importlib.import_module("ethosu.vela.vela")
        version = importlib.metadata.version("ethos-u-vela")
    except ImportError as error:  # also PackageNotFoundError, which is an ImportError
        raise RuntimeFailure(
            "RUNTIME_MISSING", f"ethos-u-vela cannot be imported ({error}); {_REMEDY}"
        ) from error
    if int(version.split(".")[0]) < _OLDEST:
        # Earlier versions count fused activations twice, or use another compiler.
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"ethos-u-vela {version} is too old, version {_OLDEST}.0 or newer is needed; {_REMEDY}",
        )
    return vela, version


def _compile(path: Path, target: Target, scratch_dir: Path) -> tuple[str, str]:
    """Compile a file with Vela; return the texts of its summary and its debug database.

    Raises:
        RuntimeFailure: Vela does not accept the file.
    """
    vela, _ = _import()
    folder = Path(tempfile.mkdtemp(prefix="vela-", dir=str(scratch_dir)))
    printed = io.StringIO()
    try:
        network = folder / "model.tflite"  # Vela names its results after this file
        network.symlink_to(path.absolute())
        arguments = [
            str(network),
            f"--output-dir={folder}",
            f"--accelerator-config={target.accelerator}",
            f"--config={target.config}",
            f"--system-config={target.system_config}",
            f"--memory-mode={target.memory_mode}",
            "--enable-debug-db",
        ]
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                status = vela.main(arguments)
        except SystemExit as error:
            status = error.code or 1
        except Exception as error:
            raise _failure(error) from error
        if status:
            said = _line(printed.getvalue())
            raise RuntimeFailure(
                "MODEL_FAILED", f"Vela ended with status {status}" + (f": {said}" if said else "")
            )
        summary = folder / f"model_summary_{target.system_config}.csv"
        database = folder / "model_debug.xml"
        try:
            return summary.read_text(encoding="utf-8"), database.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise RuntimeFailure("MODEL_FAILED", "Vela left no report") from error
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


def _failure(error: Exception) -> RuntimeFailure:
    """Turn an exception of Vela into a typed failure with a message of one line."""
    errors: Any = importlib.import_module("ethosu.vela.errors")
    message = _line(str(getattr(error, "error_msg", "") or error)) or type(error).__name__
    low = message.lower()
    code = "MODEL_FAILED"
    if isinstance(error, MemoryError) or "bad_alloc" in low:
        code = "OUT_OF_MEMORY"
    elif isinstance(error, (errors.ConfigOptionError, errors.CliOptionError)):
        code = "RUNTIME_MISSING"
    elif isinstance(error, errors.UnsupportedFeatureError) or any(
        sign in low for sign in _UNSUPPORTED
    ):
        code = "MODEL_UNSUPPORTED"
    elif isinstance(error, errors.InputFileError):
        code = "MODEL_INVALID"
    return RuntimeFailure(code, f"Vela: {message}")


def _line(text: str) -> str:
    return " ".join(text.split())[:600]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _nothing() -> None:
    """Do nothing: an estimate has no caches that could be flushed."""
