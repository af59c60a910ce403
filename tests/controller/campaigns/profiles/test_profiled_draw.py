"""Drawn graphs are profiled once each, and only those that failed are replaced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from latfarm_controller.campaigns.budget.purse import Purse
from latfarm_controller.campaigns.plans import Plan
from latfarm_controller.campaigns.profiles.profiled_draw import ROUND, ProfiledDraw
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import SURVEY, Measurement, Outcome, ProfiledLayer


class Drawn(ProfiledDraw):
    """Draws graphs of one op without end."""

    kind = "drawn"

    def draw(self) -> Iterator[Graph]:
        for channels in range(1, 100):
            b = GraphBuilder(f"g{channels}")
            yield b.build([b.relu(b.input((1, channels, 2, 2)))])


def rounds_of(
    plan: Plan, refuses: Callable[[Graph], bool], outcome: Outcome = Outcome.MODEL_ERROR
) -> list[list[Graph]]:
    """The rounds of a plan on a platform that cannot run some graphs."""
    found = []
    try:
        batch = next(plan)
        while True:
            found.append([request.graph for request in batch.requests])
            answers = {
                r.request_id: Measurement(
                    r.request_id,
                    r.graph.name,
                    "p",
                    r.purpose,
                    outcome if refuses(r.graph) else Outcome.OK,
                    latency_ms=1.0,
                    layers=(ProfiledLayer("a", "Relu", 1.0),),
                )
                for r in batch.requests
            }
            batch = plan.send(answers)
    except StopIteration:
        return found


def profiled(purse: Purse, failing: str = "") -> Drawn:
    """Four graphs within a purse, of which one fails."""
    campaign = Drawn("p", 4, SURVEY)
    plan = purse.within(campaign.plan(), "profiled networks")
    rounds_of(plan, lambda graph: graph.name == failing)
    return campaign


@pytest.mark.parametrize(("budget", "left_out"), [(2, 2), (3, 1), (4, 0)])
def test_what_the_budget_left_out_is_left_out_once(budget: int, left_out: int) -> None:
    purse = Purse(budget)
    assert len(profiled(purse).profiled) == budget
    assert purse.spent("profiled networks").left_out == left_out


def test_a_graph_that_failed_is_replaced() -> None:
    purse = Purse(10)
    names = [graph.name for graph, _ in profiled(purse, "g2").profiled]
    assert names == ["g1", "g3", "g4", "g5"]
    assert purse.measurements == 5


class Mixed(ProfiledDraw):
    """Draws graphs of two ops in turns."""

    kind = "drawn"

    def draw(self) -> Iterator[Graph]:
        for channels in range(1, 1000):
            b = GraphBuilder(f"g{channels}")
            x = b.input((1, channels, 2, 2))
            yield b.build([b.relu(x) if channels % 2 else b.sigmoid(x)])


def begins_with(op: str) -> Callable[[Graph], bool]:
    return lambda graph: graph.nodes[0].op == op


def test_what_the_platform_refuses_is_not_asked_again() -> None:
    campaign = Mixed("p", ROUND + 40, SURVEY)
    first, second, substitutes = rounds_of(campaign.plan(), begins_with("Sigmoid"))
    assert [len(first), len(second), len(substitutes)] == [ROUND, 40, ROUND // 2]
    assert {graph.nodes[0].op for graph in first} == {"Relu", "Sigmoid"}
    assert {graph.nodes[0].op for graph in (*second, *substitutes)} == {"Relu"}
    assert len(campaign.profiled) == ROUND + 40


def test_a_board_that_fails_refuses_nothing() -> None:
    campaign = Mixed("p", ROUND + 40, SURVEY)
    _, second, *_ = rounds_of(campaign.plan(), begins_with("Sigmoid"), Outcome.INFRASTRUCTURE_ERROR)
    assert {graph.nodes[0].op for graph in second} == {"Relu", "Sigmoid"}


def test_a_draw_of_which_nothing_is_left_ends() -> None:
    class Alike(Drawn):
        def draw(self) -> Iterator[Graph]:
            graph = GraphBuilder("g")
            one = graph.build([graph.relu(graph.input((1, 1, 2, 2)))])
            return itertools.repeat(one)

    campaign = Alike("p", ROUND + 1, SURVEY)
    assert [len(graphs) for graphs in rounds_of(campaign.plan(), begins_with("Relu"))] == [ROUND]


def test_a_draw_ends_where_what_is_left_would_be_refused() -> None:
    class OneThenAlike(Drawn):
        def draw(self) -> Iterator[Graph]:
            b = GraphBuilder("other")
            yield b.build([b.sigmoid(b.input((1, 1, 2, 2)))])
            yield from itertools.cycle(Drawn("p", 1, SURVEY).draw())

    rounds = rounds_of(OneThenAlike("p", ROUND + 1, SURVEY).plan(), begins_with("Relu"))
    assert [len(graphs) for graphs in rounds] == [ROUND]
