"""A child process that works for this one, and the pipes to it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from typing import Any

from latfarm_controller.bulk.worker import WorkerTask
from latfarm_controller.child_pipe import packed, read_frame
from latfarm_controller.errors import ControllerError

_MAIN = "from latfarm_controller.bulk.worker import main; main()"
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that keep a numerical library from starting a thread for each core in each worker."""

END_S = 5.0
"""Longest wait, in seconds, for a process to end by itself after its pipe was closed."""


class WorkerEndedError(ControllerError):
    """A worker process has ended in the midst of a task. The message tells its exit code."""


class WorkerProcess:
    """Does one task at a time in a child process. Not thread-safe, apart from `kill`.

    The child never outlives this process: it ends when the pipe to it is closed, which the system
    does if this process is killed. Ctrl-C in a terminal does not reach it.

    Args:
        niceness: how far it steps back behind other processes, as for `nice`.
    """

    def __init__(self, niceness: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | dict.fromkeys(ONE_THREAD, "1"),
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def run(self, task: WorkerTask) -> list[Any]:
        """The results of a task.

        Raises:
            WorkerEndedError: the process has ended; start another one.
            Exception: what the function of the task raised.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        message = packed(task)
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
            content = read_frame(self._process.stdout)
        except (OSError, EOFError) as error:
            code = self._ended()
            raise WorkerEndedError(f"a worker process ended with code {code}") from error
        results: list[Any] | Exception = pickle.loads(content)
        if isinstance(results, Exception):
            raise results
        return results

    def _ended(self) -> int:
        """The exit code of the process, whose pipe is closed already."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_S)
        self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """End the process now, and wait until it has gone. May be called in any thread."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, and close the pipes; no task may run."""
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
