"""The messages between an agent's two processes, over a Unix socket.

One process has the network, the other one has the devices and measures. Each connection carries one
question. The process with the network sends one message, together with the open files of the model
if there is one, and keeps the connection open while it wants the answer: closing it cancels. The
other side sends stages and then one answer. Messages have the form of `worker.channel`; protocol
buffers in them are base64 text.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from typing import Sequence

from latfarm_agent.bench.records import BenchRequest
from latfarm_agent.files.companions import MOST_COMPANIONS
from latfarm_agent.files.readiness import readable
from latfarm_agent.worker.channel import ChannelError, Decoder, Message, encode

MAX_PATH_BYTES = 107
"""Longest name of a Unix socket on Linux, without the final zero."""

_CHUNK_BYTES = 1 << 16
"""How much is read at once."""

_MOST_FILES = 1 + MOST_COMPANIONS
"""Most open files that come with a message; Linux itself takes 253 (unix(7), SCM_RIGHTS)."""


def file_names(request: BenchRequest, model: str) -> list[str]:
    """The names of the files that are sent with a request, in their order: the model comes first.

    Its companions are named by their hashes, and each is sent once.
    """
    return [model, *sorted(set(request.companions.values()) - {model})]


class LinkError(Exception):
    """The connection broke, or the other side sent what the protocol does not allow."""


class NotTakenError(LinkError):
    """The other side closed the connection before it had read all that was sent to it."""


class Link:
    """One end of a connection. One thread may call `send` while another one calls `receive`.

    Args:
        connection: a connected socket; the link closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._waiting: list[Message] = []

    def ready(self, timeout_s: float) -> bool:
        """Whether `receive` would answer at once; waits for that for at most `timeout_s`."""
        return bool(self._waiting or readable([self._connection], timeout_s))

    def ended(self) -> bool:
        """Whether the other side has closed its end, or sent something when it must not."""
        return self.ready(0.0)

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Send a message, and open files with it.

        Raises:
            NotTakenError: the other side has closed the connection and never gets the message.
            LinkError: the connection broke.
        """
        data = encode(message)
        try:
            sent = 0
            if files:
                # The kernel hands the files over with the first bytes that it takes.
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
                sent = self._connection.sendmsg([data], [rights])
            self._connection.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise NotTakenError(f"the connection broke: {error.strerror or error}") from error
        except OSError as error:
            raise LinkError(f"the connection broke: {error.strerror or error}") from error

    def receive(self) -> Message | None:
        """The next message; None at the end of the connection.

        Raises:
            NotTakenError: the other side has not read what was sent to it: Linux resets a
                connection that is closed before its data was read, or before it was accepted.
            LinkError: the connection broke, or the bytes are not a message.
        """
        message, files = self.receive_with_files()
        close_all(files)
        return message

    def receive_with_files(self) -> tuple[Message | None, list[int]]:
        """The next message, and the open files that came with it, which the caller must close.

        Raises:
            LinkError: as `receive`.
        """
        files: list[int] = []
        try:
            data = b"more"
            while data and not self._waiting:
                data = self._read(files)
                self._waiting += self._decoder.feed(data)
        except ConnectionResetError as error:
            close_all(files)
            raise NotTakenError(f"the connection broke: {error}") from error
        except (OSError, ChannelError) as error:
            close_all(files)
            raise LinkError(f"the connection broke: {error}") from error
        if not self._waiting and self._decoder.pending:
            close_all(files)
            raise LinkError("the connection ended within a message")
        return (self._waiting.pop(0) if self._waiting else None), files

    def close(self) -> None:
        """End the connection. Idempotent."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, files: list[int]) -> bytes:
        size = array.array("i").itemsize
        space = socket.CMSG_SPACE(size * _MOST_FILES)
        data, ancillary, _, _ = self._connection.recvmsg(_CHUNK_BYTES, space)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(payload[: len(payload) - len(payload) % size])
                for file in found:
                    os.set_inheritable(file, False)
                files += found
        if len(files) > _MOST_FILES:
            raise ChannelError(f"more than {_MOST_FILES} open files came with a message")
        return data


def close_all(files: Sequence[int]) -> None:
    """Close open files; one that cannot be closed is left."""
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
