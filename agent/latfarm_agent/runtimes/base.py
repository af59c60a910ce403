"""What a runtime is: four verbs. `prepare` a model, `run` it once, `profile` it, `describe` itself.

A runtime lives in a worker process of its own and is the only place of the agent where numpy and a
vendor's library may be imported: inside its methods, never when its module is imported. It is found
through the entry-point group `latfarm_agent.runtimes`; one that cannot be used on a board says why
and how to get it (`RuntimeFailure` with code `RUNTIME_MISSING`) and takes nothing else down.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Protocol, Sequence, cast

ENTRY_POINT_GROUP = "latfarm_agent.runtimes"


class RuntimeFailure(Exception):
    """A runtime's typed answer that it cannot do what was asked.

    Codes: MODEL_INVALID (not a model of this format, or its inputs cannot be filled),
    MODEL_UNSUPPORTED (an op or a format version that the runtime lacks), MODEL_FAILED (it loads and
    then fails when run), OUT_OF_MEMORY, PROFILE_UNAVAILABLE, ENERGY_UNAVAILABLE, RUNTIME_MISSING,
    SETTINGS_INVALID, THROTTLED. Where the model runs on a board that this host only drives, also
    MODEL_CRASHED, DEVICE_LOST, DEVICE_FAILED and DISK_FULL: the last three are not the model's.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class PlatformSpec:
    """One way to run models here. Latencies are a property of a platform.

    `name` is the part after the hardware's name ("onnxruntime1.31-fp32-1t"), or the whole name
    where `whole_name` is set. `real_time`: False where time is simulated and the host's load cannot
    disturb it.
    """

    name: str
    model_format: str
    dtype: str
    settings: Mapping[str, str] = field(default_factory=dict)
    real_time: bool = True
    whole_name: bool = False


@dataclass(frozen=True)
class Description:
    """A runtime that is present: its version and the platforms it offers.

    `lacking`: of each platform that was asked for and cannot be offered, why, and the remedy.
    """

    version: str
    platforms: tuple[PlatformSpec, ...]
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One fresh session to prepare.

    `scratch_dir` may be written to. `session` counts the sessions of one request from 0, `sequence`
    the requests of this board since its agent started; both matter to simulated boards alone.
    """

    model_path: Path
    settings: Mapping[str, str]
    dtype: str
    scratch_dir: Path
    request_id: str = ""
    session: int = 0
    sequence: int = 0


class EnergyAccount(Protocol):
    """A runtime's own account of what its board takes, where the host's rails see none of it.

    A simulated board keeps one; so may a phone or a module that is measured from a host. Any method
    may raise `RuntimeFailure` with code ENERGY_UNAVAILABLE and the reason (the phone is charging):
    the measurement stays good and has no energy.

    `source` names the rail; `step_mj`: its resolution, 0 where it is not known; `lag_ms`: for how
    long it goes on telling of what was before.
    """

    @property
    def source(self) -> str:
        """Name of the rail."""
        ...

    @property
    def step_mj(self) -> float:
        """Resolution of `energy_mj`."""
        ...

    @property
    def lag_ms(self) -> float:
        """How far `energy_mj` lags behind, or averages back."""
        ...

    def now_s(self) -> float:
        """The account's own clock; it only grows, and passes while `run` runs."""
        ...

    def energy_mj(self) -> float:
        """What the board has taken since some start, rest included."""
        ...

    def rest(self, rest_ms: float) -> None:
        """Let the board rest for so long by that clock."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to run.

    `cpu_clock`: whose CPU time a run consumes, so that a preempted run can be told: "thread" (it
    computes in the calling thread), "process" (in other threads too), "none" (an accelerator, or
    simulated time: no run is ever rejected). `compile_ms`: 0 where it cannot be told from loading.
    `flush`: makes the next run a cold one; None: the host's caches are flushed by the protocol.
    `settles`: False where warming up for a time is pointless (simulated time). `whole_calls`: each
    run is a process of its own that loads, warms up and repeats the model before it tells a
    latency: the protocol then warms nothing up, and a session's time is that of its calls.
    `probe`: work of a fixed length and of the model's kind, to be timed beside its runs; None: a
    plain loop.
    `conditions`: what else to say of the result (that part of the model is left out of its time).
    `energy`: the runtime's own account; None: the board's power rails tell, where it has any.
    """

    compile_ms: float = 0.0
    cpu_clock: str = "thread"
    flush: Callable[[], None] | None = None
    settles: bool = True
    whole_calls: bool = False
    probe: Callable[[], None] | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)
    energy: EnergyAccount | None = None


@dataclass(frozen=True)
class LayerTime:
    """One kernel as the runtime executed it; `op` joins fused ops with "+": "Conv+Relu"."""

    name: str
    op: str
    latency_ms: float
    device: str = ""


class Runtime(Protocol):
    """A runtime under measurement: one instance per worker process, used from one thread.

    Every method may raise `RuntimeFailure`; any other exception counts as MODEL_FAILED, MemoryError
    as OUT_OF_MEMORY. A crash or hang is the worker's business, not the runtime's.
    """

    def describe(self) -> Description:
        """Version and platforms; imports the vendor's library.

        Raises:
            RuntimeFailure: RUNTIME_MISSING, with the reason and the remedy.
        """
        ...

    def prepare(self, job: Job) -> Prepared:
        """Load a model into a fresh session and fill its inputs; drops the session before."""
        ...

    def run(self) -> float | None:
        """Run the prepared model once, to its end.

        Returns None where the caller's clock tells the latency, else the latency in milliseconds
        by the runtime's own clock.
        """
        ...

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Per-kernel times of a fresh session over `runs` runs, in execution order.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE where the runtime has no profiler to ask.
        """
        ...


def discover() -> dict[str, str]:
    """Registered runtimes: name -> "module:Class", nothing imported."""
    import importlib.metadata  # slow to import, and workers never discover

    found: Any = importlib.metadata.entry_points()
    if sys.version_info >= (3, 10):
        chosen: list[Any] = list(found.select(group=ENTRY_POINT_GROUP))
    else:
        chosen = list(found.get(ENTRY_POINT_GROUP, ()))
    return {point.name: point.value for point in sorted(chosen, key=lambda point: str(point.name))}


def load(reference: str, options: Mapping[str, Any], cache_dir: str = "") -> Runtime:
    """Instantiate the runtime that `reference` ("module:Class") names.

    A class is called with `options` as keyword arguments: "threads" for all, the board's own from
    the agent's configuration file, "profile" for a simulated board. One with an attribute
    `wants_cache_dir = True` is given `cache_dir` too (unless the options name another): a folder of
    its own that outlives the agent, made by the runtime when it needs it.

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
