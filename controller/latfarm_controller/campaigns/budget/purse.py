"""What a campaign may still spend, in measurements and in board time, and where it went.

A stage is a plan (see `plans`) that knows nothing of budgets. The purse hands its batches on and
asks as much of each as is left. Requests that are not asked get an answer like every other request:
a failure with the code `BUDGET_SPENT`. So a stage treats them as it treats a board that failed, and
no stage can spend more than there is.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.plans import Answers, Batch, Plan
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL

BUDGET_SPENT = "BUDGET_SPENT"
"""Error code of a request that was not asked, because the budget was spent before."""
SENTINELS = "sentinels"
"""The line of the account for sentinels, whichever stage asked them."""
PIECE = 8
"""Largest number of requests that are asked at once where board time is limited: the time is known
after each piece, so that at most one piece exceeds the limit."""
FIRST_PIECE = 2
"""Number of requests that a stage asks first, when nothing is known of how long its requests take:
on a busy host, a network takes a hundred times as long as a kernel."""


@dataclass
class Spent:
    """What a stage spent.

    Attributes:
        measurements: number of measurements, failed ones included.
        board_ms: how long the boards were busy with them.
        left_out: number of requests that the budget did not allow.
    """

    measurements: int = 0
    board_ms: float = 0.0
    left_out: int = 0


@dataclass(frozen=True)
class Limits:
    """What a stage may spend, and what it must leave for later stages.

    Attributes:
        most: largest number of measurements.
        most_ms: longest board time in milliseconds.
        keep: number of measurements that must be left afterwards.
        keep_ms: board time in milliseconds that must be left afterwards.
    """

    most: float = math.inf
    most_ms: float = math.inf
    keep: float = 0
    keep_ms: float = 0.0


EVERYTHING = Limits()
"""A stage may spend all that is left."""


class Purse:
    """Bounds the stages of a campaign, and keeps the account of what each of them spent.

    Args:
        measurements: largest number of measurements of all stages together; None: no limit.
        board_ms: longest board time of all stages together, in milliseconds; None: no limit. The
            last `PIECE` requests may exceed it.
    """

    def __init__(self, measurements: int | None = None, board_ms: float | None = None) -> None:
        self._most = math.inf if measurements is None else measurements
        self._most_ms = math.inf if board_ms is None else board_ms
        self._spent: dict[str, Spent] = {}

    @property
    def measurements(self) -> int:
        """Number of measurements so far."""
        return sum(each.measurements for each in self._spent.values())

    @property
    def board_ms(self) -> float:
        """Board time so far, in milliseconds."""
        return sum(each.board_ms for each in self._spent.values())

    @property
    def left(self) -> float:
        """Number of measurements that are left; infinite without a limit."""
        return self._most - self.measurements

    @property
    def left_ms(self) -> float:
        """Board time that is left, in milliseconds; infinite without a limit."""
        return self._most_ms - self.board_ms

    def spent(self, stage: str) -> Spent:
        """What a stage spent so far."""
        return self._spent.get(stage, Spent())

    def within(self, plan: Plan, stage: str, limits: Limits = EVERYTHING) -> Plan:
        """The batches of a plan, as far as the purse and the limits allow.

        Args:
            plan: the plan of a stage; it must end however many of its requests fail.
            stage: the line of the account.
            limits: what this stage may spend and must leave.
        """
        began, began_ms = self.measurements, self.board_ms
        try:
            batch = next(plan)
            while True:
                ends = Limits(began + limits.most, began_ms + limits.most_ms)
                answers = yield from self._asked(batch, stage, limits, ends)
                batch = plan.send(answers)
        except StopIteration:
            return

    def _asked(
        self, batch: Batch, stage: str, limits: Limits, ends: Limits
    ) -> Generator[Batch, Answers, Answers]:
        """Ask as much of a batch as is allowed; gives an answer for each of its requests."""
        unique = list({r.request_id: r for r in batch.requests}.values())
        found: dict[str, Measurement] = {}
        asked = 0
        while asked < len(unique):
            room = min(self.left - limits.keep, ends.most - self.measurements)
            room_ms = min(self.left_ms - limits.keep_ms, ends.most_ms - self.board_ms)
            if room < 1 or room_ms <= 0:
                break
            most = self._piece(stage, room_ms) if room_ms < math.inf else math.inf
            size = int(min(room, len(unique) - asked, most))
            piece = unique[asked : asked + size]
            answers = yield Batch(batch.stage, piece, batch.done + asked, batch.total)
            self._note(stage, piece, answers)
            found |= answers
            asked += size
        refused = unique[asked:]
        if refused:
            self._line(stage).left_out += len(refused)
            found |= {r.request_id: _refused(r) for r in refused}
        return found

    def _piece(self, stage: str, room_ms: float) -> int:
        """How many requests are asked at once, so that they hardly exceed the time that is left.

        Args:
            stage: the line of the account, which tells how long its requests took so far.
            room_ms: board time that is left for the stage, in milliseconds.
        """
        line = self.spent(stage)
        if not line.measurements:
            return FIRST_PIECE
        each_ms = max(line.board_ms / line.measurements, 1e-3)
        return int(min(max(room_ms / each_ms, 1), PIECE))

    def _note(self, stage: str, requests: Sequence[MeasurementRequest], answers: Answers) -> None:
        for request in requests:
            line = self._line(SENTINELS if request.purpose == SENTINEL else stage)
            line.measurements += 1
            line.board_ms += answers[request.request_id].board_ms

    def _line(self, stage: str) -> Spent:
        return self._spent.setdefault(stage, Spent())

    def to_json(self) -> dict[str, Any]:
        """The account as plain JSON types, for a campaign's outcome."""
        return {
            "measurements": self.measurements,
            "board_ms": self.board_ms,
            "most_measurements": None if math.isinf(self._most) else int(self._most),
            "most_board_ms": None if math.isinf(self._most_ms) else self._most_ms,
            "stages": [
                {
                    "stage": name,
                    "measurements": each.measurements,
                    "board_ms": each.board_ms,
                    "left_out": each.left_out,
                }
                for name, each in self._spent.items()
            ],
        }


def _refused(request: MeasurementRequest) -> Measurement:
    """The answer to a request that was not asked."""
    return Measurement(
        request.request_id,
        hash_of(request.graph),
        request.platform,
        request.purpose,
        Outcome.INFRASTRUCTURE_ERROR,
        error_code=BUDGET_SPENT,
        error_message="the budget was spent before this was measured; give a larger --budget",
        settings=request.settings,
    )
