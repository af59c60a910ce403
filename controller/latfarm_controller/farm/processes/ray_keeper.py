"""Keeps a Ray process running, and carries calls to it. The controller itself never imports Ray.

A Ray process that ended, that says that Ray has failed, or that gives no sign of life is replaced,
after a pause that doubles with each failure. What was asked of the old process fails at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.errors import FarmError, RayAwayError
from latfarm_controller.farm.boards.model_builder import BuilderState
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.processes.child_messages import (
    ChildAnswer,
    ChildCall,
    ChildOptions,
    ChildRequest,
    RayLost,
    RayUp,
    ShardDied,
    ShardHeard,
)
from latfarm_controller.farm.processes.child_process import COMMAND, ChildProcess

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperTimes:
    """How patient a `RayKeeper` is.

    Attributes:
        pause_s: pause before the first restart; it doubles with each failure.
        pause_cap_s: the longest such pause.
        steady_s: a Ray process that lived this long is followed by the shortest pause again.
        start_s: longest time until Ray runs. On a busy host, Ray is tried four times.
        slow_s: a start that takes longer is told as an absence, so that people hear of it.
        look_s: pause between two looks whether a sign of life came.
        silent_looks: so many looks in a row without a sign of life mean that the process hangs.
            Looks are counted and not seconds, because a host that was asleep says nothing.
        stop_s: longest time for an orderly end.
        margin_s: added to the deadline of a call, which the Ray process itself observes.
    """

    pause_s: float = 0.5
    pause_cap_s: float = 30.0
    steady_s: float = 60.0
    start_s: float = 300.0
    slow_s: float = 30.0
    look_s: float = 5.0
    silent_looks: int = 6
    stop_s: float = 30.0
    margin_s: float = 10.0


Heard = list[ShardEvent] | FarmError
"""What happened to the boards of a shard, or why the shard is gone."""


class RayKeeper:
    """Starts the Ray process, restarts it, and calls it. Use it from one event loop.

    `state` tells whether models can be built, and `run` which run of Ray goes on; None: none.

    Args:
        options: what the Ray process is told.
        watcher: called each time `state` has changed.
        log_path: the file for the output of the Ray process; None: it is dropped.
        times: how patient to be.
        command: starts the Ray process.
    """

    def __init__(
        self,
        options: ChildOptions,
        watcher: Callable[[BuilderState], None],
        *,
        log_path: Path | None = None,
        times: KeeperTimes | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._options = options
        self._watcher = watcher
        self._log_path = log_path
        self._times = times or KeeperTimes()
        self._command = command
        self._keeping: asyncio.Task[None] | None = None
        self._child: ChildProcess | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._inboxes: dict[int, asyncio.Queue[Heard]] = {}
        self._silent_looks: int | None = None
        self.run: RayUp | None = None
        self.state = BuilderState(0, "Ray has not been started yet")

    @property
    def pid(self) -> int | None:
        """The id of the Ray process; None while there is none."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Begin to keep a Ray process running."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="ray")

    async def stop(self) -> None:
        """End the Ray process and all of Ray's processes. A second call does nothing."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        self._lose("the controller stops")

    async def call(self, request: ChildRequest, deadline_s: float) -> Any:
        """Have the Ray process do something; returns its answer.

        Args:
            request: what to do.
            deadline_s: the longest time, in seconds.

        Raises:
            RayAwayError: Ray does not run now, or went away during the call.
            FarmError: it could not be done, or not in time.
        """
        child, number = self._child, next(self._numbers)
        if child is None or self.run is None:
            raise RayAwayError(self.state.away)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(deadline_s + self._times.margin_s):
                await child.channel.send(ChildCall(number, deadline_s, request))
                return await answer
        except TimeoutError:
            kind = type(request).__name__
            raise FarmError(f"the Ray process did not answer a {kind} in time") from None
        finally:
            del self._pending[number]

    def listen(self, shard: int) -> asyncio.Queue[Heard]:
        """Where the events of a shard arrive, until a `FarmError` tells that the shard is gone."""
        inbox = self._inboxes[shard] = asyncio.Queue()
        return inbox

    def forget(self, shard: int) -> None:
        """Take no more events of a shard."""
        self._inboxes.pop(shard, None)

    # Keeping

    async def _keep(self) -> None:
        pause_s, reason = self._times.pause_s, ""
        while True:
            away = f"Ray is started again after: {reason}" if reason else "Ray is being started"
            self._tell(BuilderState(0, away, starting=True))
            begun_s = time.monotonic()
            reason = await self._live()
            if time.monotonic() - begun_s >= self._times.steady_s:
                pause_s = self._times.pause_s
            logger.warning("Ray is away: %s; it is started again in %.3g s", reason, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._times.pause_cap_s)

    async def _live(self) -> str:
        """Start the Ray process and serve it to its end; returns why it ended."""
        try:
            child = await ChildProcess.start(self._command, self._log_path)
        except OSError as error:
            reason = f"the Ray process cannot be started: {error}"
            self._lose(reason)
            return reason
        self._child, self._silent_looks = child, None
        work = [asyncio.create_task(self._read(child)), asyncio.create_task(self._watch())]
        reason, grace_s = "the controller stops", self._times.stop_s
        try:
            await child.channel.send(self._options)
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            reason, grace_s = done.pop().result()
        except FarmError as error:
            reason, grace_s = str(error), 0.0
        finally:
            for task in work:
                task.cancel()
            self._child = None
            self._lose(reason)
            await child.end(grace_s)
        return reason

    async def _read(self, child: ChildProcess) -> tuple[str, float]:
        """Take messages until the process has ended; returns why, and its grace in seconds."""
        while (message := await child.channel.receive()) is not None:
            self._silent_looks = 0
            match message:
                case ChildAnswer():
                    self._answer(message)
                case RayUp(cores):
                    self.run = message
                    self._tell(BuilderState(max(1, cores - 1)))
                case RayLost(reason):
                    return reason, self._times.margin_s
                case ShardHeard(shard, events) if shard in self._inboxes:
                    self._inboxes[shard].put_nowait(list(events))
                case ShardDied(shard, reason) if shard in self._inboxes:
                    self._inboxes.pop(shard).put_nowait(FarmError(reason))
        return "the Ray process died", self._times.margin_s

    async def _watch(self) -> tuple[str, float]:
        """Wait until the process gives no sign of life, or Ray has not started in time."""
        looks = itertools.count(1)
        slow = False
        while True:
            await asyncio.sleep(self._times.look_s)
            if self._silent_looks is not None:  # it has given a first sign
                self._silent_looks += 1
                if self._silent_looks > self._times.silent_looks:
                    return "the Ray process gives no sign of life", 0.0
            if self.run is not None:
                continue
            waited_s = next(looks) * self._times.look_s
            if waited_s > self._times.start_s:
                return "Ray has not started in time", 0.0
            if waited_s > self._times.slow_s and not slow:
                slow = True
                self._tell_slow_start()

    def _tell_slow_start(self) -> None:
        """Tell that Ray is away although it is still being started."""
        story = f"Ray is away: it has not started within {self._times.slow_s:.0f} s"
        if self._log_path is not None:
            story += f"; what it prints is in {self._log_path}"
        logger.warning("%s", story)
        self._tell(BuilderState(0, story))

    def _answer(self, answer: ChildAnswer) -> None:
        future = self._pending.get(answer.number)
        if future is None or future.done():  # nobody waits any more
            return
        if answer.error:
            future.set_exception(FarmError(answer.error))
        else:
            future.set_result(answer.value)

    def _lose(self, reason: str) -> None:
        """Tell everybody that Ray is away. The watcher is told first, so nothing new is asked."""
        self.run = None
        self._tell(BuilderState(0, f"Ray is away: {reason}"))
        for future in self._pending.values():
            if not future.done():
                future.set_exception(RayAwayError(self.state.away))
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.put_nowait(RayAwayError(self.state.away))

    def _tell(self, state: BuilderState) -> None:
        if state != self.state:
            self.state = state
            self._watcher(state)
