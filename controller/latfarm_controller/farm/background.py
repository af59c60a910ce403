"""Tasks that run beside a farm and that nobody awaits one by one."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from latfarm_controller.errors import FarmError

logger = logging.getLogger(__name__)


class RepeatedTrouble:
    """Logs a trouble that work meets again and again only once, until it is another one, or over.

    Args:
        log: where it is told.
        what: what cannot be done, for the log.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._told = ""

    def met(self, error: Exception) -> None:
        """Hear of an error."""
        if str(error) != self._told:
            self._log.warning("%s: %s", self._what, error)
        self._told = str(error)

    def over(self) -> None:
        """Hear that the work was done."""
        self._told = ""


class _KeptTasks(ABC):
    """Starts tasks and keeps them alive until they end; `_failed` hears of those that fail."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of the present event loop."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """Hear of a task that failed."""


class BackgroundTasks(_KeptTasks):
    """Tasks of a farm, which remembers an unexpected failure.

    `failure` is the last exception that a task ended with, other than a FarmError. A FarmError
    means that a call went to a shard that had died; the shard is replaced, so it is only logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failure: BaseException | None = None

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

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, FarmError):
            logger.warning("%s", error)
            return
        logger.error("the farm broke", exc_info=error)
        self.failure = error


class LoggedTasks(_KeptTasks):
    """Tasks whose failures are logged.

    Args:
        logger: of the module whose tasks these are.
        told: what the log says of a task that failed.
    """

    def __init__(self, logger: logging.Logger, told: str) -> None:
        super().__init__()
        self._logger = logger
        self._told = told

    async def finish(self) -> None:
        """Wait until all tasks have ended, also those that are started meanwhile."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _failed(self, error: BaseException) -> None:
        self._logger.error(self._told, exc_info=error)


class NamedTasks:
    """At most one task for each name. Failures are logged.

    Args:
        logger: of the module whose tasks these are.
        told: what the log says of a task that failed; `%s` in it becomes the name.
    """

    def __init__(self, logger: logging.Logger, told: str) -> None:
        self._logger = logger
        self._told = told
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the task of a name, which must have none."""
        task = asyncio.create_task(work)
        self._tasks[name] = task
        task.add_done_callback(lambda ended: self._ended(name, ended))

    def forget(self, name: str) -> None:
        """Let a name have another task from now on; the one that it has goes on."""
        self._tasks.pop(name, None)

    def cancel(self, name: str) -> None:
        """Cancel the task of a name, if it has one; does not wait for its end."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended; nothing is logged any more."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stopped:
            self._logger.error(self._told, name, exc_info=error)
