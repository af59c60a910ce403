"""The Unix socket of the home, which knows which user of this machine is calling.

The kernel tells who has connected (SO_PEERCRED in `man 7 unix`), but gRPC does not hand it on. So
this module has the socket, asks the kernel, and carries the bytes to the gRPC server on another
socket in a private folder. Our end of each inner connection has a name, which gRPC shows as the
peer of a call, and `user(peer)` returns the user behind it. `api/outside.py` hands on the names in
certificates in the same process, and only that process is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from latfarm_controller.api.pipes import CHUNK_BYTES, PipeEnd, carry
from latfarm_controller.audit import unix_user
from latfarm_controller.private_files import private_file

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class SocketUser(NamedTuple):
    """Who is behind a connection: the user as an actor (`unix:NAME`), and the process."""

    actor: str
    pid: int


class HomeSocket:
    """Listens on a path between `open` and `close`. It belongs to one event loop.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A new short folder, since paths of Unix sockets must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="latfarm-"))
        self.inner = self._folder / "grpc"
        """The path of the socket on which the gRPC server must listen."""
        self._server: asyncio.Server | None = None
        self._users: dict[str, SocketUser] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take connections; the gRPC server must listen already.

        Raises:
            OSError: the socket cannot be made.
        """
        self._server = await asyncio.start_unix_server(
            self._serve, str(self._path), limit=CHUNK_BYTES
        )
        private_file(self._path)

    def user(self, peer: str) -> SocketUser | None:
        """The user behind a peer as gRPC names it; None if it did not come through here."""
        return self._users.get(peer.removeprefix("unix:"))

    async def close(self) -> None:
        """End all connections and remove the socket; a second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._path.unlink(missing_ok=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        name = str(self._folder / f"{next(self._numbers)}")
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._carry(name, reader, writer)
        finally:
            self._tasks.discard(task)
            self._users.pop(name, None)
            writer.close()
            Path(name).unlink(missing_ok=True)

    async def _carry(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        user = _user(writer.get_extra_info("socket"))
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            inner.bind(name)
            await asyncio.get_running_loop().sock_connect(inner, str(self.inner))
            back, forth = await asyncio.open_unix_connection(sock=inner, limit=CHUNK_BYTES)
        except BaseException:
            inner.close()
            raise
        if user is not None:
            self._users[name] = user
        try:
            await carry(PipeEnd(reader, writer), PipeEnd(back, forth))
        finally:
            forth.close()


def _user(plain: socket.socket) -> SocketUser | None:
    """Who has connected; None on a system that does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    found = plain.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return SocketUser(unix_user(uid), pid)


def is_this_process(user: SocketUser) -> bool:
    """Whether a connection was made by this process."""
    return user.pid == os.getpid()
