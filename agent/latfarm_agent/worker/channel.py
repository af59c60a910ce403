"""Messages between the agent and a worker: JSON objects, each behind its length, over a pipe."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict

Message = Dict[str, Any]

_HEADER = struct.Struct(">2sI")
_MAGIC = b"lf"
MAX_MESSAGE_BYTES = 64 << 20


class ChannelError(Exception):
    """The stream is not ours: something else wrote into it, or it ended within a message."""


def encode(message: Message) -> bytes:
    """One message as it stands on the pipe."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ChannelError(f"a message of {len(body)} bytes is over {MAX_MESSAGE_BYTES}")
    return _HEADER.pack(_MAGIC, len(body)) + body


def send(fd: int, message: Message) -> None:
    """Write one message to a blocking descriptor.

    Raises:
        OSError: nobody reads any more.
    """
    left = memoryview(encode(message))
    while left:
        left = left[os.write(fd, left) :]


def receive(fd: int) -> Message | None:
    """Read one message from a blocking descriptor; None at the end of the stream.

    Raises:
        ChannelError: the stream is not ours.
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
        """How many bytes complete the header or message at hand: more would overread."""
        size = self._size()
        return _HEADER.size + (size or 0) - len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, return the messages that they complete.

        Raises:
            ChannelError: the bytes are no message of ours.
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
                raise ChannelError(f"a message is no JSON: {error}") from error
            if not isinstance(message, dict):
                raise ChannelError("a message is no JSON object")
            messages.append(message)

    def _size(self) -> int | None:
        if len(self._buffer) < _HEADER.size:
            return None
        header: tuple[bytes, int] = _HEADER.unpack_from(self._buffer)
        if header[0] != _MAGIC or header[1] > MAX_MESSAGE_BYTES:
            raise ChannelError("the stream holds something else than our messages")
        return header[1]
