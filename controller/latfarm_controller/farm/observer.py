"""What the farm, the driver and the controller report to those who count it, such as the metrics.

`FarmObserver` itself does nothing. Its methods are called from the event loop, so an implementation
must not wait and must not raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

BOARD_STATES = ("ready", "probation", "checking", "draining", "quarantined", "away")
"""The states of a board. `away`: offline. `probation`: it was quarantined for its failures and has
one request at a time until one succeeds. `checking`: it must pass its health check before it gets
work."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The requests of one platform that are not answered yet.

    `waiting` of them have no board yet, `at_boards` of them have; the oldest of all of them was
    submitted `oldest_s` seconds ago.
    """

    waiting: int = 0
    at_boards: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FarmState:
    """The farm at one moment: the queue of each platform, and the state of each board, by name."""

    queues: Mapping[str, QueueState] = field(default_factory=dict)
    boards: Mapping[str, str] = field(default_factory=dict)


class FarmObserver:
    """Is told what happens; override the methods that are of interest."""

    def built(self, models: int, failed: int, took_s: float) -> None:
        """One task was to build `models` models; `failed` of them could not be built."""

    def dispatched(self, platform: str, waited_s: float) -> None:
        """A request went to a board, `waited_s` seconds after it was submitted."""

    def measured(self, board: str, measurement: Measurement, busy_s: float) -> None:
        """A board answered, with a latency or a failure, and was busy for `busy_s` seconds."""

    def retried(self, platform: str) -> None:
        """A request failed for a reason that is not its own, and will be tried again."""

    def quarantined(self, board: str) -> None:
        """A board was quarantined."""

    def campaign_started(self, campaign_id: str, name: str) -> None:
        """A campaign of that name starts to measure, or goes on."""

    def delivered(self, campaign_id: str, measurement: Measurement) -> None:
        """A campaign got an answer."""

    def stored(self, measurements: int, took_s: float) -> None:
        """That many answers were written to the store, which took `took_s` seconds."""

    def network_measured(self, graph: Graph, measurement: Measurement) -> None:
        """A whole network was measured."""

    def trained(self, predictor: PlatformPredictor) -> None:
        """A campaign ended with a trained predictor."""

    def predicted(self, platform: str, *, ok: bool) -> None:
        """A prediction was asked for."""
