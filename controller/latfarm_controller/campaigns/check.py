"""A board that was put aside proves itself: its sentinel, measured anew on that board alone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.base import MeasurementRequest, Progress

PURPOSE = "check"
TIMES = 3


class CheckCampaign:
    """Measures a sentinel `TIMES` times on one board; `latency_ms` is the median, if there is one.

    Args:
        graph: the sentinel.
        platform: that the board offers.
        settings: as those of the reference.
        board_id: the board.
    """

    kind = "check"

    def __init__(self, graph: Graph, platform: str, settings: Settings, board_id: str) -> None:
        self.platform = platform
        self.nonce = secrets.token_hex(4)
        first = secrets.randbelow(1 << 30)
        self._left = [
            MeasurementRequest(
                graph, platform, PURPOSE, settings, repeat=first + number, label="sentinel",
                board=board_id,
            )
            for number in range(TIMES)
        ]  # fmt: skip
        self.answers: list[Measurement] = []

    def ask(self, count: int) -> list[MeasurementRequest]:
        """The sentinel, until it was asked for often enough."""
        asked, self._left = self._left[:count], self._left[count:]
        return asked

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Keep the answers."""
        self.answers += measurements

    @property
    def done(self) -> bool:
        """Whether all are answered."""
        return len(self.answers) == TIMES

    @property
    def latency_ms(self) -> float | None:
        """Median of the good answers; None where fewer than half are good."""
        good = [m.latency_ms for m in self.answers if m.ok and m.latency_ms is not None]
        return median(good) if 2 * len(good) > TIMES else None

    def progress(self) -> Progress:
        """How many are answered."""
        return Progress("check", len(self.answers), TIMES)

    def outcome(self) -> Mapping[str, Any]:
        """The median."""
        return {"latency_ms": self.latency_ms}
