"""The boards of a farm as last heard: by name, by id, by shard, and what they offer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from latfarm_controller.agents.board import PlatformInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.links import BoardFound, BoardStatus

_CONNECTING = "connecting"


class Roster:
    """Boards that were added, connected or not. Used from one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, BoardEntry] = {}
        self._statuses: dict[str, BoardStatus] = {}
        self._names: dict[str, str] = {}  # board id -> name
        self._platforms: dict[str, PlatformInfo] = {}

    def __iter__(self) -> Iterator[BoardStatus]:
        return iter(self._statuses.values())

    def add(self, entries: Iterable[BoardEntry]) -> list[BoardEntry]:
        """Note boards that are connecting now; those of them that were not known by name."""
        new = [entry for entry in entries if entry.name not in self._entries]
        for entry in new:
            self._entries[entry.name] = entry
            self._statuses[entry.name] = BoardStatus(entry.name, reason=_CONNECTING)
        return new

    def entries(self, names: Iterable[str]) -> list[BoardEntry]:
        """Where boards were said to be."""
        return [self._entries[name] for name in names]

    def joined(self, shard: int, found: BoardFound) -> None:
        """A board is connected, and what it offers is known."""
        status = self._statuses[found.name]
        status.online, status.info, status.quiet = True, found.info, found.quiet
        status.reason, status.shard = "", shard
        self._names[found.info.board_id] = found.name
        self._platforms.update({platform.name: platform for platform in found.info.platforms})

    def named(self, name: str) -> BoardStatus:
        """A board by its name."""
        return self._statuses[name]

    def status(self, board_id: str) -> BoardStatus:
        """A board that was connected, by its id."""
        return self._statuses[self._names[board_id]]

    def board_id(self, name: str) -> str:
        """The id of a board that was connected; empty: it never was."""
        info = self._statuses[name].info if name in self._statuses else None
        return "" if info is None else info.board_id

    def sizes(self, shards: int) -> Sequence[int]:
        """How many boards each of so many shards has."""
        return [sum(status.shard == index for status in self) for index in range(shards)]

    def on_shard(self, index: int) -> list[BoardStatus]:
        """The boards that a shard has."""
        return [status for status in self if status.shard == index]

    def settled(self, platform: str) -> bool:
        """Whether a platform is on offer, or no board is left to be heard that might offer it."""
        return platform in self._platforms or all(s.reason != _CONNECTING for s in self)

    def offers(self, platform: str) -> bool:
        """Whether some board offers or offered a platform."""
        return platform in self._platforms

    def platform(self, name: str) -> PlatformInfo:
        """A platform that some board offers or offered.

        Raises:
            FarmError: no board did so far; lists what they offer, and who is away and why.
        """
        if name not in self._platforms:
            known = ", ".join(sorted(self._platforms)) or "none"
            away = "; ".join(status.reason for status in self if not status.online)
            text = f"no board offers platform {name!r}; on offer: {known}"
            raise FarmError(f"{text}; away: {away}" if away else text)
        return self._platforms[name]

    def pool(self, platform: str, board_id: str = "") -> list[BoardStatus]:
        """The connected boards that offer a platform, or the one of them meant; copies."""
        return [
            replace(status)
            for status in self
            if status.online
            and status.info is not None
            and status.info.platform(platform)
            and board_id in ("", status.info.board_id)
        ]
