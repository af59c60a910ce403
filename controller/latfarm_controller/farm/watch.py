"""What farm, driver and controller tell whoever counts. By itself it counts nothing.

Called from the event loop, so an implementation must not wait and must not raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

BOARD_STATES = ("ready", "probation", "draining", "quarantined", "away")


@dataclass(frozen=True, slots=True)
class QueueState:
    """Requests of one platform that are not answered yet.

    `waiting` of them are at no board; the oldest of all was asked for `oldest_s` seconds ago.
    """

    waiting: int = 0
    at_boards: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FarmState:
    """The farm at one moment: each platform's queue, and the state of each board by its name."""

    queues: Mapping[str, QueueState] = field(default_factory=dict)
    boards: Mapping[str, str] = field(default_factory=dict)


class FarmWatch:
    """Hears of what happens; override what is of interest."""

    def built(self, models: int, failed: int, took_s: float) -> None:
        """A task built so many models; `failed` of them could not be built."""

    def dispatched(self, platform: str, waited_s: float) -> None:
        """A request went to a board, so long after it was asked for."""

    def measured(self, board: str, measurement: Measurement, busy_s: float) -> None:
        """A board answered, for better or worse, and was busy for so long."""

    def retried(self, platform: str) -> None:
        """A request failed for a reason that is not its own, and comes again."""

    def quarantined(self, board: str) -> None:
        """A board was put aside."""

    def delivered(self, campaign_id: str, measurement: Measurement) -> None:
        """A campaign got an answer."""

    def stored(self, measurements: int, took_s: float) -> None:
        """So many answers were written to the store."""

    def network_measured(self, graph: Graph, measurement: Measurement) -> None:
        """A whole network was measured."""

    def trained(self, predictor: PlatformPredictor) -> None:
        """A campaign ended with a bundle."""

    def predicted(self, platform: str, *, ok: bool) -> None:
        """A prediction was asked for."""
