"""Lets what comes at nearly the same time be done together, the more so the more boards there are.

A thousand boards answer some hundred times a second. Whatever looks at each answer alone wakes up
for each of them: the scheduler, the campaign, the process of a shard. Boards have their next
requests already, so that none of them waits for the few milliseconds of such a pause.
"""

from __future__ import annotations

from asyncio import sleep
from time import monotonic


class Pace:
    """Keeps a pause between two rounds of the same work. Use it from one event loop.

    With few boards the pause is too short to be noticed. Nothing waits if the last round is longer
    ago than the pause.

    Args:
        a_board_s: the pause for each board, in seconds.
        longest_s: the longest pause, in seconds.
    """

    def __init__(self, a_board_s: float, longest_s: float) -> None:
        self._a_board_s = a_board_s
        self._longest_s = longest_s
        self._began_s = float("-inf")

    def pause_s(self, boards: int) -> float:
        """The pause for so many boards, in seconds."""
        return min(self._longest_s, self._a_board_s * boards)

    async def wait(self, boards: int) -> None:
        """Wait until the pause since the last round is over; the next round begins then."""
        early_s = self._began_s + self.pause_s(boards) - monotonic()
        if early_s > 0:
            await sleep(early_s)
        self._began_s = monotonic()
