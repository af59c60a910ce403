"""Drawn graphs are profiled once each, and only those that failed are replaced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from latfarm_controller.campaigns.budget.purse import Purse
from latfarm_controller.campaigns.profiles.profiled_draw import ProfiledDraw
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


def profiled(purse: Purse, failing: str = "") -> Drawn:
    """Four graphs within a purse, of which one fails."""
    campaign = Drawn("p", 4, SURVEY)
    plan = purse.within(campaign.plan(), "profiled networks")
    try:
        batch = next(plan)
        while True:
            answers = {
                r.request_id: Measurement(
                    r.request_id,
                    r.graph.name,
                    "p",
                    r.purpose,
                    Outcome.MODEL_ERROR if r.graph.name == failing else Outcome.OK,
                    latency_ms=1.0,
                    layers=(ProfiledLayer("a", "Relu", 1.0),),
                )
                for r in batch.requests
            }
            batch = plan.send(answers)
    except StopIteration:
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
