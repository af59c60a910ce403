"""How busy the boards of a campaign are while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm


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
            if self._farm.partitions.refusal(self._scope.choice, status.name):
                continue
            figures = self._before.get(board_id, {})
            busy_ms = status.busy_ms - self._busy_ms.get(board_id, 0.0) + figures.get("busy_ms", 0)
            total_ms = wall_ms + figures.get("wall_ms", 0)
            idle = max(0.0, 1 - busy_ms / total_ms) if total_ms > 0 else 0.0
            boards[board_id] = {"busy_ms": busy_ms, "wall_ms": total_ms, "idle_share": idle}
        return boards
