"""The Unix socket of the home, which knows which user of this machine is calling.

The kernel tells who has connected (SO_PEERCRED in `man 7 unix`), but gRPC does not hand it on. So
this module has the socket, asks the kernel, and carries the bytes to the gRPC server on another
socket in a private folder. Our end of each inner connection has a name, which gRPC shows as the
peer of a call, and `user(peer)` returns the user behind it. `api/outside.py` hands on the names in
certificates in the same process, and only that process is believed. A second socket of this kind
can be open to a group of users (`group_socket.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import socket
import struct
import tempfile
from collections import deque
from pathlib import Path
from typing import NamedTuple

from latfarm_controller.api.group_socket import SocketGroup, is_owner
from latfarm_controller.api.pipes import CHUNK_BYTES, PipeEnd, ServedConnections, carry
from latfarm_controller.audit import unix_user
from latfarm_controller.private_files import private_file

REMEMBERED = 4096
"""Number of connections that have ended whose users are still known, because gRPC may begin a call
after its connection has ended."""

logger = logging.getLogger(__name__)

_TELLS_USERS = hasattr(socket, "SO_PEERCRED")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class SocketUser(NamedTuple):
    """Who is behind a connection: the user as an actor (`unix:NAME`), and the process.

    `owner` tells whether it is the account of the controller, or root. Anybody else came through a
    socket for a group, and may only do what operators of other machines may do.
    """

    actor: str
    pid: int
    uid: int
    owner: bool


class HomeSocket:
    """Listens on a path between `open` and `close`. It belongs to one event loop.

    Args:
        path: of the socket.
        group: who may use it besides its owner; None: nobody.
    """

    def __init__(self, path: Path, group: SocketGroup | None = None) -> None:
        self.path = path
        self._group = group
        # A new short folder, since paths of Unix sockets must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="latfarm-"))
        self.inner = self._folder / "grpc"
        """The path of the socket on which the gRPC server must listen."""
        self._server: asyncio.Server | None = None
        self._users: dict[str, SocketUser] = {}
        self._ended: deque[str] = deque()  # connections whose last calls may not have begun yet
        self._numbers = itertools.count(1)
        self._connections = ServedConnections()

    async def open(self) -> None:
        """Take connections; the gRPC server must listen already.

        Raises:
            OSError: the socket cannot be made.
            UsageError: it cannot be given to the group.
        """
        self._server = await asyncio.start_unix_server(
            self._connections.serving(self._serve),
            str(self.path),
            limit=CHUNK_BYTES,
            start_serving=False,
        )
        private_file(self.path)
        if self._group is not None:
            self._group.give(self.path)
        await self._server.start_serving()

    def user(self, peer: str) -> SocketUser | None:
        """The user behind a peer as gRPC names it; None if it did not come through here."""
        return self._users.get(peer.removeprefix("unix:"))

    async def close(self) -> None:
        """End all connections and remove the socket; a second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            self.path.unlink(missing_ok=True)
        await self._connections.close(*([] if server is None else [server]))
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, end: PipeEnd) -> None:
        name = str(self._folder / f"{next(self._numbers)}")
        try:
            await self._carry(name, end)
        finally:
            self._forget_later(name)
            Path(name).unlink(missing_ok=True)

    def _forget_later(self, name: str) -> None:
        """Forget who was behind a connection, once its calls have surely begun."""
        self._ended.append(name)
        while len(self._ended) > REMEMBERED:
            self._users.pop(self._ended.popleft(), None)

    async def _carry(self, name: str, end: PipeEnd) -> None:
        user = _user(end.writer.get_extra_info("socket"))
        if not await self._admitted(user):
            return
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
            await carry(end, PipeEnd(back, forth))
        finally:
            forth.close()

    async def _admitted(self, user: SocketUser | None) -> bool:
        """Whether a user may use this socket; what is refused is one line in the log."""
        if self._group is None or (user is not None and user.owner):
            return True  # the permissions of the home keep others away
        if user is not None and await asyncio.to_thread(self._group.admits, user.uid):
            return True
        logger.warning(
            "%s: %s was refused: not a member of the group %s",
            self.path,
            "a user whom the system does not tell" if user is None else user.actor,
            self._group.name,
        )
        return False


def _user(plain: socket.socket) -> SocketUser | None:
    """Who has connected; None on a system that does not tell."""
    if not _TELLS_USERS:
        return None
    found = plain.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return SocketUser(unix_user(uid), pid, uid, is_owner(uid))


def owns_home(user: SocketUser | None) -> bool:
    """Whether the caller is the owner of the home.

    Args:
        user: who is behind the call; None where the system does not tell users, or where nothing is
            known of the connection any more.
    """
    return not _TELLS_USERS if user is None else user.owner


def is_this_process(user: SocketUser) -> bool:
    """Whether a connection was made by this process."""
    return user.pid == os.getpid()
