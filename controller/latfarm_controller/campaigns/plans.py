"""Campaigns as plans: a plan is a generator that yields batches and is sent the answers to each.

What a plan does next depends on the answers to a whole batch, and never on the order in which they
came. So a campaign asks the same requests whichever board answers first. A plan that needs no
answers in between yields one large batch, which keeps all boards of a pool busy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.base import MeasurementRequest, Progress


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are given out together.

    Attributes:
        stage: the stage that the batch belongs to.
        requests: the requests.
        done: number of requests of earlier batches of the stage.
        total: number of requests of the whole stage, an estimate.
    """

    stage: str
    requests: Sequence[MeasurementRequest]
    done: int
    total: int


Answers = Mapping[str, Measurement]
"""The measurements of one batch by request id, in the order in which they were asked."""

Plan = Generator[Batch, Answers, None]
"""Yields batches, and is sent the answers to each."""


class Asker:
    """Makes a campaign's requests, so that each deliberate repetition has an id of its own.

    Args:
        platform: the platform that is asked.
        board: the id of the one board that is asked; empty: any board that offers the platform.
        earlier: number of repetitions of the same requests that other campaigns ask for. Requests
            of two campaigns that have the same id are measured once.
    """

    def __init__(self, platform: str, board: str = "", earlier: int = 0) -> None:
        self.platform = platform
        self.board = board
        self._earlier = earlier
        self._asked: Counter[tuple[str, str, Settings, bool]] = Counter()

    def request(
        self,
        graph: Graph,
        purpose: str,
        settings: Settings,
        *,
        label: str = "",
        profile: bool = False,
    ) -> MeasurementRequest:
        """A request; the same arguments again give a repetition with another id."""
        key = (hash_of(graph), purpose, settings, profile)
        repeat = self._earlier + self._asked[key]
        self._asked[key] += 1
        return MeasurementRequest(
            graph,
            self.platform,
            purpose,
            settings,
            repeat,
            label=label,
            profile=profile,
            board=self.board,
        )


class PlannedCampaign(ABC):
    """A campaign (see `Campaign`) whose requests come from `plan`.

    It is not thread-safe: one driver owns it.
    """

    kind: str
    stages: tuple[str, ...]

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.asker = Asker(platform)
        self._running: Plan | None = None
        self._open_batch: Batch | None = None
        self._queue: Iterator[MeasurementRequest] = iter(())
        self._waiting: set[str] = set()
        self._told: dict[str, Measurement] = {}
        self._done = False
        self._stage_ends: dict[str, int] = {}

    @abstractmethod
    def plan(self) -> Plan:
        """The batches to measure; the plan is sent the answers to each batch, failures included."""

    @abstractmethod
    def outcome(self) -> Mapping[str, Any]:
        """What was found so far, as plain JSON types."""

    def ask(self, count: int) -> list[MeasurementRequest]:
        """See `Campaign.ask`."""
        self._start()
        requests: list[MeasurementRequest] = []
        while len(requests) < count:
            request = next(self._queue, None)
            if request is None:
                break
            requests.append(request)
        return requests

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """See `Campaign.tell`; answers to requests that are not open are ignored."""
        for measurement in measurements:
            if measurement.request_id in self._waiting:
                self._waiting.discard(measurement.request_id)
                self._told[measurement.request_id] = measurement
        if self._open_batch is not None and not self._waiting:
            self._advance(self._collected())

    @property
    def done(self) -> bool:
        """See `Campaign.done`."""
        self._start()
        return self._done

    def progress(self) -> Progress:
        """See `Campaign.progress`."""
        self._start()
        if self._open_batch is None:
            stage = self.stages[-1]
            end = self._stage_ends.get(stage, 0)
            return Progress(stage, end, end, self.stages)
        batch = self._open_batch
        done = batch.done + len({r.request_id for r in batch.requests}) - len(self._waiting)
        return Progress(batch.stage, done, max(batch.total, done), self.stages)

    def _start(self) -> None:
        # The constructor does not start the plan: drawing kernels takes seconds, and
        # `latfarm campaign list` makes campaigns that are never asked.
        if self._running is None:
            self._running = self.plan()
            self._advance(None)

    def _collected(self) -> Answers:
        if self._open_batch is None:
            return {}
        return {r.request_id: self._told[r.request_id] for r in self._open_batch.requests}

    def _advance(self, answers: Answers | None) -> None:
        assert self._running is not None
        while True:
            try:
                batch = next(self._running) if answers is None else self._running.send(answers)
            except StopIteration:
                self._open_batch = None
                self._done = True
                self._told.clear()
                return
            unique = {r.request_id: r for r in batch.requests}
            self._open_batch = batch
            self._told.clear()
            self._waiting = set(unique)
            self._queue = iter(unique.values())
            self._stage_ends[batch.stage] = batch.done + len(unique)
            if unique:
                return
            answers = {}
