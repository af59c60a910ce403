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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from latfarm_agent.confinement import cgroups
from latfarm_agent.confinement.confine import WorkerGround, confine
from latfarm_agent.confinement.plan import END, OFF, ON, Confinement
from latfarm_agent.runtimes import base
from latfarm_agent.runtimes.base import Runtime, RuntimeFailure
from latfarm_agent.runtimes.onnx.outside import check_self_contained
from latfarm_agent.worker import channel, keeper, replies, rules
from latfarm_agent.worker.caches import CacheFlusher, last_level_bytes
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.measure import LoopWatch
from latfarm_agent.worker.request import measure_request
from latfarm_agent.worker.surroundings import Surroundings

ONNX = "onnx"
"""The model format whose files are checked for references to files that were not uploaded."""


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
        models_dir: folder in which its models lie, which it may only read.
        tasks: most processes and threads that it may add to those of its user; 0: no bound.
        confinement: what the kernel keeps from it.
        group: folder of the control group that it joins; empty: `no_group` says why it has none.
        no_group: why it has no control group.
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
    models_dir: str = ""
    tasks: int = 0
    confinement: Confinement = field(default_factory=Confinement)
    group: str = ""
    no_group: str = ""

    def dumps(self) -> str:
        """The configuration as one command line argument."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> WorkerConfig:
        """The configuration from the text that `dumps` made."""
        data = json.loads(text)
        for name in ("search_path", "cpus", "describe_threads"):
            data[name] = tuple(data[name])
        data["confinement"] = Confinement.from_json(data["confinement"])
        return WorkerConfig(**data)


def main(arguments: Sequence[str]) -> int:
    """Serve requests until the pipe is closed; gives the exit code."""
    config = WorkerConfig.loads(arguments[0])
    _limit(resource.RLIMIT_CORE, 0)  # core dumps of crashed runtimes would fill a board's disk
    keeper.fork_under_keeper(config.agent_pid, config.group)
    end = _join_group(config)
    own_ipc = keeper.leave_shared_memory()
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
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, 0, config.nice)
            # So that the priority can be put back after a model, without privileges.
            raised = 20 - config.nice
            resource.setrlimit(resource.RLIMIT_NICE, (raised, raised))
    if config.cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, config.cpus)
    sys.path[:0] = list(config.search_path)
    peak = _open_peak()
    protection = {END: end, **_confine(config, own_ipc)}
    server = _RequestServer(config, lambda message: channel.send(replies, message), peak)
    server.start(protection)
    while True:
        request = channel.receive(requests)
        if request is None:
            return 0
        server.handle(request)


class _RequestServer:
    """Handles requests one after another; each ends in exactly one "done" or "error" event."""

    def __init__(
        self, config: WorkerConfig, send: Callable[[Message], None], peak: int | None
    ) -> None:
        self._config = config
        self._write = send
        self._peak = peak
        self._pid = os.getpid()
        self._question = 0
        self._surroundings = Surroundings()
        self._runtime: Runtime | None = None
        core = config.cpus[0] if config.cpus else 0
        self._flusher = CacheFlusher(last_level_bytes(core))

    def start(self, protection: Mapping[str, str]) -> None:
        """Load the runtime, and tell what it offers or why it is missing, and the protections."""

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
                "protection": dict(protection),
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
        if request["model_format"] == ONNX:
            check_self_contained(Path(request["model_path"]), request["companions"])
        watch = LoopWatch(stage=self._stage, beat=self._beat, flush=self._flusher.flush)
        self._reset_peak()
        before = resource.getrusage(resource.RUSAGE_SELF)
        answer = measure_request(runtime, request, settings, watch)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return {
            **answer,
            "cpus": cores,
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "peak_bytes": max(0, _status_bytes("VmHWM") - self._flusher.size_bytes),
            "rss_bytes": _status_bytes("VmRSS"),
            "switches": after.ru_nivcsw - before.ru_nivcsw,
        }

    def _reset_peak(self) -> None:
        if self._peak is not None:
            with contextlib.suppress(OSError):
                os.write(self._peak, b"5")

    def _stage(self, name: str, session: int, patience_ms: float) -> None:
        self._send({"event": "stage", "name": name, "session": session, "patience_ms": patience_ms})

    def _send(self, message: Message) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a process that a runtime forked and that returned into this loop
        self._write(dict(message, to=self._question))

    def _beat(self) -> None:
        self._send({"event": "beat"})


def _error(code: str, message: str) -> Message:
    return {"event": "error", "code": code, "message": replies.printable(message)}


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (bound, bound))


def _open_peak() -> int | None:
    """Open what resets this process's peak of memory, as a confined process cannot open it."""
    try:
        return os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _join_group(config: WorkerConfig) -> str:
    """Join the control group; gives what is told about the end of what this process starts."""
    keeps = "the keeper is its subreaper"
    if not keeper.is_subreaper():
        return f"{OFF}: this system has no subreapers; its process group is ended"
    if not config.group:
        return f"{ON}: {keeps}; {config.no_group}" if config.no_group else f"{ON}: {keeps}"
    try:
        cgroups.join(Path(config.group))
    except OSError as error:
        return f"{ON}: {keeps}; the control group cannot be joined: {error.strerror}"
    return f"{ON}: control group, and {keeps}"


def _confine(config: WorkerConfig, own_ipc: bool) -> dict[str, str]:
    folders = [Path.cwd()]
    if config.cache_dir:
        cache = Path(config.cache_dir)
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
        folders.append(cache)
    ground = WorkerGround(
        folders=tuple(folders),
        models=Path(config.models_dir) if config.models_dir else None,
        options=config.options,
        search_path=config.search_path,
        memory_bytes=config.memory_bytes,
        tasks=config.tasks,
        own_ipc=own_ipc,
    )
    told = confine(config.confinement, ground)
    if config.cache_dir and config.confinement.enabled and not config.confinement.ports:
        # Drivers keep caches in the home, which is closed.
        os.environ["HOME"] = config.cache_dir
    return told


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
