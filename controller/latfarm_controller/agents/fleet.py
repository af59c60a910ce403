"""The boards that the controller can use: those of the inventory, and this machine as a board."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import BoardEntry, Registry, changed_id, second_holder
from latfarm_controller.agents.tls import home_files, is_loopback, split
from latfarm_controller.board_hooks import BoardHooks
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import AgentError, IdentityError, UsageError
from latfarm_controller.nearest_names import hint
from latfarm_controller.platform_name import platform_hint

logger = logging.getLogger(__name__)

LOCAL = "local"
"""Name of the board that this machine is itself."""
DESCRIBE_MS = 5_000.0
"""How long a board gets to describe itself before it counts as unreachable.

An agent has looked at its board before it starts to serve, so it can answer at once.
"""
MOST_TOLD = 20
"""Most names in one line of a message."""


@dataclass(frozen=True)
class BoardView:
    """A board of the inventory and its answer: `info`, or in `error` why there is none."""

    entry: BoardEntry
    info: BoardInfo | None = None
    error: str = ""
    foreign: bool = False
    """Whether it was refused because of its id."""


class IdentityListener(Protocol):
    """Is told what ids boards give. It is called from the event loop and must not wait."""

    def identified(self, name: str, board_id: str) -> None:
        """The board of that name answered with its own id."""
        ...

    def refused(self, name: str, reason: str) -> None:
        """The board of that name is not used, because it gave another id than its own."""
        ...


class DialledIn(Protocol):
    """Knows the boards that have dialled in. It belongs to the event loop."""

    def address(self, name: str) -> str:
        """Where the agent of a board can be called while the board is connected."""
        ...

    def board_id(self, name: str) -> str:
        """The id that a connected board gave; empty if it is not connected."""
        ...


def proven(entry: BoardEntry, tls_dir: Path) -> BoardEntry:
    """An entry with the controller's own certificates, if it needs some and names none."""
    if entry.dials_in or entry.tls is not None or entry.insecure:
        return entry
    if is_loopback(split(entry.address)[0]):
        return entry
    tls = home_files(tls_dir)
    return entry if tls is None else replace(entry, tls=tls)


class Fleet:
    """Knows the boards, and starts the local agent when it is first needed.

    Use it from one event loop.
    """

    def __init__(self, config: ControllerConfig, holder: str) -> None:
        self._config = config
        self._holder = holder
        self._local: LocalAgent | None = None
        self._starting = asyncio.Lock()
        self._listener: IdentityListener | None = None
        self._listed: list[BoardEntry] = []
        self._entries: dict[str, BoardEntry] = {}
        self._listed_mark: tuple[int, int, int] | None = None
        self._dialled: DialledIn | None = None

    def listen(self, listener: IdentityListener) -> None:
        """Have a listener told about ids; it takes the place of an earlier one."""
        self._listener = listener

    def take_in(self, dialled: DialledIn) -> None:
        """Call boards that dial in through this from now on."""
        self._dialled = dialled

    def refused(self, name: str, reason: str) -> None:
        """Tell the listener that a board was refused when it dialled in."""
        if self._listener is not None:
            self._listener.refused(name, reason)

    def address(self, name: str) -> str:
        """The address of a board; empty for the local agent before it runs.

        Raises:
            UsageError: there is no board of that name; lists the known names.
        """
        listed = {entry.name: entry for entry in Registry(self._config.boards_file).list()}
        if name in listed:
            return listed[name].where
        if name == LOCAL and self._config.local_agent:
            return self._local.address if self._local is not None else ""
        known = [*([LOCAL] if self._config.local_agent else []), *sorted(listed)]
        near = hint(name, known)
        raise UsageError(f"no board {name!r}; there are: {_some(known, ', ')}{near}")

    async def entries(self) -> list[BoardEntry]:
        """The boards and their addresses; this starts the local agent if it does not run.

        Raises:
            UsageError: the inventory cannot be read.
            AgentError: the local agent cannot be started.
        """
        listed = self.listed()
        if not self._config.local_agent or any(entry.name == LOCAL for entry in listed):
            return listed
        return [BoardEntry(LOCAL, await self._local_address()), *listed]

    def listed(self) -> list[BoardEntry]:
        """The boards of the inventory; the file is only read if it has changed.

        Raises:
            UsageError: the inventory cannot be read.
        """
        self._reread()
        proofs = (proven(entry, self._config.tls_dir) for entry in self._listed)
        return [self._reachable(entry) for entry in proofs]

    def _reread(self) -> None:
        """Read the inventory, if it has changed.

        Raises:
            UsageError: it cannot be read.
        """
        mark = _file_mark(self._config.boards_file)
        if mark is None or mark != self._listed_mark:
            self._listed = Registry(self._config.boards_file).list()
            self._entries = {entry.name: entry for entry in self._listed}
            self._listed_mark = mark

    def hooks(self, name: str) -> BoardHooks:
        """What reboots a board and switches its power; nothing for a board without an entry.

        Raises:
            UsageError: the inventory cannot be read.
        """
        self._reread()
        entry = self._entries.get(name)
        return BoardHooks() if entry is None else entry.hooks

    def profiles(self) -> dict[str, BoardProfile]:
        """What is noted about the boards of the inventory, by their names.

        Raises:
            UsageError: the inventory cannot be read.
        """
        self._reread()
        return {name: entry.profile for name, entry in self._entries.items()}

    @property
    def own(self) -> str:
        """Name of the board that this machine is itself; empty if its agent was not started."""
        return "" if self._local is None else LOCAL

    async def views(self) -> list[BoardView]:
        """What each board says about itself; boards that cannot be reached are included.

        A board that answers for the first time gets its id noted in the inventory. A board with
        another id than before, or with the id of another board, counts as unreachable.
        """
        return await self.look_at(await self.entries())

    async def look_at(self, entries: Sequence[BoardEntry]) -> list[BoardView]:
        """What some boards say about themselves; see `views`."""
        found = await asyncio.gather(*(self._view(entry) for entry in entries))
        own = self.own
        registry = Registry(self._config.boards_file)
        views = await asyncio.to_thread(identified, list(found), registry, own)
        listener = self._listener
        for view in views:
            if listener is not None and view.foreign:
                listener.refused(view.entry.name, view.error)
            elif listener is not None and view.info is not None and view.entry.name != own:
                listener.identified(view.entry.name, view.info.board_id)
        return views

    async def offering(self, platform: str) -> list[BoardView]:
        """The reachable boards that offer a platform.

        Raises:
            UsageError: none does; lists the known platforms, and the boards that did not answer.
        """
        views = await self.views()
        found = [view for view in views if view.info and view.info.platform(platform)]
        if not found:
            raise UsageError(unknown_platform(platform, views))
        return found

    async def close(self) -> None:
        """Stop the local agent, if it was started here."""
        local, self._local = self._local, None
        if local is not None:
            await asyncio.to_thread(local.stop)

    def _reachable(self, entry: BoardEntry) -> BoardEntry:
        """An entry with the address through which a board that dials in is called."""
        if not entry.dials_in or self._dialled is None:
            return entry
        return replace(entry, address=self._dialled.address(entry.name))

    async def _view(self, entry: BoardEntry) -> BoardView:
        claimed = ""
        if entry.dials_in:
            claimed = "" if self._dialled is None else self._dialled.board_id(entry.name)
            if not claimed:
                return BoardView(entry, error=_not_dialled(entry.name, self._dialled is not None))
        try:
            # With TLS, the handshake shows at once who refuses.
            if entry.tls is None and not entry.dials_in:
                await _knock(entry.address)
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {DESCRIBE_MS / 1e3:.0f} s"
            return BoardView(entry, error=f"{entry.address}: {reason}")
        async with AgentClient(
            entry.address, self._holder, entry.tls, insecure=entry.insecure, board_id=claimed
        ) as client:
            try:
                return BoardView(entry, await client.describe(DESCRIBE_MS))
            except (AgentError, UsageError) as error:  # its TLS files may be missing here
                foreign = isinstance(error, IdentityError)
                return BoardView(entry, error=str(error), foreign=foreign)

    async def _local_address(self) -> str:
        async with self._starting:
            if self._local is None or not self._local.alive:
                local = LocalAgent(
                    LocalAgentOptions(
                        state_dir=self._config.agents_dir / LOCAL,
                        log_path=self._config.logs_dir / "agent-local.log",
                        name=LOCAL,
                        cpu=self._config.local_cpu,
                        threads=self._config.local_threads,
                        config=self._config.local_config,
                    )
                )
                await asyncio.to_thread(local.start, self._config.start_timeout_ms)
                self._local = local
            return self._local.address


def identified(views: Sequence[BoardView], registry: Registry, own: str = "") -> list[BoardView]:
    """The views with the ids of their boards noted; a board with a foreign id counts as refused.

    The board that this machine is itself has its id in any case, since its agent was started here.
    An id that was noted belongs to its board. Where several boards give an id that is not noted
    yet, none of them is believed.

    Args:
        views: what each board says about itself.
        registry: the inventory, in which ids are noted.
        own: name of the board whose agent was started here; empty if there is none.
    """
    local = {v.entry.name: v.info.board_id for v in views if v.info and v.entry.name == own}
    noted = {view.entry.board_id: view.entry.name for view in views if view.entry.board_id}
    noted |= {board_id: name for name, board_id in local.items()}
    given = Counter(view.info.board_id for view in views if view.info is not None)
    found = []
    for view in views:
        entry, info = view.entry, view.info
        if info is None:
            found.append(view)
            continue
        board_id, reason = info.board_id, ""
        holder = noted.get(board_id, "")
        if holder and holder == own != entry.name:
            reason = _this_machine(entry.name, board_id)
        elif holder and holder != entry.name:
            reason = second_holder(entry.name, board_id, holder)
        elif entry.board_id not in ("", board_id):
            reason = changed_id(entry.name, board_id, entry.board_id)
        elif not holder and given[board_id] > 1:
            reason = _several(board_id, [v.entry.name for v in views if _has(v, board_id)])
        elif not holder:
            reason = _pin(registry, entry.name, board_id)
        if reason:
            found.append(BoardView(entry, error=reason, foreign=True))
        else:
            found.append(BoardView(replace(entry, board_id=board_id), info))
    return found


def _pin(registry: Registry, name: str, board_id: str) -> str:
    """Note the id of a board that answers for the first time; why it is refused, else empty."""
    try:
        registry.pin(name, board_id)
    except IdentityError as error:
        return str(error)
    except UsageError as error:  # such as an inventory that we may not write
        logger.warning("the id of board %s cannot be noted: %s", name, error)
    return ""


def _has(view: BoardView, board_id: str) -> bool:
    return view.info is not None and view.info.board_id == board_id


def _this_machine(name: str, board_id: str) -> str:
    """The message for a board that has the id of this machine."""
    return (
        f"board {name} says that its id is {board_id}, which is that of board {LOCAL}, this "
        f"machine; nothing of it is used; to use {name} in the place of {LOCAL}, set "
        "LATFARM_LOCAL_AGENT=false"
    )


def _several(board_id: str, names: Sequence[str]) -> str:
    """The message for boards that all give one id which is not noted for any of them."""
    return (
        f"boards {_some(names, ', ')} all say that their id is {board_id}, which is not known from "
        "before; none of them is used; say whose id it is: latfarm boards accept "
        f"{names[0]}"
    )


def _file_mark(path: Path) -> tuple[int, int, int] | None:
    """What changes whenever a file is replaced; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _not_dialled(name: str, served: bool) -> str:
    """Why a board that dials in cannot be called."""
    if not served:
        return f"board {name} dials in, which needs `latfarm serve --listen HOST:PORT`"
    return f"board {name} dials in, and is not connected now; its agent's log says why"


async def _knock(address: str) -> None:
    """Open a connection and close it, to learn at once if it is refused: gRPC would keep trying.

    Raises:
        OSError: nothing listens at the address, or there is no route to it.
        TimeoutError: there was no answer.
    """
    host, port = split(address)
    async with asyncio.timeout(DESCRIBE_MS / 1e3):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def unknown_platform(platform: str, views: Sequence[BoardView]) -> str:
    """The message for a platform that no board offers, with the platforms that are known."""
    known = sorted({p.name for view in views if view.info for p in view.info.platforms})
    silent = [f"{view.entry.name} ({view.error})" for view in views if view.error]
    text = f"unknown platform {platform!r}; known: {_some(known, ', ')}"
    text += platform_hint(platform, known) or hint(platform, known)
    if not views:
        return f"{text}; there is no board: latfarm boards add NAME HOST:PORT"
    return f"{text}; not reachable: {_some(silent, '; ')}" if silent else text


def _some(names: Sequence[str], separator: str) -> str:
    """The first names in one line, and how many more there are."""
    more = [f"and {len(names) - MOST_TOLD} more"] if len(names) > MOST_TOLD else []
    return separator.join([*names[:MOST_TOLD], *more]) or "none"
