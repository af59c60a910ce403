"""Boards that dial in: who may, and how the controller calls them through their own connections.

The gate connects a board that dials in to this module (`latfarm_protos.trust.dialling` tells what
the two sides say). Each board has a Unix socket here. Whoever connects to it, which is the client
of the board in a shard, gets a fresh connection that the board is asked to make. So all that speaks
to boards only needs another address.

Only boards of the inventory are taken that were added with `--dials-in`, under the name in their
certificate. Their id must be that of their certificate, if it names one, and that in the inventory,
once it is noted there. One agent holds a board. A second one is refused while the first one
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from latfarm_protos.trust import dialling
from latfarm_protos.trust.gate import Admission
from latfarm_protos.trust.identity import Identity

from latfarm_controller.agents.registry import BoardEntry, Registry, changed_id
from latfarm_controller.api.pipes import CHUNK_BYTES, PipeEnd, ServedConnections, carry
from latfarm_controller.errors import UsageError

HELLO_S = 10.0
"""How long a connection may take to say what it is for, in seconds."""
OPEN_S = 10.0
"""How long a board may take to make a connection that it was asked for, in seconds."""
CLAIM_S = 3.0
"""How long the holder of a board may take to answer when another agent claims the board."""
MOST_CONNECTIONS = 16
"""Most connections to one board at once: its shard needs one, and each description one."""

logger = logging.getLogger(__name__)


class DialGate(Protocol):
    """What is needed of the gate."""

    @property
    def dialled(self) -> Path:
        """The path of the Unix socket to which boards that dial in are connected."""
        ...

    def admission(self, peer: str) -> Admission | None:
        """The client behind a peer; None if it did not come through the gate."""
        ...


class _Expected(NamedTuple):
    """A connection that a board was asked to make, and when it has served its purpose."""

    name: str
    made: asyncio.Future[PipeEnd]
    served: asyncio.Event


class _Control:
    """The control connection of one board."""

    def __init__(self, board_id: str, instance: str, end: PipeEnd) -> None:
        self.board_id = board_id
        self.instance = instance
        self._end = end
        self._ponged = asyncio.Event()

    def say(self, kind: str, **fields: object) -> None:
        """Send a message; what is said to a board that is gone is lost."""
        if not self._end.writer.is_closing():
            self._end.writer.write(dialling.packed(kind, **fields))

    async def answers(self, timeout_s: float) -> bool:
        """Whether the board is still there."""
        self._ponged.clear()
        self.say(dialling.PING)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ponged.wait(), timeout_s)
        return self._ponged.is_set()

    async def follow(self) -> None:
        """Hear the board until it ends the connection.

        Raises:
            TimeoutError: it is silent.
            DialMessageError: it says what no board says.
        """
        while True:
            async with asyncio.timeout(dialling.SILENT_S):
                line = await self._end.reader.readline()
            if not line:
                return
            if dialling.unpacked(line)["kind"] != dialling.PONG:
                raise dialling.DialMessageError("a board may only answer")
            self._ponged.set()

    def close(self) -> None:
        """Close the connection."""
        self._end.writer.close()


class DialledBoards:
    """The boards that have dialled in. Use it from one event loop, between `open` and `close`.

    Args:
        gate: lets boards in, and tells whose certificate a connection has.
        registry: the inventory.
        on_refused: called with the name and the reason where a board of the inventory is refused.
    """

    def __init__(
        self,
        gate: DialGate,
        registry: Registry,
        on_refused: Callable[[str, str], None] = lambda _name, _reason: None,
    ) -> None:
        self._gate = gate
        self._registry = registry
        self._on_refused = on_refused
        # A new short folder, since paths of Unix sockets must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="latfarm-"))
        self._known: dict[str, BoardEntry] = {}
        self._known_as_of: object = None
        self._controls: dict[str, _Control] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._expected: dict[str, _Expected] = {}
        self._under_way: Counter[str] = Counter()
        self._carrying: dict[str, set[asyncio.Task[None]]] = {}
        self._connections = ServedConnections()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Take boards from the gate."""
        self._server = await asyncio.start_unix_server(
            self._connections.serving(self._meet), str(self._gate.dialled), limit=CHUNK_BYTES
        )

    async def close(self) -> None:
        """End all connections; a second call does nothing."""
        servers = [*self._servers.values(), *([self._server] if self._server else [])]
        self._servers.clear()
        self._server = None
        await self._connections.close(*servers)
        shutil.rmtree(self._folder, ignore_errors=True)

    def address(self, name: str) -> str:
        """Where the agent of a board can be called while the board is connected."""
        mark = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        return f"unix:{self._folder / mark}"

    def board_id(self, name: str) -> str:
        """The id that a connected board gave when it dialled in; empty if it is not connected."""
        control = self._controls.get(name)
        return "" if control is None else control.board_id

    # What boards do

    async def _meet(self, end: PipeEnd) -> None:
        admission = self._gate.admission(end.writer.get_extra_info("peername") or "")
        if admission is None:
            return  # it did not come through the gate
        identity = admission.identity
        try:
            # Read in any case: a socket that is closed with unread bytes loses what was written.
            async with asyncio.timeout(HELLO_S):
                hello = dialling.unpacked(await end.reader.readline())
            if admission.refusal is not None:
                self._refuse(end, identity.name, admission.refusal.text)
            elif hello.get("version") != dialling.VERSION:
                self._refuse(end, identity.name, "it speaks another version: update the older side")
            elif hello["kind"] == dialling.CONTROL:
                board_id = dialling.text_of(hello, "board_id")
                instance = dialling.text_of(hello, "instance")
                await self._take(identity, _Control(board_id, instance, end), end)
            elif hello["kind"] == dialling.DATA:
                await self._lend(identity, dialling.text_of(hello, "key"), end)
            else:
                self._refuse(end, identity.name, "its first message names no use")
        except (dialling.DialMessageError, ValueError) as error:  # ValueError: of `readline`
            self._refuse(end, identity.name, f"it is no agent: {error}")

    async def _take(self, identity: Identity, control: _Control, end: PipeEnd) -> None:
        name = identity.name
        reason = await self._wrong(identity, control.board_id)
        if not reason:
            reason = await self._contest(name, control)
        if reason:
            self._refuse(end, name, reason)
            return
        self._controls[name] = control
        pinging: asyncio.Task[None] | None = None
        try:
            await self._listen(name)
            control.say(dialling.WELCOME)
            logger.info("board %s has dialled in", name)
            pinging = asyncio.create_task(self._ping(identity, control, end))
            await control.follow()
        finally:
            if pinging is not None:
                pinging.cancel()
            if self._controls.get(name) is control:
                del self._controls[name]
                logger.info("board %s is not connected any more", name)

    async def _contest(self, name: str, control: _Control) -> str:
        """Why another agent keeps a board; empty if nobody does any more."""
        while (holder := self._controls.get(name)) is not None:
            if holder.instance != control.instance and await holder.answers(CLAIM_S):
                return (
                    f"two agents claim board {name}, and the first one is still connected; stop "
                    f"one of them; if you know only one: latfarm certs revoke {name}"
                )
            # The same agent has dialled again, or the one before is gone.
            if self._controls.get(name) is holder:
                del self._controls[name]
                holder.close()
                self._cut(name)
        return ""

    async def _lend(self, identity: Identity, key: str, end: PipeEnd) -> None:
        """Give a connection that a board has made to whoever waits for it."""
        expected = self._expected.get(key)
        if expected is None or expected.name != identity.name or expected.made.done():
            logger.info("board %s made a connection that nobody waits for", identity.name)
            return
        expected.made.set_result(end)
        await expected.served.wait()

    async def _ping(self, identity: Identity, control: _Control, end: PipeEnd) -> None:
        """Ask whether a board is still there, and look whether it may still be."""
        while True:
            await asyncio.sleep(dialling.PING_S)
            reason = await self._wrong(identity, control.board_id)
            if reason:
                self._refuse(end, identity.name, reason)
                end.writer.close()
                self._cut(identity.name)
                return
            control.say(dialling.PING)

    async def _wrong(self, identity: Identity, board_id: str) -> str:
        """Why a board may not dial in; empty if it may."""
        name = identity.name
        try:
            entry = (await asyncio.to_thread(self._inventory)).get(name)
        except UsageError as error:
            return str(error)
        if entry is None or not entry.dials_in:
            return (
                f"board {name} is not in the inventory as one that dials in; if it belongs to this "
                f"farm: latfarm boards add {name} --dials-in"
            )
        if identity.board_id and identity.board_id != board_id:
            return (
                f"board {name} says that its id is {board_id}, but its certificate is for "
                f"{identity.board_id}; nothing of it is used"
            )
        if not board_id:
            return f"board {name} gives no id; nothing of it is used"
        if entry.board_id not in ("", board_id):
            return changed_id(name, board_id, entry.board_id)
        return ""

    def _inventory(self) -> dict[str, BoardEntry]:
        """The boards by name; the file is read again when it has changed."""
        try:
            stat = self._registry.path.stat()
            as_of: object = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            as_of = None
        if as_of is None or as_of != self._known_as_of:
            self._known = {entry.name: entry for entry in self._registry.list()}
            self._known_as_of = as_of
        return self._known

    def _refuse(self, end: PipeEnd, name: str, reason: str) -> None:
        logger.warning("refused a board that dials in, %s: %s", name, reason)
        end.writer.write(dialling.packed(dialling.REFUSED, reason=reason[:1000]))
        if name in self._known:
            self._on_refused(name, reason)

    # What clients of boards do

    async def _listen(self, name: str) -> None:
        if name not in self._servers:
            path = self.address(name).removeprefix("unix:")
            self._servers[name] = await asyncio.start_unix_server(
                self._connections.serving(partial(self._call, name)), path, limit=CHUNK_BYTES
            )

    async def _call(self, name: str, end: PipeEnd) -> None:
        """Connect a client of a board with a new connection of the board."""
        control = self._controls.get(name)
        if control is None or self._under_way[name] >= MOST_CONNECTIONS:
            return  # gRPC tries again, with growing pauses
        key = secrets.token_hex(16)
        made: asyncio.Future[PipeEnd] = asyncio.get_running_loop().create_future()
        expected = self._expected[key] = _Expected(name, made, asyncio.Event())
        self._under_way[name] += 1
        task = asyncio.current_task()
        assert task is not None
        carrying = self._carrying.setdefault(name, set())
        carrying.add(task)
        try:
            control.say(dialling.OPEN, key=key)
            async with asyncio.timeout(OPEN_S):
                board = await made
            await carry(end, board)
        finally:
            carrying.discard(task)
            self._under_way[name] -= 1
            del self._expected[key]
            expected.served.set()

    def _cut(self, name: str) -> None:
        """End the connections that are carried to a board."""
        for task in tuple(self._carrying.get(name, ())):
            task.cancel()
