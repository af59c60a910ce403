"""A purse bounds the stages of a campaign, and keeps the account of what each of them spent."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.budget.purse import (
    BUDGET_SPENT,
    PIECE,
    SENTINELS,
    Limits,
    Purse,
)
from latfarm_controller.campaigns.budget.shares import (
    CALIBRATION_TIME,
    MOST_CALIBRATION_TIME,
    REPEATS_SHARE,
    SENTINEL_EVERY,
    shares_of,
)
from latfarm_controller.campaigns.plans import Answers, Asker, Batch, Plan
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import SURVEY, Measurement, Outcome


def graph(number: int) -> Graph:
    b = GraphBuilder(f"g{number}")
    return b.build([b.relu(b.input((1, number + 1, 2, 2)))])


def plan_of(sizes: Sequence[int], heard: list[Answers], purpose: str = "kernel") -> Plan:
    """Batches of these sizes; keeps the answers to each."""
    asker, number = Asker("p"), 0
    for size in sizes:
        requests = [asker.request(graph(number + i), purpose, SURVEY) for i in range(size)]
        number += size
        heard.append((yield Batch("stage", requests, 0, size)))


def answered(request: MeasurementRequest, board_ms: float) -> Measurement:
    return Measurement(
        request.request_id, "h", "p", request.purpose, Outcome.OK, latency_ms=1.0, board_ms=board_ms
    )


def run(plan: Plan, board_ms: float = 10.0) -> list[int]:
    """Answer every batch; gives the number of requests of each batch that was asked."""
    sizes = []
    try:
        batch = next(plan)
        while True:
            sizes.append(len(batch.requests))
            found = {r.request_id: answered(r, board_ms) for r in batch.requests}
            batch = plan.send(found)
    except StopIteration:
        return sizes


def test_what_exceeds_the_budget_is_answered_as_a_failure() -> None:
    purse, heard = Purse(5), list[Answers]()
    asked = run(purse.within(plan_of([3, 4, 2], heard), "kernels"))
    assert asked == [3, 2]
    assert [sum(m.ok for m in answers.values()) for answers in heard] == [3, 2, 0]
    assert [len(answers) for answers in heard] == [3, 4, 2]
    refused = [m for answers in heard for m in answers.values() if not m.ok]
    assert {m.error_code for m in refused} == {BUDGET_SPENT}
    assert {m.outcome for m in refused} == {Outcome.INFRASTRUCTURE_ERROR}
    assert purse.measurements == 5
    assert purse.left == 0
    assert purse.spent("kernels").left_out == 4
    assert purse.board_ms == 50.0


def test_a_stage_leaves_what_is_kept_for_later_ones() -> None:
    purse, heard = Purse(10), list[Answers]()
    run(purse.within(plan_of([8], heard), "fusion", Limits(most=3, keep=4)))
    assert purse.measurements == 3
    run(purse.within(plan_of([8], heard), "kernels", Limits(keep=4)))
    assert purse.left == 4
    run(purse.within(plan_of([8], heard), "calibration"))
    told = purse.to_json()
    assert [(row["stage"], row["measurements"]) for row in told["stages"]] == [
        ("fusion", 3),
        ("kernels", 3),
        ("calibration", 4),
    ]
    assert told["measurements"] == told["most_measurements"] == 10
    assert told["most_board_ms"] is None


def test_the_most_of_a_stage_counts_from_its_own_beginning() -> None:
    purse, heard = Purse(100), list[Answers]()
    run(purse.within(plan_of([20], heard), "networks"))
    run(purse.within(plan_of([4, 4, 4], heard), "fusion", Limits(most=9)))
    assert purse.spent("fusion").measurements == 9


def test_board_time_is_bounded_to_the_last_piece() -> None:
    purse, heard = Purse(board_ms=1000.0), list[Answers]()
    asked = run(purse.within(plan_of([500], heard), "kernels"), board_ms=20.0)
    assert max(asked) == PIECE
    assert 1000.0 <= purse.board_ms < 1000.0 + PIECE * 20.0
    assert purse.left_ms <= 0


def test_sentinels_have_a_line_of_their_own() -> None:
    purse, heard = Purse(), list[Answers]()
    run(purse.within(plan_of([3], heard, SENTINEL), "kernels"))
    assert purse.spent(SENTINELS).measurements == 3
    assert purse.spent("kernels").measurements == 0


def test_a_request_that_a_batch_names_twice_is_spent_once() -> None:
    purse = Purse(2)

    def twice() -> Generator[Batch, Answers, None]:
        request = Asker("p").request(graph(1), "kernel", SURVEY)
        answers = yield Batch("stage", [request, request], 0, 1)
        assert answers[request.request_id].ok

    assert run(purse.within(twice(), "kernels")) == [1]
    assert purse.left == 1


@given(
    budget=st.integers(0, 60),
    stages=st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 20), st.integers(0, 20)),
        max_size=5,
    ),
)
def test_no_stage_ever_spends_more_than_there_is(
    budget: int, stages: list[tuple[list[int], int, int]]
) -> None:
    purse = Purse(budget)
    for number, (sizes, most, keep) in enumerate(stages):
        before = purse.left
        run(purse.within(plan_of(sizes, []), f"s{number}", Limits(most=most, keep=keep)))
        spent = purse.spent(f"s{number}")
        assert spent.measurements == max(0, min(sum(sizes), most, before - keep))
        assert spent.measurements + spent.left_out == sum(sizes)
    assert purse.measurements <= budget


@pytest.mark.parametrize("budget", [40, 60, 100, 200, 350, 500, 1000, 3000])
def test_the_shares_of_a_budget_fit_into_it(budget: int) -> None:
    shares = shares_of(budget, calibration=20, passes=2)
    fixed = shares.profiled + shares.fusion + shares.probes + shares.kept
    assert fixed < 0.65 * budget
    left = budget - fixed
    kernels = shares.kernels(left)
    sentinels = kernels // SENTINEL_EVERY + 2
    assert kernels + sentinels + int(REPEATS_SHARE * kernels) <= left
    assert kernels > 0.2 * budget
    assert shares.calibration == min(20, max(4, int(0.09 * budget)))


def test_the_time_of_calibration_networks_is_kept_as_far_as_it_is_known() -> None:
    shares = shares_of(500, calibration=20, passes=2)
    all_ms = 300_000.0
    assert shares.kept_ms(all_ms, None) == CALIBRATION_TIME * all_ms
    assert shares.kept_ms(all_ms, 100.0) == CALIBRATION_TIME * all_ms, "never less than the share"
    assert shares.kept_ms(all_ms, 5_000.0) == 20 * 5_000.0
    assert shares.kept_ms(all_ms, 50_000.0) == MOST_CALIBRATION_TIME * all_ms
    assert shares.kept_ms(0.0, 5_000.0) == 0.0, "without a limit of time nothing is kept"
