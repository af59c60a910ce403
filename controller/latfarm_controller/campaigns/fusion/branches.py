"""Measures joins and forks, with or without pads, and decides which branch is fused."""

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
"""Rounds of a join whose two branches differ in time: the difference is small."""
FEW_ROUNDS = 2
"""Rounds of a join or fork where few measurements are wanted."""
CLEAR = 4.0
"""By so many times the noise of one measurement a plan must then be closer than the others, since
each plan sums several measurements."""
ORDER_ROUNDS = 8
"""Rounds of a wide branch in either place of a join."""


@dataclass(frozen=True)
class Branches:
    """What the rounds of joins and forks need.

    Attributes:
        ask: makes a request.
        next_batch: makes a batch of requests.
        call_ms: what a call costs without any kernel.
        pads: with it, models are measured between pads, whose cost includes that of the call.
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
        """Measure each connection and take the closest plan; for a join also find its branch.

        Args:
            connections: joins and forks that no profile has settled.
            join: the one of them that is a join, if any.
            fused: test cases of fused pairs, from which joins with unlike branches are made.
            rounds: how often each connection is measured.
        """
        for _ in range(rounds):
            yield from self._round(connections)
        for connection in connections:
            connection.decide_by_time()
        if join is None:
            return
        yield from self._order(join, fused)
        if not join.clear and not join.answer:
            # Outside joins the pair is fused: only a clear answer says that a join is not.
            join.answer = 1
        if join.answer and not join.clear:
            yield from self._tell(join, fused)

    def decide_quickly(
        self,
        join: ConnectionCase | None,
        fork: ConnectionCase | None,
        fused: Sequence[PairCase],
        noise: float,
    ) -> Plan:
        """Decide a join and a fork from few measurements.

        The order of a join's branches is measured first, until it is clear. Only where it is not,
        and for the fork, are the plans themselves measured; between pads they are not, because the
        noise of the pads would hide the answer. Branches that save unlike times (`telling_joins`)
        are not measured: where the order is not clear, both plans take much the same time.

        Args:
            join: a join of ops that each fuse with it, if any.
            fork: a fork of an op into two ops that each fuse with it, if any.
            fused: test cases of fused pairs.
            noise: relative standard deviation of a measurement.
        """
        if join is not None:
            yield from self._order(join, fused, noise)
        open_ = [case for case in (join, fork) if case is not None and not case.clear]
        for _ in range(FEW_ROUNDS if self.pads is None else 0):
            yield from self._round(open_)
        for case in open_:
            case.decide_by_time(CLEAR * noise)
        if join is not None and not join.clear and not join.answer:
            # Outside joins the pair is fused: only a clear answer says that a join is not.
            join.answer = 1
        if fork is not None and not fork.clear:
            # The tensor of a fork must be written for its other reader: hardly any runtime fuses.
            fork.answer = 0

    def _order(self, join: ConnectionCase, fused: Sequence[PairCase], noise: float = 0.0) -> Plan:
        """Which branch of a join is fused, by the times of a wide branch in either place.

        Args:
            join: the join, which is given the answer.
            fused: test cases of fused pairs.
            noise: relative standard deviation of a measurement. With it the rounds end when the
                answer is clear.
        """
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
            if noise and which_order(first_ms, last_ms, noise=noise) is not None:
                break
        branch = which_order(first_ms, last_ms, noise=noise)
        if branch is not None:
            join.answer, join.clear, join.source = branch, True, "time"

    def _tell(self, join: ConnectionCase, fused: Sequence[PairCase]) -> Plan:
        """Which branch of a join is fused, by branches that save unlike times with it."""
        for telling in telling_joins(fused):
            for _ in range(TELLING_ROUNDS):
                yield from self._round([telling])
            branch = telling.which_branch()
            if branch is not None:
                join.answer, join.clear = branch, True
                return

    def _round(self, connections: Sequence[ConnectionCase]) -> Plan:
        """Measure the models of each connection once, and subtract the cost of call or pads."""
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
