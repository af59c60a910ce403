"""Messages between the agent and a worker: JSON objects over a pipe, each after its length."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict

Message = Dict[str, Any]

_HEADER = struct.Struct(">2sI")
_MAGIC = b"lf"
"""First bytes of each header."""

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message."""


class ChannelError(Exception):
    """The stream holds other bytes than messages, or it ended within a message."""


def encode(message: Message) -> bytes:
    """One message as the bytes that are written to the pipe."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ChannelError(f"a message of {len(body)} bytes is over {MAX_MESSAGE_BYTES}")
    return _HEADER.pack(_MAGIC, len(body)) + body


def send(fd: int, message: Message) -> None:
    """Write one message to a blocking descriptor.

    Raises:
        OSError: the reader has closed the pipe.
    """
    left = memoryview(encode(message))
    while left:
        left = left[os.write(fd, left) :]


def receive(fd: int) -> Message | None:
    """Read one message from a blocking descriptor; None at the end of the stream.

    Raises:
        ChannelError: the stream holds other bytes than messages.
    """
    decoder = Decoder()
    while True:
        data = os.read(fd, decoder.wanted())
        if not data:
            if decoder.pending:
                raise ChannelError("the stream ended within a message")
            return None
        messages = decoder.feed(data)
        if messages:
            return messages[0]


class Decoder:
    """Turns bytes as they arrive into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> bool:
        """Whether part of a message is waiting for its rest."""
        return bool(self._buffer)

    def wanted(self) -> int:
        """How many bytes complete the current header or message; more would belong to the next."""
        size = self._size()
        return _HEADER.size + (size or 0) - len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes; gives the messages that they complete.

        Raises:
            ChannelError: the bytes are not a message.
        """
        self._buffer += data
        messages: list[Message] = []
        while True:
            size = self._size()
            if size is None or len(self._buffer) < _HEADER.size + size:
                return messages
            body = bytes(self._buffer[_HEADER.size : _HEADER.size + size])
            del self._buffer[: _HEADER.size + size]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise ChannelError(f"a message is not JSON: {error}") from error
            if not isinstance(message, dict):
                raise ChannelError("a message is not a JSON object")
            messages.append(message)

    def _size(self) -> int | None:
        if len(self._buffer) < _HEADER.size:
            return None
        header: tuple[bytes, int] = _HEADER.unpack_from(self._buffer)
        if header[0] != _MAGIC or header[1] > MAX_MESSAGE_BYTES:
            raise ChannelError("the stream holds something else than our messages")
        return header[1]
