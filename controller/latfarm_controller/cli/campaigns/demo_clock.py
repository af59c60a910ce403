"""How the demo keeps its promise of ten minutes on any host: it measures less.

The first round of the networks that were held out shows how fast this host is: how long a round
takes, and how much of that time the board is busy. From these the demo sets the board time of the
characterisation, so that enough is left for the training and for the other rounds. A round for
which no time is left is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_MINUTES = 10.0
"""Longest duration of the demo, in minutes."""
ROUNDS_LEFT = 3
"""Rounds after the first one; see `judging_rounds.ROUNDS`."""
TRAINING_ROUNDS = 3.0
"""Time kept for the training and the report, in durations of the first round. Both mostly compute,
as a round does while it builds models, so that a busy host slows them alike."""
LEAST_TRAINING_S = 45.0
"""Least time kept for the training and the report, in seconds."""
LEAST_BUDGET_MINUTES = 0.5
"""Least board time of the characterisation, in minutes: about forty kernels and eight networks,
without which nothing can be predicted."""
LEAST_BUSY, MOST_BUSY = 0.4, 0.9
"""Bounds of the share of time in which the board is assumed to be busy during the
characterisation. Its models are smaller than those of the first round, and so are built faster."""
_STEP_MINUTES = 0.1
"""Board time is rounded down to this, in minutes."""


class DemoClock:
    """The time that the demo has, and how it is shared.

    Args:
        minutes: longest duration of the demo in minutes; 0: no limit.
        now: tells the time in seconds.
    """

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.minutes = minutes
        self._ends_s = now() + 60.0 * minutes
        self._round_s = 0.0
        self._busy = MOST_BUSY

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.minutes > 0

    @property
    def left_s(self) -> float:
        """Time that is left, in seconds."""
        return self._ends_s - self._now()

    def note_round(self, took_s: float, board_s: float) -> None:
        """Note the first round.

        Args:
            took_s: how long it took, in seconds, from its first measurement on.
            board_s: how long the board was busy with it, in seconds.
        """
        self._round_s = max(took_s, board_s, 0.0)
        if self._round_s > 0:
            self._busy = min(max(board_s / self._round_s, LEAST_BUSY), MOST_BUSY)

    def budget_minutes(self) -> float | None:
        """Board time that the characterisation may take, in minutes; None: no limit."""
        if not self.limited:
            return None
        training_s = max(LEAST_TRAINING_S, TRAINING_ROUNDS * self._round_s)
        for_it_s = self.left_s - ROUNDS_LEFT * self._round_s - training_s
        steps = int(for_it_s * self._busy / 60.0 / _STEP_MINUTES)
        return max(round(steps * _STEP_MINUTES, 1), LEAST_BUDGET_MINUTES)

    def allows_round(self) -> bool:
        """Whether a further round fits into the time that is left."""
        return not self.limited or self.left_s > self._round_s


def left_out(spent: Mapping[str, Any] | None, rounds: int, most_rounds: int) -> str:
    """What was not measured so that the demo ends in time; empty if nothing was left out.

    Args:
        spent: where the budget of the characterisation went; None: it had no budget.
        rounds: number of rounds that were measured.
        most_rounds: number of rounds without a limit of time.
    """
    parts = []
    most = None if spent is None else spent["most_measurements"]
    if spent is not None and spent["most_board_ms"] and most:
        missing = most - spent["measurements"]
        stages = [row["stage"] for row in spent["stages"] if row["left_out"]]
        if missing > 0:
            named = f" (of {', '.join(stages)})" if stages else ""
            parts.append(f"{missing} of {most} measurements for the predictor{named}")
    if rounds < most_rounds:
        parts.append(
            f"{most_rounds - rounds} of {most_rounds} rounds of the networks that judge it"
        )
    return " and ".join(parts)
