"""How many worker processes predict, and how long they wait for the next caller."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from latfarm_controller.bulk.pool import WorkerPool

MOST_WORKERS = 8
"""The largest number of workers where the setting `prediction_workers` gives none."""
WORKER_BYTES = 512 << 20
"""Memory that must be available for each worker where no number is set.

A worker remembers kernels and outlines of networks of at most 92 MB for each bundle, and holds the
libraries, a bundle and some tens of networks besides."""
IDLE_S = 60.0
"""How long the workers of `latfarm serve` wait for the next stream of candidates, in seconds."""


def worker_count(setting: int | None, *, spared_cores: int = 0) -> int:
    """The number of processes that predict many candidates; 1: only the present one.

    Args:
        setting: what the user has set; None: as many as the machine has cores and memory for.
        spared_cores: number of cores that are left to others, such as a board of this machine.
    """
    if setting is not None:
        return setting
    cores = len(os.sched_getaffinity(0)) - spared_cores
    room = int(psutil.virtual_memory().available) // WORKER_BYTES
    return max(1, min(cores, room, MOST_WORKERS))


class WorkerLender:
    """Lends one pool of workers to all who predict at the same time. Thread-safe.

    Args:
        workers: the largest number of processes; 1: there is nothing to lend.
        niceness: how far they step back behind other processes, as for `nice`.
        idle_s: how long they wait for the next borrower, in seconds; 0: they end at once.
    """

    def __init__(self, workers: int, niceness: int = 0, idle_s: float = 0.0) -> None:
        self.workers = workers
        self._niceness = niceness
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._pool: WorkerPool | None = None
        self._borrowers = 0
        self._timer: threading.Timer | None = None

    @contextmanager
    def lent(self) -> Iterator[WorkerPool]:
        """The pool, for as long as the block lasts."""
        with self._lock:
            self._stop_timer()
            self._borrowers += 1
            if self._pool is None:
                self._pool = WorkerPool(self.workers, self._niceness)
            pool = self._pool
        try:
            yield pool
        finally:
            self._given_back()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that there are now."""
        with self._lock:
            return [] if self._pool is None else self._pool.pids

    def close(self) -> None:
        """End all workers now, those that work too. May be called twice."""
        with self._lock:
            self._stop_timer()
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _given_back(self) -> None:
        """Count a borrower less; without any, the workers end now or later."""
        with self._lock:
            self._borrowers -= 1
            if self._borrowers:
                return
            if self._idle_s > 0.0:
                self._timer = threading.Timer(self._idle_s, self._close_if_idle)
                self._timer.daemon = True
                self._timer.start()
                return
            pool, self._pool = self._pool, None  # the next borrower gets another one
        if pool is not None:
            pool.close()

    def _close_if_idle(self) -> None:
        """End the workers unless somebody has borrowed them meanwhile."""
        with self._lock:
            if self._borrowers:
                return
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
