"""Tasks that run beside a farm and that nobody awaits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from latfarm_controller.errors import FarmError

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Starts tasks, keeps them alive until they end, and remembers an unexpected failure.

    `failure` is the last exception that a task ended with, other than a FarmError. A FarmError
    means that a call went to a shard that had died; the shard is replaced, so it is only logged.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of the present event loop."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise if a task has failed.

        Raises:
            FarmError: a task failed, so that the farm delivers nothing more.
        """
        if self.failure is not None:
            raise FarmError(f"the farm broke: {self.failure!r}") from self.failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        if isinstance(error, FarmError):
            logger.warning("%s", error)
            return
        logger.error("the farm broke", exc_info=error)
        self.failure = error
