"""The workers of a board: one process per runtime, started when needed, replaced when worn.

A worker has one number of threads, for libraries keep the thread pools that they once made: another
number is another process, and the one before it ends.
"""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping

from latfarm_agent.agent_config import RuntimeConfig
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

_DISK_BYTES = 4 << 30


@dataclass(frozen=True)
class DiscoveredRuntime:
    """What discovery learned about one runtime; `missing` is empty where it is there.

    `threads`: of each of its platforms, how many. `lacking`: why it does not offer some of the
    platforms that it was asked for.
    """

    version: str = ""
    missing: str = ""
    platforms: tuple[PlatformSpec, ...] = ()
    threads: tuple[int, ...] = ()
    lacking: str = ""


@dataclass(frozen=True)
class WorkerLimits:
    """Bounds of a worker.

    `memory_bytes`: private memory, and all memory of what it forked, 0 for 80 % of the board's.
    `models`: restarted after so many requests, `growth_bytes`: or when it holds so much more than
    at its start. `nice`: its priority, where the agent may raise it. `start_timeout_ms`: how long
    it may take to start, `take_timeout_ms`: to begin with a request. `busy_wait_s`: how long a
    measurement waits for a busy core. `disk_bytes`: what it may write during a request, 0 for half
    of what is free, but 4 GiB at most; `cache_bytes`: a runtime's folder that outlives it is
    emptied when it holds more. `files`, `processes`: how many it may make and run.
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
    """

    references: Mapping[str, str]
    configured: Mapping[str, RuntimeConfig]
    work_dir: Path
    cores: Mapping[int, tuple[int, ...]]
    search_path: tuple[Path, ...]
    limits: WorkerLimits


class Workers:
    """Finds out which runtimes this board has, and lets their workers measure.

    `found` may be called from any thread at any time; everything else by one thread at a time.

    Args:
        setup: how workers are started.
        closing: set when a start in progress must end.
    """

    def __init__(self, setup: WorkerSetup, closing: threading.Event) -> None:
        self._setup = setup
        self._limits = setup.limits
        self._closing = closing
        self._disk_bytes = setup.limits.disk_bytes or min(
            _DISK_BYTES, shutil.disk_usage(str(setup.work_dir)).free // 2
        )
        self._launcher = Launcher()
        self._workers: dict[str, tuple[int, Worker]] = {}
        self._looking = threading.Lock()
        self._found: dict[str, DiscoveredRuntime] | None = None

    def found(self) -> Mapping[str, DiscoveredRuntime]:
        """All runtimes by name; looked for once, each in a process of its own, all at once."""
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
        """Let a worker measure: its answer, and how it crashed before it gave it, if it did.

        A crash counts once it happened in a fresh worker: one that has run other models may have
        been damaged by them, and the model is tried again.

        Raises:
            WorkerFailure: the typed error that it ended in.
        """
        self._hush(name)
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

    def hello(self, name: str) -> Message:
        """What the present worker of a runtime said when it started."""
        return self._workers[name][1].hello

    def restart(self) -> None:
        """End the workers that wait."""
        for _, worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def close(self) -> None:
        """End all workers and start no more. Idempotent."""
        self.restart()
        with self._looking:
            self._launcher.close()

    def _hush(self, name: str) -> None:
        """End the workers of other runtimes in which something still runs: they are to wait."""
        for other in [other for other in self._workers if other != name]:
            worker = self._workers[other][1]
            if not worker.alive or worker.busy:
                worker.close()
                del self._workers[other]

    def _look(self, name: str) -> DiscoveredRuntime:
        try:
            worker = self._start(name, next(iter(self._setup.cores)), self._closing.is_set)
        except WorkerFailure as failure:
            return DiscoveredRuntime(missing=failure.message)
        hello = worker.hello
        worker.close()
        threads = tuple(int(data.pop("threads")) for data in hello["platforms"])
        platforms = tuple(PlatformSpec(**data) for data in hello["platforms"])
        lacking = replies.printable(hello.get("lacking", ""))
        return DiscoveredRuntime(hello["version"], "", platforms, threads, lacking)

    def _start(self, name: str, threads: int, cancelled: Callable[[], bool]) -> Worker:
        configured = self._setup.configured.get(name, RuntimeConfig())
        cache = self._setup.work_dir / "cache" / name
        if cache.is_dir() and used(cache).size_bytes > self._limits.cache_bytes:
            remove(cache)
        config = WorkerConfig(
            runtime=self._setup.references[name],
            agent_pid=os.getpid(),
            options=dict(configured.options, threads=threads),
            search_path=tuple(str(folder) for folder in self._setup.search_path),
            cpus=self._setup.cores[threads],
            memory_bytes=self._limits.memory_bytes,
            file_bytes=self._disk_bytes,
            nice=self._limits.nice,
            describe_threads=tuple(self._setup.cores),
            cache_dir=str(cache),
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
        worker = self._start(name, threads, cancelled)
        self._workers[name] = (threads, worker)
        return worker
