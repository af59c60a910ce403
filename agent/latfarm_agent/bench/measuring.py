"""The interface of everything that measures: this board's own bench, or one in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Protocol

from latfarm_agent.bench.records import BenchRequest, BenchResult, BenchStage, Offer

WORKER = "worker"
"""Part that can be restarted: the processes in which models run."""

RUNTIME = "runtime"
"""Part that can be restarted: these processes, what runtimes keep on disk, and which there are."""

PARTS = (WORKER, RUNTIME)
"""What can be restarted."""


class MeasuringBench(Protocol):
    """Describes a board and measures models on it.

    `describe` may be called from any thread; `measure` is called by one thread at a time.
    """

    def describe(self) -> Offer:
        """The board, and its runtimes with their platforms.

        Raises:
            StateError: another process measures, and it has not answered yet.
        """

    def measure(
        self,
        request: BenchRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[BenchStage], None],
        cancelled: Callable[[], bool],
    ) -> BenchResult:
        """Measure a model, and with `profile` its kernels too. A failure is a result as well.

        The call blocks until the measurement has ended, or until `cancelled` says yes.
        """

    def restart(self, part: str) -> str:
        """Restart `WORKER` or `RUNTIME`; gives what was done, in words for people.

        It waits until nothing is being measured.

        Raises:
            StateError: another process measures, and it did not do it.
        """

    def close(self) -> None:
        """End all worker processes."""
