"""The thread that starts workers.

One thread that lives as long as the agent starts them all, because the kernel sends the
parent-death signal when the thread that forked ends, not when its process ends.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Callable


class Launcher:
    """Starts processes in a thread of its own. Thread-safe."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[tuple[Callable[[], object], Future[object]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name="worker-launcher", daemon=True)
        self._thread.start()

    def popen(
        self, arguments: list[str], environment: dict[str, str], directory: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process with pipes on all three standard descriptors.

        Raises:
            OSError: it cannot be started.
        """
        done: Future[object] = Future()

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=str(directory),
                env=environment,
                bufsize=0,
            )

        self._tasks.put((start, done))
        started = done.result()
        assert isinstance(started, subprocess.Popen)
        return started

    def close(self) -> None:
        """End the thread, and with it all workers that are left. Idempotent."""
        self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            work, done = task
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
