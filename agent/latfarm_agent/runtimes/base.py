"""The interface of a runtime: it can `describe` itself, `prepare`, `run` and `profile` a model.

A runtime lives in a worker process of its own. Only runtimes may import numpy and the vendors'
libraries, and only inside their methods, never when their module is imported. The agent finds
runtimes through the entry-point group `latfarm_agent.runtimes`. A runtime that cannot be used on a
board raises `RuntimeFailure` with code `RUNTIME_MISSING`, the reason and the remedy; the other
runtimes go on working.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Protocol, Sequence, cast

ENTRY_POINT_GROUP = "latfarm_agent.runtimes"


class RuntimeFailure(Exception):
    """A runtime cannot do what was asked; `code` says in which way, `message` says why.

    Codes: MODEL_INVALID (the file is not a model of this format, or its inputs cannot be filled),
    MODEL_UNSUPPORTED (the runtime lacks an op or a format version), MODEL_FAILED (the model loads
    and then fails when it runs), OUT_OF_MEMORY, PROFILE_UNAVAILABLE, ENERGY_UNAVAILABLE,
    RUNTIME_MISSING, SETTINGS_INVALID, THROTTLED. Where the model runs on a driven board, also
    MODEL_CRASHED, DEVICE_LOST, DEVICE_FAILED and DISK_FULL; the last three are no fault of the
    model.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class PlatformSpec:
    """One platform that a runtime offers: one way to run models, of which latency is a property.

    `name`: the part of the platform's name behind the name of the hardware, for example
    "onnxruntime1.31-fp32-1t"; the whole name where `whole_name` is True. `model_format`: the format
    of the files that it runs. `settings`: everything else that changes a latency. `real_time`:
    False where time is simulated, so that the load of the host cannot disturb it.
    """

    name: str
    model_format: str
    dtype: str
    settings: Mapping[str, str] = field(default_factory=dict)
    real_time: bool = True
    whole_name: bool = False


@dataclass(frozen=True)
class Description:
    """A runtime that is present: its version and the platforms that it offers.

    `lacking`: one text for each platform that the configuration asks for and that cannot be
    offered, with the reason and the remedy.
    """

    version: str
    platforms: tuple[PlatformSpec, ...]
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One fresh session that a runtime has to prepare.

    The runtime may write to `scratch_dir`. `session` counts the sessions of one request from 0;
    `sequence` counts the requests of this board since its agent started. `companions` are the names
    of files that were uploaded with the model and lie in its folder; most models have none.
    """

    model_path: Path
    settings: Mapping[str, str]
    dtype: str
    scratch_dir: Path
    request_id: str = ""
    session: int = 0
    sequence: int = 0
    companions: tuple[str, ...] = ()


class EnergyAccount(Protocol):
    """The energy that a board consumes, counted by the runtime itself.

    A runtime needs one where the power rails of the host do not show what the board consumes: on a
    simulated board, and possibly on a phone or a module that a host drives. Any method may raise
    `RuntimeFailure` with code ENERGY_UNAVAILABLE and the reason, for example that the phone is
    charging; the measurement then stays valid and has no energy.
    """

    @property
    def source(self) -> str:
        """Name of the power rail."""
        ...

    @property
    def step_mj(self) -> float:
        """Resolution of `energy_mj` in millijoules; 0 where it is not known."""
        ...

    @property
    def lag_ms(self) -> float:
        """Milliseconds by which `energy_mj` lags behind, or over which it averages."""
        ...

    def now_s(self) -> float:
        """The account's own clock in seconds; it never goes back, and it advances during `run`."""
        ...

    def energy_mj(self) -> float:
        """Millijoules that the board has consumed since some fixed moment, rest included."""
        ...

    def rest(self, rest_ms: float) -> None:
        """Let the board rest for `rest_ms` milliseconds by the account's own clock."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to run, and how it has to be measured.

    Attributes:
        compile_ms: time that compiling took; 0 where it cannot be separated from loading.
        cpu_clock: which CPU time a run consumes, so that a preempted run can be recognised:
            "thread" (the run computes in the calling thread alone), "process" (in other threads
            too), "none" (an accelerator, or simulated time: no run is ever rejected).
        flush: a function that makes the next run a cold one; None: the measuring loop flushes the
            host's caches itself.
        settles: False where warming up for a time is pointless, as time is simulated.
        whole_calls: True where each run is a process of its own that loads, warms up and repeats
            the model before it prints a latency. The measuring loop then does not warm up, and the
            time of a session is the time of its calls.
        probe: work of a fixed length and of the same kind as the model's, which is timed beside the
            runs; None: a plain loop.
        probe_us: tells the probe's time in microseconds by the runtime's own clock, where time is
            not the host's; None: the measuring loop times `probe`.
        clock_mhz: clock of what computes, if the runtime itself knows it; 0: sensors are read.
        conditions: more facts about the result, for example that part of the model is left out.
        energy: the runtime's own count of energy; None: the power rails of the board are read,
            where it has any.
        device_memory_bytes: memory of its own that an accelerator gave to the model, as far as the
            runtime tells it; 0: it does not, or what computes shares the memory of the host.
    """

    compile_ms: float = 0.0
    cpu_clock: str = "thread"
    flush: Callable[[], None] | None = None
    settles: bool = True
    whole_calls: bool = False
    probe: Callable[[], None] | None = None
    probe_us: Callable[[], float] | None = None
    clock_mhz: float = 0.0
    conditions: Mapping[str, str] = field(default_factory=dict)
    energy: EnergyAccount | None = None
    device_memory_bytes: int = 0


@dataclass(frozen=True)
class LayerTime:
    """The time of one kernel as the runtime executed it.

    `name` and `op` join the names and the types of fused nodes with "+", for example "Conv+Relu".
    `device`: where the kernel ran, empty where the runtime does not say.
    """

    name: str
    op: str
    latency_ms: float
    device: str = ""


class Runtime(Protocol):
    """The interface that every runtime implements: one instance per worker, used from one thread.

    Every method may raise `RuntimeFailure`. A MemoryError counts as OUT_OF_MEMORY, any other
    exception as MODEL_FAILED. The agent handles a crash or a hang of the worker process; a runtime
    does not have to.
    """

    def describe(self) -> Description:
        """Return the version and the platforms; imports the vendor's library.

        Raises:
            RuntimeFailure: RUNTIME_MISSING, with the reason and the remedy.
        """
        ...

    def prepare(self, job: Job) -> Prepared:
        """Load a model into a fresh session and fill its inputs; drops the previous session."""
        ...

    def run(self) -> float | None:
        """Run the prepared model once, to its end.

        Returns None where the caller has to time the run, otherwise the latency in milliseconds by
        the runtime's own clock.
        """
        ...

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the kernels of a fresh session over `runs` runs, in execution order.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE where the runtime has no profiler.
        """
        ...


def discover() -> dict[str, str]:
    """Return the registered runtimes as name -> "module:Class"; no runtime is imported."""
    import importlib.metadata  # slow to import, and worker processes do not need it

    found: Any = importlib.metadata.entry_points()
    if sys.version_info >= (3, 10):
        chosen: list[Any] = list(found.select(group=ENTRY_POINT_GROUP))
    else:
        chosen = list(found.get(ENTRY_POINT_GROUP, ()))
    return {point.name: point.value for point in sorted(chosen, key=lambda point: str(point.name))}


def load(reference: str, options: Mapping[str, Any], cache_dir: str = "") -> Runtime:
    """Instantiate the runtime that `reference` ("module:Class") names.

    The class is called with `options` as keyword arguments: "threads" for every runtime, the
    options of the agent's configuration file, and "profile" for a simulated board. A class with the
    attribute `wants_cache_dir = True` also gets `cache_dir`, unless the options already have it: a
    folder of the runtime's own that outlives the agent. The runtime makes the folder when it needs
    it.

    Raises:
        RuntimeFailure: RUNTIME_MISSING when the module or class cannot be imported, or refuses an
            option.
    """
    module_name, _, class_name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
        given = dict(options)
        if cache_dir and getattr(found, "wants_cache_dir", False):
            given.setdefault("cache_dir", cache_dir)
        made = found(**given)
    except RuntimeFailure:
        raise
    except Exception as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING", f"{reference} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return cast("Runtime", made)
