"""The boards of a farm and their status: found by name, by id or by shard, and what they offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from latfarm_controller.agents.board import BoardInfo, PlatformInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.board_hooks import BoardHooks
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.interfaces import BoardStatus
from latfarm_controller.farm.boards.shard_events import BoardConnected

CONNECTING = "connecting"
"""How the reason begins why a board is offline until its shard has called it once."""
REMOVED = "removed from the inventory"
"""Reason why a board is offline that the farm does not have any more."""


class KnownBoards:
    """The boards that were added to a farm, connected or not. Use it from one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, BoardEntry] = {}
        self._statuses: dict[str, BoardStatus] = {}
        self._names: dict[str, str] = {}  # board id -> name
        self._platforms: dict[str, PlatformInfo] = {}
        self._offering: dict[str, set[str]] = {}  # platform -> names of boards that told it last

    def __iter__(self) -> Iterator[BoardStatus]:
        return iter([self._statuses[name] for name in self._entries])

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Iterable[BoardEntry]) -> list[BoardEntry]:
        """Add boards; returns those that are to be connected now.

        These are the boards whose name was not known, and those of which another id is expected.
        """
        new = []
        # Hooks may hold secrets, and a shard may run on another machine: no shard gets them. What
        # is noted about a board concerns no shard either.
        for known_entry in entries:
            entry = replace(known_entry, hooks=BoardHooks(), profile=BoardProfile())
            known = self._entries.get(entry.name)
            if known is None:
                # A board that was removed is still known, because late events may name it.
                status = self._statuses.setdefault(entry.name, BoardStatus(entry.name))
                status.reason = CONNECTING
            elif entry.board_id in ("", known.board_id) or not known.board_id:
                continue
            else:
                self._statuses[entry.name].reason = CONNECTING
            self._entries[entry.name] = entry
            new.append(entry)
        return new

    def remove(self, name: str) -> bool:
        """Forget the entry of a board; whether there was one."""
        if self._entries.pop(name, None) is None:
            return False
        self._statuses[name].reason = REMOVED
        return True

    def all_entries(self) -> dict[str, BoardEntry]:
        """The inventory entries of all boards, by their names."""
        return dict(self._entries)

    def entries(self, names: Iterable[str]) -> list[BoardEntry]:
        """The inventory entries of boards, by their names."""
        return [self._entries[name] for name in names]

    def joined(self, shard: int, found: BoardConnected) -> None:
        """Note that a board is connected in the shard of that number, and what it offers."""
        status = self._statuses[found.name]
        for names in self._offering.values():
            names.discard(found.name)
        for platform in found.info.platforms:
            self._offering.setdefault(platform.name, set()).add(found.name)
        status.online, status.info, status.quiet = True, found.info, found.quiet
        status.reason, status.shard = "", shard
        self._names[found.info.board_id] = found.name
        self._platforms.update({platform.name: platform for platform in found.info.platforms})

    def foreign(self, shard: int, board_id: str) -> str:
        """The name of the board of another shard that is connected with an id; empty if none is."""
        name = self._names.get(board_id, "")
        status = self._statuses.get(name)
        return name if status is not None and status.online and status.shard != shard else ""

    def knows(self, name: str) -> bool:
        """Whether a board of that name was ever added."""
        return name in self._statuses

    def named(self, name: str) -> BoardStatus:
        """The status of a board, by its name."""
        return self._statuses[name]

    def status(self, board_id: str) -> BoardStatus:
        """The status of a board by its id; the board must have been connected before."""
        return self._statuses[self._names[board_id]]

    def board_id(self, name: str) -> str:
        """The id of a board by its name; empty if the board has never been connected."""
        info = self._statuses[name].info if name in self._statuses else None
        return "" if info is None else info.board_id

    def sizes(self, shards: int) -> Sequence[int]:
        """How many boards each shard has, for the shards numbered from 0 to `shards` - 1."""
        counted = Counter(status.shard for status in self)
        return [counted[index] for index in range(shards)]

    def on_shard(self, index: int) -> list[BoardStatus]:
        """The boards in the shard of that number."""
        return [status for status in self if status.shard == index]

    def settled(self, platform: str) -> bool:
        """Whether a board offers the platform, or every board has been called and none does."""
        return platform in self._platforms or not any(s.reason.startswith(CONNECTING) for s in self)

    def lose_shard(self, index: int, reason: str) -> list[str]:
        """Note that a shard died, or cannot start; returns the ids of the boards it had connected.

        A board that was never called is not settled by that: its call is still awaited.
        """
        connected = []
        for status in self.on_shard(index):
            if status.online and status.info is not None:
                connected.append(status.info.board_id)
            called = status.info is not None or not status.reason.startswith(CONNECTING)
            status.online = False
            status.reason = reason if called else f"{CONNECTING}: {reason}"
        return connected

    def info(self, board_id: str) -> BoardInfo | None:
        """What a board told about itself last, by its id; None if it was never connected."""
        status = self._statuses.get(self._names.get(board_id, ""))
        return None if status is None else status.info

    def offers(self, platform: str) -> bool:
        """Whether some board offers a platform, or offered it earlier."""
        return platform in self._platforms

    def platform(self, name: str) -> PlatformInfo:
        """A platform that some board offers, or offered earlier.

        Raises:
            FarmError: no board did so far; lists what boards offer, and which are offline and why.
        """
        if name not in self._platforms:
            known = ", ".join(sorted(self._platforms)) or "none"
            away = "; ".join(status.reason for status in self if not status.online)
            text = f"no board offers platform {name!r}; on offer: {known}"
            raise FarmError(f"{text}; away: {away}" if away else text)
        return self._platforms[name]

    def pool(self, platform: str, board_id: str = "") -> list[BoardStatus]:
        """Copies of the status of the connected boards that offer a platform.

        Args:
            platform: its name.
            board_id: only the board of this id; empty: all boards.
        """
        names = self._offering.get(platform, ())
        return [
            replace(status)
            for status in self
            if status.name in names and status.online and board_id in ("", _id_of(status))
        ]

    def size(self, platforms: Iterable[str], board_id: str = "") -> int:
        """How many connected boards offer one of some platforms.

        Args:
            platforms: their names.
            board_id: only the board of this id; empty: all boards.
        """
        names = set().union(*(self._offering.get(platform, ()) for platform in platforms))
        return sum(board_id in ("", _id_of(status)) for status in self._connected(names))

    def quiet(self, platform: str) -> bool:
        """Whether a connected board with this platform needs this host idle while it measures."""
        return any(status.quiet for status in self._connected(self._offering.get(platform, ())))

    def _connected(self, names: Iterable[str]) -> Iterator[BoardStatus]:
        """The status of those boards that are connected and were not removed."""
        statuses = (self._statuses[name] for name in names if name in self._entries)
        return (status for status in statuses if status.online)


def _id_of(status: BoardStatus) -> str:
    return "" if status.info is None else status.info.board_id
