"""Candidates of one caller: few are predicted in this process, many in worker processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.bulk.candidates import (
    BulkCandidate,
    CandidateEnd,
    ends_in_worker,
    ends_of,
)
from latfarm_controller.bulk.lender import WorkerLender
from latfarm_controller.bulk.pool import WorkerPool
from latfarm_controller.bulk.predictions import Predictors
from latfarm_controller.errors import ControllerError
from latfarm_controller.training import bundles

WORTH_WORKERS = 200
"""From this number of candidates on, workers repay their start.

Each worker takes about a second of a core to start; a candidate takes 5 to 10 ms."""
LEAST_TOGETHER, MOST_TOGETHER = 8, 64
"""Least and largest number of candidates in one task of a worker."""


class Evaluation:
    """Reads, hashes and predicts the candidates of one caller, in their order. Not thread-safe.

    Args:
        bundles_dir: the folder of all bundles.
        lender: lends the workers.
    """

    def __init__(self, bundles_dir: Path, lender: WorkerLender) -> None:
        self._bundles_dir = bundles_dir
        self._lender = lender
        self._predictors = Predictors(bundles_dir)
        self._paths: dict[str, Path | Exception] = {}
        self._pool: WorkerPool | None = None
        self._seen = 0
        self._lock = threading.Lock()  # of the pool: whoever closes may do so in another thread
        self._closed = False
        self._stack = ExitStack()

    def __enter__(self) -> Evaluation:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the workers back, for good. May be called twice, and in any thread."""
        with self._lock:
            self._closed = True
            self._pool = None
            self._stack.close()

    def start(self, candidates: Sequence[BulkCandidate]) -> Callable[[], list[CandidateEnd]]:
        """Begin to work on candidates.

        Workers begin at once. Without workers, the work is done when the result is asked for.

        Returns:
            Waits for what becomes of the candidates, and returns it in their order. It raises
            `ControllerError` where workers cannot work.

        Raises:
            ControllerError: this was closed, because the caller has left.
        """
        self._seen += len(candidates)
        pool = self._workers()
        if pool is None:
            return partial(ends_of, candidates, self._predictors.predict)
        paths = {each.platform: self._path(each.platform) for each in candidates if each.predict}
        size = -(-len(candidates) // (2 * pool.workers))
        size = min(max(size, LEAST_TOGETHER), MOST_TOGETHER)
        futures = [
            pool.submit(ends_in_worker, candidates[first : first + size], paths)
            for first in range(0, len(candidates), size)
        ]
        return lambda: [_end(each) for future in futures for each in future.result()]

    def _workers(self) -> WorkerPool | None:
        """The workers, once there are enough candidates for them."""
        with self._lock:
            if self._closed:  # workers that are borrowed now would never be given back
                raise ControllerError("the candidates are not needed any more: their caller left")
            if self._pool is None and self._lender.workers > 1 and self._seen >= WORTH_WORKERS:
                self._pool = self._stack.enter_context(self._lender.lent())
            return self._pool

    def _path(self, platform: str) -> Path | Exception:
        """The bundle in use of a platform, as it was when it was first asked for, or why not."""
        if platform not in self._paths:
            try:
                self._paths[platform] = bundles.choose(self._bundles_dir, platform)
            except (ControllerError, PredictorsError) as error:
                self._paths[platform] = error
        return self._paths[platform]


def _end(told: CandidateEnd | Exception) -> CandidateEnd:
    """What a worker told of a candidate; an exception if the candidate made it fail."""
    if isinstance(told, CandidateEnd):
        return told
    if isinstance(told, ControllerError | PredictorsError | OSError):
        return CandidateEnd(unread=told)
    return CandidateEnd(unread=ControllerError(f"{type(told).__name__}: {told}"))
