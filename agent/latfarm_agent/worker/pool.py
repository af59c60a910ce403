"""The workers of a board: one process for each runtime, started when needed, replaced when worn.

A worker has one number of threads, because libraries keep the thread pools that they have made. For
another number of threads, the worker ends and another one is started.
"""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Mapping, Protocol

from latfarm_agent.agent_config import RuntimeConfig
from latfarm_agent.confinement import cgroups
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.files.folders import remove, used
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.worker import replies
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.guard import Bounds
from latfarm_agent.worker.launcher import Launcher
from latfarm_agent.worker.main import WorkerConfig
from latfarm_agent.worker.start import WorkerStart
from latfarm_agent.worker.talk import TAKE_TIMEOUT_MS
from latfarm_agent.worker.worker import Worker

MODELS = "models"
"""Name of the folder below the work folder in which models lie while they are measured."""

_CACHES = "cache"
"""Name of the folder below the work folder in which each runtime has a cache folder."""

_DISK_BYTES = 4 << 30
"""Most disk space that a worker may use, where its limits do not say."""


@dataclass(frozen=True)
class DiscoveredRuntime:
    """What is known of a runtime after its worker was started once.

    Attributes:
        version: its version.
        missing: why the runtime is not available; empty: it is available.
        platforms: the platforms that it offers.
        threads: the number of threads of each of `platforms`.
        lacking: why it does not offer some platforms that the configuration asks for.
        protection: what is told of each protection of its workers; see `confinement.plan`.
    """

    version: str = ""
    missing: str = ""
    platforms: tuple[PlatformSpec, ...] = ()
    threads: tuple[int, ...] = ()
    lacking: str = ""
    protection: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerLimits:
    """What a worker may use.

    Attributes:
        memory_bytes: memory of all its processes together, without pages that are mapped from
            files; 0: 80 % of this machine's memory.
        models: the worker is replaced after so many requests.
        growth_bytes: it is also replaced when its memory has grown by so much since its start.
        nice: its priority, if the agent may set it.
        start_timeout_ms: how long it may take to load its runtime.
        take_timeout_ms: how long it may take to begin with a request.
        busy_wait_s: how long a measurement waits for a busy core.
        disk_bytes: how much it may write during a request; 0: half of the free space, but at most
            4 GiB.
        cache_bytes: the runtime's cache folder is emptied when it holds more.
        files: how many files it may make during a request.
        processes: how many processes it may run at once.
    """

    memory_bytes: int = 0
    models: int = 200
    growth_bytes: int = 1 << 30
    nice: int = -5
    start_timeout_ms: float = 120_000.0
    take_timeout_ms: float = TAKE_TIMEOUT_MS
    busy_wait_s: float = 3.0
    disk_bytes: int = 0
    cache_bytes: int = 4 << 30
    files: int = 100_000
    processes: int = 64


@dataclass(frozen=True)
class WorkerSetup:
    """How the workers of a board are started.

    Attributes:
        references: the runtimes, name -> "module:Class".
        configured: the settings of runtimes by their names.
        work_dir: folder below which each worker gets a folder of its own.
        cores: by number of threads, the cores that workers are pinned to; empty: not pinned.
        search_path: folders added to the workers' module search path.
        limits: what a worker may use.
        confinement: what the kernel keeps from workers.
    """

    references: Mapping[str, str]
    configured: Mapping[str, RuntimeConfig]
    work_dir: Path
    cores: Mapping[int, tuple[int, ...]]
    search_path: tuple[Path, ...]
    limits: WorkerLimits
    confinement: Confinement = field(default_factory=Confinement)

    @property
    def models_dir(self) -> Path:
        """Folder in which models lie while they are measured; workers may only read it."""
        return self.work_dir / MODELS


class RuntimeWorkers(Protocol):
    """Finds out which runtimes a board has, and lets them measure; `Workers` is the usual one.

    `found` may be called from any thread at any time; everything else by one thread at a time.

    Attributes:
        separate: whether models run in processes of their own, to which they have to be handed.
    """

    separate: bool

    def found(self) -> Mapping[str, DiscoveredRuntime]:
        """All runtimes by name."""

    def ask(
        self,
        name: str,
        threads: int,
        message: Message,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Message, str]:
        """Let the runtime of that name measure; see `Workers.ask`."""

    def restart(self) -> None:
        """End the workers that wait."""

    def rediscover(self) -> None:
        """End the workers that wait, empty the runtimes' caches, and let `found` look anew."""

    def close(self) -> None:
        """End all workers and start no more. Idempotent."""


class Workers:
    """Finds out which runtimes this board has, and lets their workers measure.

    `found` may be called from any thread at any time; everything else by one thread at a time.

    Args:
        setup: how workers are started.
        closing: set when a start in progress must end.
    """

    separate = True

    def __init__(self, setup: WorkerSetup, closing: threading.Event) -> None:
        self._setup = setup
        self._limits = setup.limits
        self._closing = closing
        self._disk_bytes = setup.limits.disk_bytes or min(
            _DISK_BYTES, shutil.disk_usage(str(setup.work_dir)).free // 2
        )
        cgroups.sweep()
        self._launcher = Launcher()
        self._workers: dict[str, tuple[int, Worker]] = {}
        self._looking = threading.Lock()
        self._found: dict[str, DiscoveredRuntime] | None = None

    def found(self) -> Mapping[str, DiscoveredRuntime]:
        """All runtimes by name. They are looked for once, each in its own process, in parallel."""
        with self._looking:
            if self._found is None and not self._closing.is_set():
                names = sorted(self._setup.references)
                with ThreadPoolExecutor(max(1, len(names))) as pool:
                    self._found = dict(zip(names, pool.map(self._look, names)))
            return self._found or {}

    def ask(
        self,
        name: str,
        threads: int,
        message: Message,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Message, str]:
        """Let a worker measure.

        A crash counts only in a fresh worker: a worker that has run other models may have been
        damaged by them, so the model is tried again in a new one.

        Returns:
            The worker's answer, and the error code of a crash before it; empty: there was none.

        Raises:
            WorkerFailure: the typed error that it ended in.
        """
        self._end_restless(name)
        worker = self._worker(name, threads, cancelled)
        try:
            return worker.request(message, on_event, cancelled), ""
        except WorkerFailure as failure:
            worn = worker.requests > 1
            if not worn or failure.code not in ("MODEL_CRASHED", "OUT_OF_MEMORY"):
                raise
            crashed = failure.code
        worker.close()
        worker = self._worker(name, threads, cancelled)
        return worker.request(message, on_event, cancelled), crashed

    def restart(self) -> None:
        """End the workers that wait."""
        for _, worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def rediscover(self) -> None:
        """End the workers that wait, empty the runtimes' caches, and let `found` look anew.

        Until it is looked for anew, the old findings are told nowhere.
        """
        self.restart()
        with self._looking:
            remove(self._setup.work_dir / _CACHES)
            self._found = None

    def close(self) -> None:
        """End all workers and start no more. Idempotent."""
        self.restart()
        with self._looking:
            self._launcher.close()

    def _end_restless(self, name: str) -> None:
        """End waiting workers of other runtimes in which something still runs."""
        for other in [other for other in self._workers if other != name]:
            worker = self._workers[other][1]
            if not worker.alive or worker.busy:
                worker.close()
                del self._workers[other]

    def _look(self, name: str) -> DiscoveredRuntime:
        try:
            # All runtimes are looked at together, so that their processes need all cores.
            worker = self._start(name, next(iter(self._setup.cores)), self._closing.is_set, ())
        except WorkerFailure as failure:
            return DiscoveredRuntime(missing=failure.message)
        hello = worker.hello
        worker.close()
        threads = tuple(int(data.pop("threads")) for data in hello["platforms"])
        platforms = tuple(PlatformSpec(**data) for data in hello["platforms"])
        lacking = replies.printable(hello.get("lacking", ""))
        return DiscoveredRuntime(
            hello["version"], "", platforms, threads, lacking, hello["protection"]
        )

    def _start(
        self, name: str, threads: int, cancelled: Callable[[], bool], cpus: tuple[int, ...]
    ) -> Worker:
        configured = self._setup.configured.get(name, RuntimeConfig())
        cache = self._setup.work_dir / _CACHES / name
        if cache.is_dir() and used(cache).size_bytes > self._limits.cache_bytes:
            remove(cache)
        config = WorkerConfig(
            runtime=self._setup.references[name],
            agent_pid=os.getpid(),
            options=dict(configured.options, threads=threads),
            search_path=tuple(str(folder) for folder in self._setup.search_path),
            cpus=cpus,
            memory_bytes=self._limits.memory_bytes,
            file_bytes=self._disk_bytes,
            nice=self._limits.nice,
            describe_threads=tuple(self._setup.cores),
            cache_dir=str(cache),
            models_dir=str(self._setup.models_dir),
            tasks=Bounds().threads,
            confinement=self._setup.confinement,
        )
        start = WorkerStart(
            config,
            self._setup.work_dir,
            python=configured.python,
            start_timeout_ms=self._limits.start_timeout_ms,
            take_timeout_ms=self._limits.take_timeout_ms,
            bounds=Bounds(
                memory_bytes=self._limits.memory_bytes,
                disk_bytes=self._disk_bytes,
                entries=self._limits.files,
                processes=self._limits.processes,
            ),
        )
        return Worker(self._launcher, start, cancelled)

    def _worker(self, name: str, threads: int, cancelled: Callable[[], bool]) -> Worker:
        had, worker = self._workers.get(name, (0, None))
        if worker is not None:
            grown = worker.rss_bytes - worker.hello["rss_bytes"]
            young = worker.requests < self._limits.models and grown <= self._limits.growth_bytes
            if worker.alive and young and had == threads:
                return worker
            worker.close()
            del self._workers[name]
        worker = self._start(name, threads, cancelled, self._setup.cores[threads])
        self._workers[name] = (threads, worker)
        return worker
