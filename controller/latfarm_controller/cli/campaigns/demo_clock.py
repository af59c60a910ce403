"""How the demo keeps its promise of ten minutes on any host: it measures less.

The first round of the networks that were held out shows how fast this host is: how long a round
takes, and how much of that time the board is busy. From these the demo decides how many rounds
there will be, and how much board time the characterisation has, so that enough is left for the
training. The characterisation shares that time among its stages. A round for which no time is left
is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_MINUTES = 10.0
"""Longest duration of the demo, in minutes."""
LEAST_ROUNDS = 2
"""Least number of rounds: one tells nothing of how well measurements repeat."""
ROUNDS_SHARE = 0.25
"""Largest share of the time for all rounds together, beyond `LEAST_ROUNDS`."""
TRAINING_ROUNDS = 1.5
"""Time kept for the training and the report, in durations of the first round. Both mostly compute,
as a round does while it builds models, so that a busy host slows them alike. On two AMD cores they
took 0.8 of these beside one other program, and 1.4 beside three."""
LEAST_TRAINING_S = 45.0
"""Least time kept for the training and the report, in seconds."""
LEAST_BUDGET_MINUTES = 0.5
"""Least board time of the characterisation, in minutes."""
BUSIER = 1.25
"""The share of time in which the board is busy during the characterisation, over that in the first
round. Its models are smaller than those of the first round, and so are built faster. On two AMD
cores the board was busy for 0.76 of the time beside one other program, and for 0.56 in the first
round; beside three, for 0.71 and 0.57."""
LEAST_BUSY, MOST_BUSY = 0.4, 0.9
"""Bounds of the share of time in which the board is assumed to be busy during the
characterisation."""
_STEP_MINUTES = 0.1
"""Board time is rounded down to this, in minutes."""


class DemoClock:
    """The time that the demo has, and how it is shared.

    Args:
        minutes: longest duration of the demo in minutes; 0: no limit.
        rounds: number of rounds without a limit of time.
        now: tells the time in seconds.
    """

    def __init__(
        self, minutes: float, rounds: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self.minutes = minutes
        self.rounds = rounds
        self._ends_s = now() + 60.0 * minutes
        self._round_s = 0.0
        self._board_s = 0.0

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.minutes > 0

    @property
    def left_s(self) -> float:
        """Time that is left, in seconds."""
        return self._ends_s - self._now()

    def note_round(self, took_s: float, board_s: float) -> None:
        """Note the first round, and decide how many there will be.

        Args:
            took_s: how long it took, in seconds, from its first measurement on.
            board_s: how long the board was busy with it, in seconds.
        """
        self._round_s, self._board_s = max(took_s, board_s, 0.0), board_s
        if self.limited and self._round_s > 0:
            affordable = int(ROUNDS_SHARE * 60.0 * self.minutes / self._round_s)
            self.rounds = min(self.rounds, max(LEAST_ROUNDS, affordable))

    def budget_minutes(self) -> float | None:
        """Board time that the characterisation may take, in minutes; None: no limit."""
        if not self.limited:
            return None
        busy = MOST_BUSY if self._round_s <= 0 else BUSIER * self._board_s / self._round_s
        training_s = max(LEAST_TRAINING_S, TRAINING_ROUNDS * self._round_s)
        for_it_s = self.left_s - (self.rounds - 1) * self._round_s - training_s
        minutes = for_it_s * min(max(busy, LEAST_BUSY), MOST_BUSY) / 60.0
        steps = int(minutes / _STEP_MINUTES)
        return max(round(steps * _STEP_MINUTES, 1), LEAST_BUDGET_MINUTES)

    def allows_round(self, started: int) -> bool:
        """Whether a further round is planned, and fits into the time that is left.

        Args:
            started: number of rounds that were started.
        """
        return not self.limited or (started < self.rounds and self.left_s > self._round_s)


def left_out(
    spent: Mapping[str, Any] | None, asked: int | None, rounds: int, most_rounds: int
) -> str:
    """What was not measured so that the demo ends in time; empty if nothing was left out.

    Args:
        spent: where the budget of the characterisation went; None: it had no budget.
        asked: number of measurements without a limit of time; None: not known.
        rounds: number of rounds that were measured.
        most_rounds: number of rounds without a limit of time.
    """
    parts = []
    if spent is not None and spent["most_board_ms"] and asked:
        missing = asked - spent["measurements"]
        if missing > 0:
            parts.append(f"{missing} of {asked} measurements for the predictor")
    if rounds < most_rounds:
        parts.append(
            f"{most_rounds - rounds} of {most_rounds} rounds of the networks that judge it"
        )
    return " and ".join(parts)
