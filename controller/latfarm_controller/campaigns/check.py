"""Checks a quarantined board: its sentinel is measured again, on that board alone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.base import MeasurementRequest, Progress

PURPOSE = "check"
"""The purpose, in the store, of these measurements."""
TIMES = 3
"""How often the sentinel is measured."""
_REPEATS = 1 << 30
"""The first repetition is a random number below this one, so that nothing comes from the store."""


class CheckCampaign:
    """Measures a sentinel `TIMES` times on one board.

    Args:
        graph: the sentinel.
        platform: a platform that the board offers.
        settings: the settings of the reference measurement.
        board_id: the board's id.
    """

    kind = "check"

    def __init__(self, graph: Graph, platform: str, settings: Settings, board_id: str) -> None:
        self.platform = platform
        self.nonce = secrets.token_hex(4)
        first = secrets.randbelow(_REPEATS)
        self._left = [
            MeasurementRequest(
                graph, platform, PURPOSE, settings, repeat=first + number, label="sentinel",
                board=board_id,
            )
            for number in range(TIMES)
        ]  # fmt: skip
        self.answers: list[Measurement] = []

    def ask(self, count: int) -> list[MeasurementRequest]:
        """At most `count` of the requests that are left."""
        asked, self._left = self._left[:count], self._left[count:]
        return asked

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Keep the answers."""
        self.answers += measurements

    @property
    def done(self) -> bool:
        """Whether all requests are answered."""
        return len(self.answers) == TIMES

    @property
    def latency_ms(self) -> float | None:
        """The median of the good answers; None unless more than half are good."""
        good = [m.latency_ms for m in self.answers if m.ok and m.latency_ms is not None]
        return median(good) if 2 * len(good) > TIMES else None

    def progress(self) -> Progress:
        """How many requests are answered."""
        return Progress("check", len(self.answers), TIMES)

    def outcome(self) -> Mapping[str, Any]:
        """The median latency."""
        return {"latency_ms": self.latency_ms}
