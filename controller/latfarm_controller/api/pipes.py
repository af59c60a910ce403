"""Serve connections in tasks, and carry the bytes of one connection to another one, both ways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
"""Most bytes that are carried at once, and that wait in one direction of a connection."""


class PipeEnd(NamedTuple):
    """One connection: where its bytes come from, and where its bytes go."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ServedConnections:
    """The connections of servers, each in a task of its own; all are closed in the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def serving(
        self, serve: Callable[[PipeEnd], Coroutine[Any, Any, None]]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """What `asyncio.start_unix_server` is to call for each connection.

        A plain function, and no coroutine: asyncio begins coroutines later, and one that is
        cancelled before it begins cannot close its connection.

        Args:
            serve: serves one connection, which is closed when it ends.
        """

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._closed:  # it was accepted just before its server was closed
                writer.close()
                return
            task = asyncio.get_running_loop().create_task(serve(PipeEnd(reader, writer)))
            self._tasks.add(task)
            task.add_done_callback(lambda ended: self._ended(ended, writer))

        return begin

    async def close(self, *servers: asyncio.Server) -> None:
        """Close servers and all connections, also those that were accepted just now.

        A second call does nothing.
        """
        self._closed = True
        loop = asyncio.get_running_loop()
        for listener in [listener for server in servers for listener in server.sockets]:
            loop.remove_reader(listener.fileno())
        # What was accepted becomes a transport in the next step of the event loop. If its server
        # were closed before, Python 3.11 would raise in between and never close it.
        await asyncio.sleep(0)
        for server in servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(RuntimeError):  # the event loop may be closed already
            writer.close()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):  # TimeoutError is one as well
            logger.error("a connection could not be served", exc_info=error)


async def carry(one: PipeEnd, other: PipeEnd) -> None:
    """Carry bytes both ways until one side ends; neither side of gRPC goes on with half of them."""
    ways = [
        asyncio.create_task(_pump(one.reader, other.writer)),
        asyncio.create_task(_pump(other.reader, one.writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes until the source ends."""
    while data := await source.read(CHUNK_BYTES):
        target.write(data)
        await target.drain()
