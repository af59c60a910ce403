"""The boards of a campaign while it runs: whether they work at all, and how busy they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm

FAILURES_IN_A_ROW = 10
"""A campaign stops after this many answers in a row that failed by no fault of the request."""


class BoardPatience:
    """Decides when a campaign stops because its boards do not work.

    Args:
        farm: has the boards.
        scope: which of its boards the campaign uses.
        patience_s: how long the campaign waits for a working board of a platform, in seconds.
        clock_s: any clock that never goes back, in seconds.
    """

    def __init__(
        self, farm: Farm, scope: CampaignScope, patience_s: float, clock_s: Callable[[], float]
    ) -> None:
        self._farm = farm
        self._scope = scope
        self._patience_s = patience_s
        self._clock_s = clock_s
        self._seen_s: dict[str, float] = {}  # by platform: when a board of it worked last
        self._failed_in_a_row = 0

    def judge(self, measurement: Measurement) -> None:
        """Count an answer.

        Raises:
            FarmError: too many answers in a row failed by no fault of the request.
        """
        if measurement.outcome is not Outcome.INFRASTRUCTURE_ERROR:
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            raise FarmError(
                f"the last {FAILURES_IN_A_ROW} requests failed, none by its own fault; the last: "
                f"{measurement.error_code} {measurement.error_message}"
            )

    def look_for_boards(self, platforms: Iterable[str]) -> None:
        """Check that boards of these platforms work, for which the campaign has requests.

        Raises:
            FarmError: no board of one of the platforms worked for too long, or the farm broke.
        """
        self._farm.check()
        now_s = self._clock_s()
        for platform in platforms:
            if self._farm.healthy(platform, self._scope.board_id):
                self._seen_s[platform] = now_s
            elif now_s - self._seen_s.setdefault(platform, now_s) > self._patience_s:
                reasons = sorted({s.reason for s in self._farm.boards() if s.reason})
                raise FarmError(
                    f"no board of {platform} works for {self._patience_s:.0f} s "
                    f"({'; '.join(reasons)}); resume the campaign when one does"
                )


class BoardUsage:
    """Counts how long the boards of a campaign are busy, from when this object is made.

    Args:
        farm: has the boards.
        scope: which of its boards the campaign uses.
        before: the figures of the campaign's earlier runs, as `boards` returned them.
    """

    def __init__(
        self, farm: Farm, scope: CampaignScope, before: Mapping[str, Mapping[str, float]]
    ) -> None:
        self._farm = farm
        self._scope = scope
        self._before = before
        self._busy_ms = {
            status.info.board_id: status.busy_ms
            for status in farm.boards()
            if status.info is not None
        }

    def boards(self, wall_ms: float) -> dict[str, dict[str, float]]:
        """For each board: busy time and wall time over all runs, and the share that it was idle.

        Args:
            wall_ms: how long this run took.
        """
        boards: dict[str, dict[str, float]] = {
            board_id: dict(figures) for board_id, figures in self._before.items()
        }
        for status in self._farm.boards():
            if status.info is None or not any(map(status.info.platform, self._scope.platforms)):
                continue
            board_id = status.info.board_id
            if self._scope.board_id not in ("", board_id):
                continue
            figures = self._before.get(board_id, {})
            busy_ms = status.busy_ms - self._busy_ms.get(board_id, 0.0) + figures.get("busy_ms", 0)
            total_ms = wall_ms + figures.get("wall_ms", 0)
            idle = max(0.0, 1 - busy_ms / total_ms) if total_ms > 0 else 0.0
            boards[board_id] = {"busy_ms": busy_ms, "wall_ms": total_ms, "idle_share": idle}
        return boards
