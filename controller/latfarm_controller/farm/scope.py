"""Which boards a campaign measures on, and what became of them while it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.farm import Farm

FAILURES_IN_A_ROW = 10


@dataclass(frozen=True, slots=True)
class CampaignScope:
    """Where a campaign measures: one platform on all its boards, or several on one of them."""

    platforms: tuple[str, ...]
    board_id: str = ""


class Tolerance:
    """How long a campaign bears with boards that do not work.

    Args:
        farm: whose boards.
        scope: which of them.
        patience_s: how long it waits for a working board of a platform.
        clock_s: any clock that never goes back.
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
        """Hear of an answer.

        Raises:
            FarmError: it was one too many that failed by no fault of its own.
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
        """See whether boards of the platforms that are waited for work.

        Raises:
            FarmError: of one of them none did for too long, or the farm broke.
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


class Utilisation:
    """Busy and idle time of a campaign's boards, counted from when this is made.

    Args:
        farm: whose boards.
        scope: which of them.
        before: what the campaign's runs until now came to, as `boards` gave it.
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
        """Of each board: busy and wall time over all runs, and its idle share.

        Args:
            wall_ms: of this run.
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
