"""What the board is and offers, as the bench described it last."""

from __future__ import annotations

import threading
from dataclasses import replace

from latfarm_agent.bench.measuring import MeasuringBench
from latfarm_agent.bench.records import DescribedBoard, Offer, OfferedPlatform
from latfarm_agent.errors import UnknownPlatformError
from latfarm_agent.files.companions import MOST_COMPANIONS

ROOM = "disk_room_bytes"
"""Condition of the board that tells how large a model it would take now, in bytes."""

COMPANIONS = "model_companions"
"""Condition of the board that tells how many files it takes beside a model."""


class BoardOffer:
    """The last description of the board. Thread-safe; empty before the first `look`."""

    def __init__(self, bench: MeasuringBench) -> None:
        self._bench = bench
        self._looking = threading.Lock()
        self._seen: Offer = (DescribedBoard(), [])
        self._platforms: dict[str, OfferedPlatform] = {}

    def look(self) -> None:
        """Ask the bench for a description; a call during another one does nothing."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            board, runtimes = self._bench.describe()
            self._platforms = {
                platform.name: platform for runtime in runtimes for platform in runtime.platforms
            }
            self._seen = board, runtimes
        finally:
            self._looking.release()

    @property
    def seen(self) -> Offer:
        """The board, and its runtimes with their platforms."""
        return self._seen

    def platform(self, name: str) -> OfferedPlatform | None:
        """A platform by its name; None where the board does not offer it."""
        return self._platforms.get(name)

    def check(self, platform: str) -> None:
        """Check that the board offers a platform.

        Raises:
            UnknownPlatformError: it does not; the message lists what it offers.
        """
        platforms = self._platforms
        if platform not in platforms:
            known = ", ".join(sorted(platforms)) or "none"
            raise UnknownPlatformError(
                f"unknown platform {platform[:128]!r}; this board offers: {known}"
            )


def with_room(board: DescribedBoard, room_bytes: int) -> DescribedBoard:
    """A description that also tells which models the board takes.

    Args:
        board: the description.
        room_bytes: how large a model may be now, in bytes.
    """
    room = {ROOM: str(room_bytes), COMPANIONS: str(MOST_COMPANIONS)}
    return replace(board, conditions={**board.conditions, **room})
