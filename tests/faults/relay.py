"""TCP relays between a controller and its boards, whose links can be cut and silenced.

One thread with an event loop serves all relays of a run. The port of a relay stays the same when
its board is restarted on another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

CHUNK_BYTES = 1 << 16
"""Most bytes that are read at once."""

Given = TypeVar("Given")


class LinkRelay:
    """The link to one board. Its methods are called in the event loop of its `RelayThread`."""

    def __init__(self) -> None:
        self.address = ""
        self.target = ""
        self._server: asyncio.Server | None = None
        self._closed = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._armed = ""
        self._struck = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on a free port of the loopback address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Cut everything, and listen no more."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections at once, with a reset."""
        for writer in list(self._writers):
            writer.transport.abort()

    def refuse(self, *, refused: bool) -> None:
        """Whether new connections are ended at once; cuts those that are open."""
        self._closed = refused
        if refused:
            self.cut()

    def arm(self, moment: str) -> asyncio.Event:
        """Cut the link at its next moment of a kind, and refuse it from then on.

        Args:
            moment: `request`: before bytes for the board are passed on; `answer`: before bytes of
                the board are; `during`: after one half of them.

        Returns:
            an event that is set once the link is cut.
        """
        self._armed, self._struck = moment, asyncio.Event()
        return self._struck

    def silence(self, *, silent: bool) -> None:
        """Whether nothing is passed on, in either direction, while connections stay open."""
        if silent:
            self._flows.clear()
        else:
            self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._flows.wait()
            if self._closed or not self.target:
                return
            host, _, port = self.target.rpartition(":")
            inner, outer = await asyncio.open_connection(host, int(port))
            self._writers.add(outer)
            try:
                await self._carry(reader, writer, inner, outer)
            finally:
                self._writers.discard(outer)
                outer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # the board does not listen now, or the run ends
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner: asyncio.StreamReader,
        outer: asyncio.StreamWriter,
    ) -> None:
        """Pass bytes on in both directions until one end has closed or the link is cut."""
        ways = [
            asyncio.create_task(self._pump(reader, outer, "request")),
            asyncio.create_task(self._pump(inner, writer, "answer")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                await self._flows.wait()
                if self._armed == way or (self._armed == "during" and way == "answer"):
                    if self._armed == "during":
                        sink.write(data[: len(data) // 2])
                        await sink.drain()
                    self._armed = ""
                    self._struck.set()
                    self.refuse(refused=True)
                    return
                sink.write(data)
                await sink.drain()


class RelayThread:
    """The thread with the event loop of all relays of a run; use it as a block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._relays: list[LinkRelay] = []

    def __enter__(self) -> RelayThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for relay in self._relays:
            self.run(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def relay(self) -> LinkRelay:
        """A new relay, which listens and has no target yet."""

        async def made() -> LinkRelay:
            relay = LinkRelay()
            await relay.open()
            return relay

        relay = self.run(made())
        self._relays.append(relay)
        return relay

    def run(self, work: Coroutine[Any, Any, Given]) -> Given:
        """Wait for a coroutine that runs in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, action: Callable[[], Given]) -> Given:
        """Wait for a call in the event loop."""

        async def called() -> Given:
            return action()

        return self.run(called())
