"""What the networked agent and the unit that measures say to each other, over a Unix socket.

One connection is one question. The asker sends one message, with the model's open file where there
is one, and keeps its side open for as long as it wants the answer: to close it is to cancel. The
other side sends stages and then one answer. Messages are `channel`'s, protocol buffers in them
base64.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket

from latfarm_agent.worker.channel import ChannelError, Decoder, Message, encode

MAX_PATH_BYTES = 107
"""Of a Unix socket's name, without its end."""

_CHUNK_BYTES = 1 << 16


class LinkError(Exception):
    """The other side said what nobody of ours says, or nothing any more."""


class Link:
    """One end of a connection. `send` may be called by any one thread, `receive` by another.

    Args:
        connection: connected; the link closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._waiting: list[Message] = []

    def ready(self, timeout_s: float) -> bool:
        """Whether `receive` would answer at once; waits so long for that."""
        return bool(self._waiting or select.select([self._connection], [], [], timeout_s)[0])

    def ended(self) -> bool:
        """Whether the other side has closed its end, or broken the rule to send nothing more."""
        return self.ready(0.0)

    def send(self, message: Message, file: int | None = None) -> None:
        """Send a message, with an open file where one is given.

        Raises:
            LinkError: nobody reads any more.
        """
        data = encode(message)
        try:
            sent = 0
            if file is not None:
                # The kernel hands the file over with the first bytes that it takes.
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
                sent = self._connection.sendmsg([data], [rights])
            self._connection.sendall(data[sent:])
        except OSError as error:
            raise LinkError(f"the connection broke: {error.strerror or error}") from error

    def receive(self) -> Message | None:
        """The next message; None at the end.

        Raises:
            LinkError: the connection broke, or the bytes are no message.
        """
        message, file = self.receive_with_file()
        if file is not None:
            os.close(file)
        return message

    def receive_with_file(self) -> tuple[Message | None, int | None]:
        """The next message, and the open file that came with it: the caller closes it.

        Raises:
            LinkError: as `receive`.
        """
        files: list[int] = []
        try:
            data = b"more"
            while data and not self._waiting:
                data = self._read(files)
                self._waiting += self._decoder.feed(data)
        except (OSError, ChannelError) as error:
            _close(files)
            raise LinkError(f"the connection broke: {error}") from error
        if not self._waiting and self._decoder.pending:
            _close(files)
            raise LinkError("the connection ended within a message")
        _close(files[1:])
        return (self._waiting.pop(0) if self._waiting else None), (files[0] if files else None)

    def close(self) -> None:
        """End the connection. Idempotent."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, files: list[int]) -> bytes:
        size = array.array("i").itemsize
        data, ancillary, _, _ = self._connection.recvmsg(_CHUNK_BYTES, socket.CMSG_SPACE(size))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(payload[: len(payload) - len(payload) % size])
                for file in found:
                    os.set_inheritable(file, False)
                files += found
        return data


def _close(files: list[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
