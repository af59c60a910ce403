"""A channel of messages between two processes: frames of JSON text over a socket pair.

Each frame is the length of its text in four bytes, the most significant first, and then the text.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import codec

LENGTH_BYTES = 4
"""Size of the length in front of each frame, in bytes."""
MAX_FRAME_BYTES = 256 << 20
"""Largest frame in bytes. Large models travel as files, so that messages stay far below this."""
SEND_S = 30.0
"""Longest time that the other process may take to read what was sent, in seconds."""


class Channel:
    """One end of the channel. Use it from one event loop; several tasks may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()

    @staticmethod
    async def over(end: socket.socket) -> Channel:
        """The channel over one end of a socket pair, which belongs to the channel from now on."""
        return Channel(*await asyncio.open_connection(sock=end))

    async def send(self, message: object) -> None:
        """Send a message.

        Raises:
            FarmError: the message cannot be sent, or the other process does not read.
        """
        text = codec.dumps(message)
        if len(text) > MAX_FRAME_BYTES:
            raise FarmError(f"a {type(message).__name__} of {len(text)} bytes is too large to send")
        try:
            async with asyncio.timeout(SEND_S), self._sending:
                self._writer.write(len(text).to_bytes(LENGTH_BYTES, "big") + text)
                await self._writer.drain()
        except TimeoutError:
            raise FarmError(f"the other process has read nothing for {SEND_S:.0f} s") from None
        except (OSError, RuntimeError) as error:
            raise FarmError(f"the other process has ended: {error}") from error

    async def receive(self) -> Any:
        """The next message; None when the other process has closed the channel or has ended.

        Raises:
            FarmError: what came is not a message.
        """
        try:
            size_bytes = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            if size_bytes > MAX_FRAME_BYTES:
                raise FarmError(f"a message of {size_bytes} bytes is too large")
            text = await self._reader.readexactly(size_bytes)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return codec.loads(text)

    async def close(self) -> None:
        """Close this end. Closing again does nothing."""
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
