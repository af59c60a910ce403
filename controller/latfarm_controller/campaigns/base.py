"""The interface of a campaign: a plan with a goal that asks for measurements and is told them.

A campaign knows neither Ray, gRPC nor a database. What it asks depends on its configuration and on
what it was told, and on nothing else. So it resumes after a crash: a new campaign is made from the
same configuration, is asked again, and is told the stored measurements of the requests that were
answered before.
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

    Attributes:
        graph: what is measured.
        platform: the platform that is asked.
        purpose: what the answer is for, for example fusion, kernel, network, sentinel or query; it
            is stored with the answer.
        settings: how it is measured.
        repeat: distinguishes deliberate repetitions of the same question.
        label: a name for people.
        profile: whether the times of layers are asked for.
        board: the id of the one board to ask, where platforms of one board are compared; empty: any
            board that offers the platform.
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
        """The id of the question; the same question always has the same id."""
        purpose = f"{self.purpose}+profile" if self.profile else self.purpose
        purpose = f"{purpose}@{self.board}" if self.board else purpose
        return request_id(hash_of(self.graph), self.platform, purpose, self.settings, self.repeat)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a campaign stands.

    Attributes:
        stage: the stage that is running.
        done: number of measurements of this stage that are done.
        total: number of measurements of this stage, an estimate that may change.
        stages: all stages in their order.
    """

    stage: str
    done: int
    total: int
    stages: tuple[str, ...] = ()


class Campaign(Protocol):
    """A plan of measurements with a goal. It is not thread-safe: one driver owns it."""

    kind: str

    def ask(self, count: int) -> list[MeasurementRequest]:
        """At most `count` requests to measure next.

        The list is empty while the campaign waits for answers, and when it is done. Each request is
        given out once; the driver repeats it after infrastructure errors.
        """
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Take the results of requests that were given out, in any order, failures included."""
        ...

    @property
    def done(self) -> bool:
        """Whether the campaign will ask nothing more."""
        ...

    def progress(self) -> Progress:
        """The stage that is running, and how far it is."""
        ...

    def outcome(self) -> Mapping[str, Any]:
        """What was found so far, for example rules, counts and figures, as plain JSON types."""
        ...
