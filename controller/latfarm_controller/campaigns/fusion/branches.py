"""Measures joins and forks, as they are or between pads, and decides which branch is fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.cases import OrderCase, PairCase
from latfarm_controller.campaigns.fusion.connections import ConnectionCase, telling_joins
from latfarm_controller.campaigns.fusion.decision import which_order
from latfarm_controller.campaigns.fusion.rounds import Ask, Next, PadBook
from latfarm_controller.campaigns.plans import Plan

TELLING_ROUNDS = 15
ORDER_ROUNDS = 8


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
        connections: Sequence[ConnectionCase],
        join: ConnectionCase | None,
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
        if join is None:
            return
        yield from self._order(join, fused)
        if not join.clear and not join.answer:
            # The pair by itself is fused: nothing but a clear answer says that a join is not.
            join.answer = 1
        if join.answer and not join.clear:
            yield from self._tell(join, fused)

    def _order(self, join: ConnectionCase, fused: Sequence[PairCase]) -> Plan:
        """The first branch of a join or the last one: told by a wide one in either place."""
        case = next((c for c in fused if c.second.binary and c.first.name == "conv"), None)
        if case is None or case.second.name == "concat":
            return
        order = OrderCase(case.second)
        first_ms: list[float] = []
        last_ms: list[float] = []
        for _ in range(ORDER_ROUNDS):
            requests = [
                self.ask(graph, graph.name) for graph in (order.wide_first, order.wide_last)
            ]
            answers = yield self.next_batch(requests, len(requests))
            first, last = (answers[r.request_id] for r in requests)
            if first.ok and last.ok:
                first_ms.append(first.latency_ms or 0.0)
                last_ms.append(last.latency_ms or 0.0)
        branch = which_order(first_ms, last_ms)
        if branch is not None:
            join.answer, join.clear, join.source = branch, True, "time"

    def _tell(self, join: ConnectionCase, fused: Sequence[PairCase]) -> Plan:
        """The first branch of a join or the last one: told by branches that take it in unlike."""
        for telling in telling_joins(fused):
            for _ in range(TELLING_ROUNDS):
                yield from self._round([telling])
            branch = telling.which_branch()
            if branch is not None:
                join.answer, join.clear = branch, True
                return

    def _round(self, connections: Sequence[ConnectionCase]) -> Plan:
        """Each connection's models once; times are told free of the call's and the pads' cost."""
        book = self.pads
        around: dict[str, Graph] = {}
        models: list[tuple[ConnectionCase, Graph, MeasurementRequest]] = []
        for connection in connections:
            for graph in connection.graphs:
                if book is not None:
                    around |= {hash_of(g): g for g in book.needed_by([graph], "MaxPool")}
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
                book.told(hash_of(request.graph), answer.latency_ms)
        times: dict[int, dict[str, float]] = {}
        for connection, graph, request in models:
            answer = answers[request.request_id]
            cost_ms = self.call_ms if book is None else book.cost_ms(graph)
            if answer.ok and answer.latency_ms is not None and cost_ms is not None:
                found = times.setdefault(id(connection), {})
                found[hash_of(graph)] = answer.latency_ms - cost_ms
        for connection in connections:
            connection.told(times.get(id(connection), {}))
