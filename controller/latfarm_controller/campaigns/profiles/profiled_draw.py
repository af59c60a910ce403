"""Drawn graphs that are profiled once each; those that fail are replaced once.

A platform may be unable to run a whole family: a compiler that knows no window of one dimension
refuses every network that reads an image as a sequence. So graphs are asked in rounds, and a round
leaves out what has the same ops as several graphs that were refused before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Outcome, Settings

from latfarm_controller.campaigns.budget.purse import BUDGET_SPENT
from latfarm_controller.campaigns.plans import Batch, Plan, PlannedCampaign

PURPOSE = "context"
"""The purpose, in the store, of measurements whose layers show kernels as networks run them."""
ROUND = 60
"""Largest number of graphs that are asked before it is known which of them the platform refuses."""
MOST_REFUSED = 2
"""If the platform refused this many graphs that have the same ops, and ran none of them, no further
graph with these ops is asked."""
_PATIENCE = 20
"""A round ends after it has looked at this many times `ROUND` graphs of the draw: an endless draw
may hold nothing but graphs with refused ops."""


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
        """All graphs, then the substitutes of those that failed."""
        self._graphs = self.draw()
        yield from self.more(self._count)
        # A graph that the budget left out did not fail: a substitute would be left out as well.
        failed = sum(not _told(m) and m.error_code != BUDGET_SPENT for _, m in self._answers)
        # If no graph shows a layer, the board shows none, and another graph would not either.
        if 0 < failed < len(self._answers):
            yield from self.more(failed)

    def more(self, count: int) -> Plan:
        """The next graphs of the draw, in rounds; the first ones are those of `plan`."""
        graphs = iter(()) if self._graphs is None else self._graphs
        while count > 0:
            refused = self._refused()
            looked_at = islice(graphs, _PATIENCE * ROUND)
            usable = (graph for graph in looked_at if _ops(graph) not in refused)
            asked = list(islice(usable, min(count, ROUND)))
            if not asked:
                return
            yield from self._measured(asked)
            count -= len(asked)
            if not self.profiled:
                return  # the board shows no layer of any graph

    def _refused(self) -> set[tuple[str, ...]]:
        """The ops of graphs of which the platform refused several and ran none."""
        ran = {_ops(graph) for graph, m in self._answers if _told(m)}
        counts = Counter(
            _ops(graph) for graph, m in self._answers if m.outcome is Outcome.MODEL_ERROR
        )
        return {ops for ops, count in counts.items() if count >= MOST_REFUSED} - ran

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


def _ops(graph: Graph) -> tuple[str, ...]:
    return tuple(node.op for node in graph.nodes)
