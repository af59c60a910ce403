"""The boards that the controller can use: those of the inventory, and this machine as a board."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import BoardEntry, Registry
from latfarm_controller.agents.tls import home_files, is_loopback, split
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import AgentError, UsageError

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


class Fleet:
    """Knows the boards, and starts the local agent when it is first needed.

    Use it from one event loop.
    """

    def __init__(self, config: ControllerConfig, holder: str) -> None:
        self._config = config
        self._holder = holder
        self._local: LocalAgent | None = None
        self._starting = asyncio.Lock()

    def address(self, name: str) -> str:
        """The address of a board; empty for the local agent before it runs.

        Raises:
            UsageError: there is no board of that name; lists the known names.
        """
        listed = {entry.name: entry for entry in Registry(self._config.boards_file).list()}
        if name in listed:
            return listed[name].address
        if name == LOCAL and self._config.local_agent:
            return self._local.address if self._local is not None else ""
        known = [*([LOCAL] if self._config.local_agent else []), *sorted(listed)]
        raise UsageError(f"no board {name!r}; there are: {_some(known, ', ')}")

    async def entries(self) -> list[BoardEntry]:
        """The boards and their addresses; this starts the local agent if it does not run.

        Raises:
            UsageError: the inventory cannot be read.
            AgentError: the local agent cannot be started.
        """
        listed = [self._proven(entry) for entry in Registry(self._config.boards_file).list()]
        if not self._config.local_agent or any(entry.name == LOCAL for entry in listed):
            return listed
        return [BoardEntry(LOCAL, await self._local_address()), *listed]

    def _proven(self, entry: BoardEntry) -> BoardEntry:
        """An entry with the controller's own certificates, if it needs some and names none."""
        if entry.tls is not None or entry.insecure or is_loopback(split(entry.address)[0]):
            return entry
        tls = home_files(self._config.tls_dir)
        return entry if tls is None else replace(entry, tls=tls)

    async def views(self) -> list[BoardView]:
        """What each board says about itself; boards that cannot be reached are included."""
        return list(await asyncio.gather(*(self._view(entry) for entry in await self.entries())))

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

    async def _view(self, entry: BoardEntry) -> BoardView:
        try:
            if entry.tls is None:  # with TLS, the handshake shows at once who refuses
                await _knock(entry.address)
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {DESCRIBE_MS / 1e3:.0f} s"
            return BoardView(entry, error=f"{entry.address}: {reason}")
        async with AgentClient(
            entry.address, self._holder, entry.tls, insecure=entry.insecure
        ) as client:
            try:
                return BoardView(entry, await client.describe(DESCRIBE_MS))
            except AgentError as error:
                return BoardView(entry, error=str(error))

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
    if not views:
        return f"{text}; there is no board: latfarm boards add NAME HOST:PORT"
    return f"{text}; not reachable: {_some(silent, '; ')}" if silent else text


def _some(names: Sequence[str], separator: str) -> str:
    """The first names in one line, and how many more there are."""
    more = [f"and {len(names) - MOST_TOLD} more"] if len(names) > MOST_TOLD else []
    return separator.join([*names[:MOST_TOLD], *more]) or "none"
