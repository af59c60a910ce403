"""A Ray process without Ray, for the tests of the keeper.

Usage: `python -m tests.controller.farm.processes.fake_child LOG MODE SOCKET LIFE`. It adds a line
with its process id to LOG when it starts. What it does is in the first letters of MODE, one for
each start, the last one for all further starts:

- `u`: Ray runs with four cores, and each build is answered,
- `d`: the process ends at once,
- `f`: Ray cannot be started,
- `s`: Ray never starts, and the process lives,
- `h`: Ray runs, and then the process hangs at its first call,
- `x`: Ray runs, and then the process ends at its first call.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from latfarm_controller.farm.boards.model_builder import BuiltModel
from latfarm_controller.farm.processes.channel import Channel
from latfarm_controller.farm.processes.child_messages import (
    BuildModels,
    ChildAnswer,
    ChildBeat,
    ChildCall,
    ChildOptions,
    RayLost,
    RayUp,
)


async def beat(channel: Channel) -> None:
    while True:
        await channel.send(ChildBeat())
        await asyncio.sleep(0.02)


async def live(channel: Channel, mode: str) -> None:
    assert isinstance(await channel.receive(), ChildOptions)
    if mode == "d":
        return
    if mode == "f":
        await channel.send(RayLost("no room"))
        await channel.close()
        return
    beating = asyncio.create_task(beat(channel))
    if mode != "s":
        await channel.send(RayUp(4, f"pid-{os.getpid()}"))
    while (message := await channel.receive()) is not None:
        assert isinstance(message, ChildCall)
        if mode == "x":
            os._exit(7)
        if mode == "h":
            beating.cancel()
            await asyncio.sleep(3600)
        if isinstance(message.request, BuildModels):
            built = [BuiltModel(model, "", 1, b"m") for model, _ in message.request.jobs]
            await channel.send(ChildAnswer(message.number, tuple(built)))
        else:
            await channel.send(ChildAnswer(message.number, error="not here"))


async def main(log: Path, modes: str, descriptor: int) -> None:
    with log.open("a", encoding="utf-8") as file:
        print(os.getpid(), file=file)
    starts = len(log.read_text(encoding="utf-8").split())
    mode = modes[min(starts, len(modes)) - 1]
    await live(await Channel.over(socket.socket(fileno=descriptor)), mode)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
