"""The Ray process: the one process of the controller in which Ray lives.

The controller starts it with one end of a socket pair and talks to it over a `Channel`. So whatever
happens to Ray, which may end a process that uses it, happens to this process alone. It ends when
Ray has failed, so that the controller starts it again, and when the controller closes the channel
or dies.

Usage: `python -m latfarm_controller.farm.processes.ray_child SOCKET LIFE`, two file descriptors.
`LIFE` is the end of a pipe that stays open until this process and its cleanup have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import ray_watch
from latfarm_controller.farm.processes.channel import Channel
from latfarm_controller.farm.processes.child_messages import (
    ChildAnswer,
    ChildBeat,
    ChildCall,
    ChildOptions,
    RayLost,
    RayUp,
)
from latfarm_controller.farm.processes.child_work import ChildWork
from latfarm_controller.farm.processes.ray_runtime import RayRuntime

BEAT_S = 1.0
"""Pause between two signs of life, in seconds."""
LOOK_S = 0.5
"""Pause between two looks at the processes of Ray, in seconds."""
COUNT_PAUSE_S = 5.0
"""Pause between two counts of the cluster's cores, in seconds."""
COUNT_S = 30.0
"""Longest time that the cluster may take to tell its nodes, in seconds."""
STOP_S = 15.0
"""Longest time for an orderly end of Ray, in seconds; then the cleanup process ends Ray."""


class RayChild:
    """Starts Ray, does what the controller asks for, and ends with the first failure of Ray."""

    def __init__(self, channel: Channel, life: int) -> None:
        self._channel = channel
        self._life = life
        self._calls: set[asyncio.Task[None]] = set()
        self._runtime: RayRuntime | None = None
        self._work: ChildWork | None = None

    async def run(self) -> None:
        """Live until the controller closes the channel or Ray fails."""
        options = await self._channel.receive()
        if not isinstance(options, ChildOptions):
            return
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._live(options)),
        ]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:  # the controller has closed the channel, or is dead
            await asyncio.to_thread(shutil.rmtree, options.models_dir, ignore_errors=True)
            await self._stop()
            return
        reason = str(next(task.exception() for task in done) or "it ended")
        with contextlib.suppress(FarmError):
            await self._channel.send(RayLost(reason))
            await self._channel.close()

    async def _read(self) -> None:
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, ChildCall):
                task = asyncio.create_task(self._answer(message))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)

    async def _beat(self) -> None:
        while True:
            await self._channel.send(ChildBeat())
            await asyncio.sleep(BEAT_S)

    async def _live(self, options: ChildOptions) -> None:
        """Start Ray and watch it; never returns.

        Raises:
            FarmError: Ray cannot be started, or has failed.
        """
        self._runtime = runtime = RayRuntime(
            options.run_dir, address=options.address, cpus=options.cpus, keep_open=(self._life,)
        )
        await self._started(runtime)
        import ray

        node = ray.get_runtime_context().get_node_id()
        self._work = ChildWork(options, node, self._channel.send)
        await asyncio.gather(self._watch_processes(), self._tell_cores(self._work, node))

    async def _started(self, runtime: RayRuntime) -> None:
        """Start Ray.

        Raises:
            FarmError: Ray cannot be started, or one of its processes ended meanwhile.
        """
        starting = asyncio.ensure_future(asyncio.to_thread(runtime.start))
        seen = ""
        while not starting.done():
            await asyncio.wait({starting}, timeout=LOOK_S)
            before, seen = seen, ray_watch.ended_child()
            if before and before == seen:  # Ray itself has not noticed it meanwhile
                raise FarmError(seen)
        starting.result()

    async def _watch_processes(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if ended := ray_watch.ended_process():
                raise FarmError(ended)

    async def _tell_cores(self, work: ChildWork, node: str) -> None:
        """Tell the controller how many cores the cluster has, and each time that has changed."""
        cores = await _in_time(ray_watch.living_cores, node)
        await work.warm_up(cores)
        await self._tell_up(cores)
        while True:
            await asyncio.sleep(COUNT_PAUSE_S)
            before, cores = cores, await _in_time(ray_watch.living_cores, node)
            if cores != before:
                await self._tell_up(cores)

    async def _tell_up(self, cores: int) -> None:
        assert self._runtime is not None
        folder = "" if self._runtime.folder is None else str(self._runtime.folder)
        await self._channel.send(RayUp(cores, self._runtime.mark, folder))

    async def _answer(self, call: ChildCall) -> None:
        answer = ChildAnswer(call.number, error="Ray has not started yet")
        try:
            async with asyncio.timeout(call.deadline_s):
                if self._work is not None:
                    answer = ChildAnswer(call.number, await self._work.do(call.request))
        except TimeoutError:
            answer = ChildAnswer(call.number, error=f"no answer within {call.deadline_s:.0f} s")
        except Exception as error:  # Ray has many exceptions; the controller is told of each
            lines = str(error).strip().splitlines() or [""]
            text = (
                lines[0] if isinstance(error, FarmError) else f"{type(error).__name__}: {lines[0]}"
            )
            answer = ChildAnswer(call.number, error=text)
        with contextlib.suppress(FarmError):  # the controller is gone
            await self._channel.send(answer)

    async def _stop(self) -> None:
        """End Ray in order, if it has started and still answers."""
        if self._work is not None and self._runtime is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await asyncio.to_thread(self._runtime.stop)


async def _in_time(look: Callable[[str], int], node: str) -> int:
    """Ask the cluster in a thread, within `COUNT_S` seconds.

    Raises:
        FarmError: the cluster does not answer, or counts this node as dead.
    """
    asking: Awaitable[int] = asyncio.to_thread(look, node)
    try:
        async with asyncio.timeout(COUNT_S):
            return await asking
    except TimeoutError:
        raise FarmError(f"the Ray cluster does not answer for {COUNT_S:.0f} s") from None
    except Exception as error:
        lines: Any = str(error).strip().splitlines() or [type(error).__name__]
        raise FarmError(f"the Ray cluster is lost: {lines[0]}") from error


async def _main(end: socket.socket, life: int) -> None:
    """Run until the controller or Ray ends; then end at once, whatever Ray's threads do.

    A thread that waits for a GCS that is gone would keep this process. The cleanup process ends
    what is left of Ray.
    """
    try:
        await RayChild(await Channel.over(end), life).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Run with the two file descriptors that the controller has passed on."""
    # Signals of a terminal are for the controller, which closes the channel when it ends.
    for signum in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    descriptor, life = map(int, arguments)
    os.set_inheritable(descriptor, False)
    os.set_inheritable(life, False)
    asyncio.run(_main(socket.socket(fileno=descriptor), life))


if __name__ == "__main__":
    main(sys.argv[1:])
