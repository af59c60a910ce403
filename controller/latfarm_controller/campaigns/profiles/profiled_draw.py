"""Drawn graphs that are profiled once each; those that fail are replaced once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.budget.purse import BUDGET_SPENT
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign

PURPOSE = "context"
"""The purpose, in the store, of measurements whose layers show kernels as networks run them."""


class ProfiledDraw(PlannedCampaign):
    """Profiles graphs from a draw; where some fail, the next graphs of the draw replace them once.

    A subclass has a `kind`, which is its only stage, and a draw.

    Args:
        platform: a platform whose runtime profiles.
        count: how many graphs.
        settings: the settings of each measurement.
    """

    kind: str

    def __init__(self, platform: str, count: int, settings: Settings) -> None:
        super().__init__(platform)
        self.stages = (self.kind,)
        self._count = count
        self._settings = settings
        self._answers: list[tuple[Graph, Measurement]] = []
        self._graphs: Iterator[Graph] | None = None

    @property
    def profiled(self) -> list[tuple[Graph, Measurement]]:
        """The graphs whose profiles show layers, each with its measurement."""
        return [(graph, m) for graph, m in self._answers if _told(m)]

    @abstractmethod
    def draw(self) -> Iterator[Graph]:
        """The graphs, all different; there may be fewer than asked for."""

    def plan(self) -> Plan:
        """All graphs in one batch; in a second batch the substitutes of those that failed."""
        graphs = self._graphs = self.draw()
        yield from self._measured(list(islice(graphs, self._count)))
        # A graph that the budget left out did not fail: a substitute would be left out as well.
        failed = sum(not _told(m) and m.error_code != BUDGET_SPENT for _, m in self._answers)
        # If no graph shows a layer, the board shows none, and another graph would not either.
        if 0 < failed < len(self._answers):
            yield from self._measured(list(islice(graphs, failed)))

    def more(self, count: int) -> Plan:
        """The next graphs of the draw, after `plan` has ended."""
        graphs = iter(()) if self._graphs is None else self._graphs
        yield from self._measured(list(islice(graphs, count)))

    def _measured(self, graphs: list[Graph]) -> Plan:
        before = len(self._answers)
        requests = [
            self.asker.request(g, PURPOSE, self._settings, label=g.name, profile=True)
            for g in graphs
        ]
        answers = yield Batch(self.kind, requests, before, before + len(requests))
        self._answers += [(r.graph, answers[r.request_id]) for r in requests]

    def outcome(self) -> Mapping[str, Any]:
        """How many graphs were profiled, and by name why the others were not."""
        return {
            "networks": sum(1 for _, m in self._answers if _told(m)),
            "failed": {
                graph.name: m.error_message or m.error_code or "the profile shows no layer"
                for graph, m in self._answers
                if not _told(m)
            },
        }


def _told(measurement: Measurement) -> bool:
    return measurement.ok and bool(measurement.layers)
