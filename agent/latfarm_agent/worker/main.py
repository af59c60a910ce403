"""The worker process: one runtime that serves requests of the agent over a pipe.

`worker.Worker` starts it as `python -m latfarm_agent.worker.main CONFIG`. Everything that a runtime
prints goes to standard error, never into the pipe.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Callable, Sequence

from latfarm_agent.runtimes import base
from latfarm_agent.runtimes.base import Job, Prepared, Runtime, RuntimeFailure
from latfarm_agent.worker import channel, keeper, replies, rules
from latfarm_agent.worker.caches import CacheFlusher, last_level_bytes
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.measure import LoopWatch, SessionTimes, measure_session, profile
from latfarm_agent.worker.measure_energy import run_for_energy
from latfarm_agent.worker.surroundings import Surroundings


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told when it starts.

    Attributes:
        runtime: its runtime, "module:Class".
        agent_pid: process id of the agent.
        options: keyword arguments of the runtime's class.
        search_path: folders added to the module search path.
        cpus: cores to pin the process to; empty: those of the agent.
        memory_bytes: bound of private memory; 0: none.
        file_bytes: bound of the size of each file that it writes; 0: none.
        nice: its priority; the agent's is kept where this one is refused.
        describe_threads: for which numbers of threads to describe the platforms; empty: for the
            number in `options`.
        cache_dir: folder that outlives the worker; see `base.load`.
    """

    runtime: str
    agent_pid: int
    options: dict[str, Any]
    search_path: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 0
    file_bytes: int = 0
    nice: int = 0
    describe_threads: tuple[int, ...] = ()
    cache_dir: str = ""

    def dumps(self) -> str:
        """The configuration as one command line argument."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> WorkerConfig:
        """The configuration from the text that `dumps` made."""
        data = json.loads(text)
        for name in ("search_path", "cpus", "describe_threads"):
            data[name] = tuple(data[name])
        return WorkerConfig(**data)


def main(arguments: Sequence[str]) -> int:
    """Serve requests until the pipe is closed; gives the exit code."""
    config = WorkerConfig.loads(arguments[0])
    _limit(resource.RLIMIT_CORE, 0)  # core dumps of crashed runtimes would fill a board's disk
    keeper.fork_under_keeper(config.agent_pid)
    keeper.leave_shared_memory()
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel should kill this process, not the agent.
        Path("/proc/self/oom_score_adj").write_text("1000")
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    if config.memory_bytes:
        # RLIMIT_DATA counts private writable memory; RLIMIT_AS would count reservations as well.
        _limit(resource.RLIMIT_DATA, config.memory_bytes)
    if config.file_bytes:
        _limit(resource.RLIMIT_FSIZE, config.file_bytes)
    if config.nice:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, config.nice)
    if config.cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, config.cpus)
    sys.path[:0] = list(config.search_path)
    server = _RequestServer(config, lambda message: channel.send(replies, message))
    server.start()
    while True:
        request = channel.receive(requests)
        if request is None:
            return 0
        server.handle(request)


class _RequestServer:
    """Handles requests one after another; each ends in exactly one "done" or "error" event."""

    def __init__(self, config: WorkerConfig, send: Callable[[Message], None]) -> None:
        self._config = config
        self._write = send
        self._pid = os.getpid()
        self._question = 0
        self._surroundings = Surroundings()
        self._runtime: Runtime | None = None
        core = config.cpus[0] if config.cpus else 0
        self._flusher = CacheFlusher(last_level_bytes(core))

    def start(self) -> None:
        """Load the runtime, and tell what it offers or why it is missing."""

        def load() -> Message:
            self._runtime = self._load(self._config.options)
            version, platforms, lacking = self._offers(self._runtime)
            return {
                "version": version,
                "platforms": platforms,
                "lacking": lacking,
                "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
                "rss_bytes": _status_bytes("VmRSS"),
            }

        self._answer(load, unexpected="RUNTIME_MISSING")
        # Imported objects stay alive: collections before each session need not visit them again.
        gc.collect()
        gc.freeze()

    def _load(self, options: dict[str, Any]) -> Runtime:
        return base.load(self._config.runtime, options, self._config.cache_dir)

    def _offers(self, runtime: Runtime) -> tuple[str, list[Message], str]:
        """Version, platforms, and why platforms of the configuration are missing.

        A platform is listed for each number of threads, unless its name does not depend on it.
        """
        version = ""
        lacking: dict[str, None] = {}
        offers: dict[str, Message] = {}
        own = int(self._config.options.get("threads", 1))
        for threads in self._config.describe_threads or (own,):
            if threads != own:
                runtime = self._load(dict(self._config.options, threads=threads))
            found = runtime.describe()
            version = found.version
            lacking.update(dict.fromkeys(found.lacking))
            for platform in found.platforms:
                offers.setdefault(platform.name, dict(asdict(platform), threads=threads))
        return version, list(offers.values()), "; ".join(lacking)

    def handle(self, request: Message) -> None:
        """Measure, or profile and measure, as the request says."""
        self._question = int(request["question"])
        self._answer(lambda: self._measure(request), unexpected="MODEL_FAILED")

    def _answer(self, work: Callable[[], Message], unexpected: str) -> None:
        try:
            reply = dict(work(), event="done")
            channel.encode(reply)  # a value that JSON lacks is an error of the runtime
        except RuntimeFailure as failure:
            reply = _error(replies.failure_code(failure.code), failure.message)
        except MemoryError:
            reply = _error("OUT_OF_MEMORY", "memory ran out")
        except Exception as error:
            # Any other exception is the runtime's answer about this model; the worker goes on.
            message = f"{type(error).__name__}: {error}"
            reply = _error("OUT_OF_MEMORY" if "bad_alloc" in message else unexpected, message)
        self._send(dict(reply, lost=self._surroundings.restore()))

    def _measure(self, request: Message) -> Message:
        runtime = self._runtime
        if runtime is None:
            raise RuntimeFailure("RUNTIME_MISSING", f"{self._config.runtime} did not load")
        settings = rules.TimingSettings.from_json(request["settings"])
        watch = LoopWatch(stage=self._stage, beat=self._beat, flush=self._flusher.flush)
        _reset_peak()
        before = resource.getrusage(resource.RUSAGE_SELF)
        sessions: list[SessionTimes] = []
        energy: Message = {}
        fastest_us = float(request["fastest_us"])
        last = settings.sessions - 1

        def run_longer(prepared: Prepared) -> None:
            # It would be useless if neither a rail of the board nor the runtime tells the energy.
            if settings.energy_ms and (request.get("rail") or prepared.energy is not None):
                energy.update(run_for_energy(runtime, prepared, last, settings, watch))

        for index in range(settings.sessions):
            job = _job(request, index)
            longer = run_longer if index == last else None
            sessions.append(measure_session(runtime, job, settings, watch, fastest_us, longer))
            fastest_us = sessions[-1].fastest_us
        layers = []
        if request["profile"]:
            run_ms = median(run for session in sessions for run in session.runs_ms)
            layers = profile(runtime, _job(request, 0), run_ms, settings, watch)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return {
            "cpus": cores,
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "sessions": [session.to_json() for session in sessions],
            "layers": [asdict(layer) for layer in layers],
            "peak_bytes": max(0, _status_bytes("VmHWM") - self._flusher.size_bytes),
            "rss_bytes": _status_bytes("VmRSS"),
            "switches": after.ru_nivcsw - before.ru_nivcsw,
            "energy": energy,
        }

    def _stage(self, name: str, session: int, patience_ms: float) -> None:
        self._send({"event": "stage", "name": name, "session": session, "patience_ms": patience_ms})

    def _send(self, message: Message) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a process that a runtime forked and that returned into this loop
        self._write(dict(message, to=self._question))

    def _beat(self) -> None:
        self._send({"event": "beat"})


def _job(request: Message, session: int) -> Job:
    return Job(
        model_path=Path(request["model_path"]),
        settings=request["platform_settings"],
        dtype=request["dtype"],
        scratch_dir=Path(request["scratch_dir"]),
        request_id=request["request_id"],
        session=session,
        sequence=request["sequence"],
    )


def _error(code: str, message: str) -> Message:
    return {"event": "error", "code": code, "message": replies.printable(message)}


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (bound, bound))


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
