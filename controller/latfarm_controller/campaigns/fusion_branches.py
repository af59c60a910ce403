"""Measures joins and forks, as they are or between pads, and decides which branch is fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph import Graph

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion_cases import PairCase
from latfarm_controller.campaigns.fusion_connections import Connection, telling_joins
from latfarm_controller.campaigns.fusion_rounds import Ask, PadBook
from latfarm_controller.campaigns.plans import Batch, Plan

TELLING_ROUNDS = 15

Next = Callable[[Sequence[MeasurementRequest], int], Batch]


@dataclass(frozen=True)
class Branches:
    """What the rounds of connections need.

    `call_ms` is what a call costs, without any kernel; with `pads` (a book of them) models are
    measured between pads, whose cost holds the call's.
    """

    ask: Ask
    next_batch: Next
    call_ms: float
    pads: PadBook | None

    def decide(
        self,
        connections: Sequence[Connection],
        join: Connection | None,
        fused: Sequence[PairCase],
        rounds: int,
    ) -> Plan:
        """The closest plan of each connection; of a join also which of its branches, if it can.

        Args:
            connections: those that no profile has settled.
            join: the one of them that is a join, if any.
            fused: cases of fused pairs, for joins that tell one branch from the other.
            rounds: of measuring each.
        """
        for _ in range(rounds):
            yield from self._round(connections)
        for connection in connections:
            connection.decide_by_time()
        if join is not None and join.answer:
            yield from self._tell(join, fused)

    def _tell(self, join: Connection, fused: Sequence[PairCase]) -> Plan:
        """The first branch of a join or the last one: told by branches that take it in unlike."""
        for telling in telling_joins(fused):
            for _ in range(TELLING_ROUNDS):
                yield from self._round([telling])
            branch = telling.which_branch()
            if branch is not None:
                join.answer, join.clear = branch, True
                return

    def _round(self, connections: Sequence[Connection]) -> Plan:
        """Each connection's models once; times are told free of the call's and the pads' cost."""
        book = self.pads
        around: dict[str, Graph] = {}
        models: list[tuple[Connection, Graph, MeasurementRequest]] = []
        for connection in connections:
            for graph in connection.graphs:
                if book is not None:
                    around |= {g.hash: g for g in book.needed_by([graph], "MaxPool")}
                model = graph if book is None else book.model(graph)
                request = self.ask(model, f"{connection.label}: {graph.name}")
                models.append((connection, graph, request))
        pads = [self.ask(graph, "padding_only") for graph in around.values()]
        requests = [*pads, *(request for _, _, request in models)]
        if not requests:
            return
        answers = yield self.next_batch(requests, len(requests))
        for request in pads:
            answer = answers[request.request_id]
            if book is not None and answer.ok and answer.latency_ms is not None:
                book.told(request.graph.hash, answer.latency_ms)
        times: dict[int, dict[str, float]] = {}
        for connection, graph, request in models:
            answer = answers[request.request_id]
            cost_ms = self.call_ms if book is None else book.cost_ms(graph)
            if answer.ok and answer.latency_ms is not None and cost_ms is not None:
                found = times.setdefault(id(connection), {})
                found[graph.hash] = answer.latency_ms - cost_ms
        for connection in connections:
            connection.told(times.get(id(connection), {}))
