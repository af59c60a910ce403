"""The events that the scheduler has not been told yet."""

from __future__ import annotations

import asyncio
import contextlib

from latfarm_controller.farm.pace import Pace
from latfarm_controller.farm.scheduling.messages import Event

A_BOARD_S = 0.0001
"""Pause between two plans of the scheduler for each board, in seconds."""
LONGEST_S = 0.01
"""Longest pause between two plans of the scheduler, in seconds; a measurement takes much longer,
and each board has its next request already."""


class EventQueue:
    """Takes events, and gives all that have come together. Use it from one event loop."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._pace = Pace(A_BOARD_S, LONGEST_S)

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.put_nowait(event)

    async def take(self, timeout_s: float | None, boards: int) -> list[Event]:
        """All events that wait, in order; empty if none comes in time.

        Args:
            timeout_s: how long to wait for the first one, in seconds; None: without end.
            boards: how many boards there are. The more they are, the more events are gathered.
        """
        events: list[Event] = []
        with contextlib.suppress(TimeoutError):
            # asyncio.wait_for of Python 3.11 may swallow a cancellation of this task.
            async with asyncio.timeout(timeout_s):
                events.append(await self._events.get())
        if events:
            await self._pace.wait(boards)
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events
