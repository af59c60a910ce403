"""The interface of a campaign: an ask/tell plan of measurements with a goal.

A campaign knows neither Ray, gRPC nor a database. It is a deterministic function of its
configuration and of what it was told: after a crash a fresh one is made from the same
configuration, asked again, and told the stored measurements of the requests already answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import SURVEY, Measurement, Settings, request_id


@dataclass(frozen=True)
class MeasurementRequest:
    """One question to a platform: how long does this graph take?

    `purpose` says what the answer is for (fusion, kernel, network, sentinel, query) and is stored
    with it; `repeat` tells apart deliberate repetitions at different times; `label` is for people.
    `board` is the id of the one board to ask, where platforms are compared with each other; empty:
    any board that offers the platform.
    """

    graph: Graph
    platform: str
    purpose: str
    settings: Settings = field(default_factory=lambda: SURVEY)
    repeat: int = 0
    label: str = ""
    profile: bool = False
    board: str = ""

    @cached_property
    def request_id(self) -> str:
        """The same question has the same id."""
        purpose = f"{self.purpose}+profile" if self.profile else self.purpose
        purpose = f"{purpose}@{self.board}" if self.board else purpose
        return request_id(hash_of(self.graph), self.platform, purpose, self.settings, self.repeat)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a campaign stands: `total` of the stage is an estimate that may change."""

    stage: str
    done: int
    total: int
    stages: tuple[str, ...] = ()


class Campaign(Protocol):
    """Plan of measurements. Not thread-safe: one driver owns it."""

    kind: str

    def ask(self, count: int) -> list[MeasurementRequest]:
        """At most `count` requests to measure next; empty while waiting to be told, or when done.

        A request is handed out once; the driver retries infrastructure errors itself.
        """
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Take results of requests that were handed out, in any order, failures included."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more will be asked."""
        ...

    def progress(self) -> Progress:
        """Where the campaign stands."""
        ...

    def outcome(self) -> Mapping[str, Any]:
        """What was found so far, as plain JSON types: rules, counts, figures."""
        ...
