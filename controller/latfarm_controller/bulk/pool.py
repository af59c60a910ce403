"""A bounded number of worker processes, and the tasks that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from latfarm_controller.bulk.worker import WorkerTask
from latfarm_controller.bulk.worker_process import WorkerEndedError, WorkerProcess
from latfarm_controller.errors import ControllerError

MOST_ENDS = 12
"""The pool gives up when this many workers, one after the other, ended in the midst of a task.

A single item that ends each worker is found by halving: a task of 64 items costs seven workers.
"""


class WorkerPool:
    """Runs tasks in worker processes, which start when they are needed. Thread-safe.

    If a task fails or ends its worker, each half of its items is tried alone, and so on, until the
    item is found that does it: that item fails alone.

    Args:
        workers: the largest number of processes.
        niceness: how far they step back behind other processes, as for `nice`.
    """

    def __init__(self, workers: int, niceness: int = 0) -> None:
        self.workers = workers
        self._niceness = niceness
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="latfarm-bulk")
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._closed = False
        self._ends_in_a_row = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that there are now."""
        with self._lock:
            return sorted(each.pid for each in self._all)

    def submit(
        self, function: Callable[..., list[Any]], items: Sequence[Any], *shared: Any
    ) -> Future[list[Any]]:
        """Run a function of a module of ours over items, in one worker.

        Args:
            function: gets the items and `shared`, and returns one result for each item.
            items: what is worked on.
            shared: what is the same for all items.

        Returns:
            The results in the order of the items; an exception in the place of each item whose
            work fails. It ends with a `ControllerError` where workers cannot work at all.
        """
        return self._threads.submit(self._run, function, items, shared)

    def close(self) -> None:
        """End all processes, and give up the tasks that are not done. May be called twice."""
        with self._lock:
            self._closed = True
            running = set(self._all)
        for each in running:
            each.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            left, self._all, self._idle = self._all, set(), []
        for each in left:
            each.close()

    def _run(
        self, function: Callable[..., list[Any]], items: Sequence[Any], shared: tuple[Any, ...]
    ) -> list[Any]:
        """The results of a task; see `submit`."""
        worker = self._taken()
        try:
            results = worker.run(WorkerTask(function, items, shared))
        except WorkerEndedError as error:
            self._drop(worker)
            self._count_end(error)
            failure: Exception = error
        except Exception as error:
            self._keep(worker)
            failure = error
        else:
            self._keep(worker)
            return results
        if len(items) <= 1:
            return [failure for _ in items]
        middle = len(items) // 2
        first = self._run(function, items[:middle], shared)
        return [*first, *self._run(function, items[middle:], shared)]

    def _taken(self) -> WorkerProcess:
        """A worker for one task: an idle one, or a new one."""
        with self._lock:
            if self._closed:
                raise ControllerError("the processes that predict were stopped")
            if self._idle:
                return self._idle.pop()
            worker = WorkerProcess(self._niceness)
            self._all.add(worker)
            return worker

    def _keep(self, worker: WorkerProcess) -> None:
        """Take back a worker that has done its task."""
        with self._lock:
            self._ends_in_a_row = 0
            self._idle.append(worker)

    def _drop(self, worker: WorkerProcess) -> None:
        """Forget a worker that has ended."""
        with self._lock:
            self._all.discard(worker)
        worker.close()

    def _count_end(self, error: WorkerEndedError) -> None:
        """Count a worker that has ended, and give up when one after the other does.

        Raises:
            ControllerError: the pool was closed, or workers cannot work here.
        """
        with self._lock:
            self._ends_in_a_row += 1
            if self._closed:
                raise ControllerError("the processes that predict were stopped") from error
            if self._ends_in_a_row < MOST_ENDS:
                return
        raise ControllerError(
            f"{error}, and so did {MOST_ENDS - 1} before it; if memory is short, set "
            "LATFARM_PREDICTION_WORKERS=1 to predict in one process"
        ) from error
