"""Requests for a part of the boards run there alone, and are answered from there alone."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from latfarm_controller.farm.scheduling.messages import (
    AnswerFound,
    BoardJoined,
    BoardLost,
    BoardPartitioned,
    Build,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Dispatch,
    ForgetResult,
    Instruction,
    ModelSpec,
    Release,
    RequestsQueued,
    ResultReceived,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.scheduling.test_scheduler_machine import BOARDS, World, answer

MODEL = ModelSpec("g", "onnx", "fp32")
LAB = "lab"


def work(request_id: str, partition: str = "", board: str = "") -> Work:
    return Work(request_id, "p", MODEL, "kernel", 10, board=board, partition=partition)


def result(request_id: str, board: str) -> Measurement:
    return Measurement(
        request_id=request_id,
        graph_hash="g",
        platform="p",
        purpose="kernel",
        outcome=Outcome.OK,
        board_id=board,
    )


def farm(*, built: bool = True) -> Scheduler:
    """A scheduler with a board of the lab and one outside it."""
    scheduler = Scheduler()
    scheduler.handle(0, BoardJoined("in", ("p",), partitions=(LAB,)), BoardJoined("out", ("p",)))
    if built:
        scheduler.handle(0, RequestsQueued("first", (work("r0", board="gone"),)))
        scheduler.handle(0, BoardJoined("gone", ("p",)), BuildReady(MODEL, 10))
        scheduler.handle(0, BoardLost("gone"))
    return scheduler


def dispatched(instructions: list[Instruction]) -> list[tuple[str, str]]:
    return [(i.board_id, i.request_id) for i in instructions if isinstance(i, Dispatch)]


def test_a_request_for_a_partition_runs_on_its_boards_alone() -> None:
    scheduler = farm(built=False)
    asked = RequestsQueued("c", tuple(work(f"r{n}", LAB) for n in range(6)))
    assert scheduler.handle(0, asked) == [Build((MODEL,))]
    sent = dispatched(scheduler.handle(0, BuildReady(MODEL, 10)))
    assert sent == [("in", "r0"), ("in", "r1"), ("in", "r2")]
    assert scheduler.usable_boards("p", LAB) == ["in"]
    assert scheduler.usable_boards("p") == ["in", "out"]
    # A new board of the lab takes its share at once, one outside it takes nothing.
    joined = (BoardJoined("new", ("p",), partitions=(LAB,)), BoardJoined("far", ("p",)))
    assert dispatched(scheduler.handle(1, *joined)) == [("new", f"r{n}") for n in (3, 4, 5)]


def test_a_request_for_one_board_outside_the_partition_waits() -> None:
    scheduler = farm()
    asked = RequestsQueued("c", (work("r", LAB, board="out"),))
    assert dispatched(scheduler.handle(0, asked)) == []
    assert dispatched(scheduler.handle(0, BoardPartitioned("out", (LAB,)))) == [("out", "r")]


def test_a_board_that_leaves_a_partition_finishes_what_it_runs() -> None:
    scheduler = farm()
    scheduler.handle(0, RequestsQueued("c", (work("a", LAB), work("b", LAB))))
    left = scheduler.handle(1, BoardPartitioned("in", ()))
    assert left == [Withdraw("in", "a"), Withdraw("in", "b")]  # the first one runs, so it is late
    assert scheduler.handle(1, Withdrawn("in", "b")) == []
    done = scheduler.handle(2, ResultReceived("in", result("a", "in")))
    assert Deliver("c", result("a", "in"), "in") in done
    back = scheduler.handle(3, BoardPartitioned("out", (LAB,)))
    assert dispatched(back) == [("out", "b")]


def test_the_same_request_for_other_boards_is_measured_again_after_the_first() -> None:
    scheduler = farm()
    scheduler.handle(0, RequestsQueued("mine", (work("r", LAB),)))
    assert scheduler.handle(0, RequestsQueued("others", (work("r"),))) == []
    told = scheduler.handle(1, ResultReceived("in", result("r", "in")))
    assert [i for i in told if isinstance(i, Deliver)] == [Deliver("mine", result("r", "in"), "in")]
    assert not any(isinstance(i, Release) for i in told)
    ((board, request_id),) = dispatched(told)
    last = scheduler.handle(2, ResultReceived(board, result(request_id, board)))
    assert Deliver("others", result("r", board), board) in last


def test_who_waits_for_other_boards_gets_nothing_from_a_campaign_that_is_cancelled() -> None:
    scheduler = farm()
    scheduler.handle(0, RequestsQueued("mine", (work("r", LAB),)))
    scheduler.handle(0, RequestsQueued("others", (work("r"),)))
    stopped = scheduler.handle(1, CampaignCancelled("mine"))
    assert stopped == [Withdraw("in", "r", abort=True)]
    assert ("r" in scheduler.open_requests()) is True
    assert dispatched(scheduler.handle(1, Withdrawn("in", "r"))) == [("in", "r")]
    scheduler.handle(2, CampaignCancelled("others"))
    scheduler.handle(2, Withdrawn("in", "r"))
    assert scheduler.open_requests() == {"r0"}


def test_who_is_cancelled_while_they_wait_for_other_boards_is_forgotten() -> None:
    scheduler = farm()
    scheduler.handle(0, RequestsQueued("mine", (work("r", LAB),)))
    scheduler.handle(0, RequestsQueued("others", (work("r"),)), CampaignCancelled("others"))
    scheduler.handle(1, ResultReceived("in", result("r", "in")))
    assert scheduler.open_requests() == {"r0"}


def test_an_answer_from_outside_the_partition_is_not_used() -> None:
    scheduler = farm()
    scheduler.handle(0, RequestsQueued("c", (work("r", LAB),)))
    late = scheduler.handle(1, ResultReceived("out", result("r", "out")))
    assert late == [ForgetResult("out", "r")]
    assert scheduler.handle(1, AnswerFound(result("r", "out"))) == []
    assert scheduler.handle(1, AnswerFound(result("r", "nobody"))) == []
    found = scheduler.handle(1, AnswerFound(result("r", "in")))
    assert Deliver("c", result("r", "in")) in found


class PartitionedWorld(World):
    """One campaign may only use some of the boards, and which these are changes."""

    LIMITED = "c2"
    ALWAYS = ("ab", "q")

    def __init__(self) -> None:
        super().__init__()
        self.inside = set(self.ALWAYS)
        self.limited_at: dict[tuple[str, str], bool] = {}  # whether it was dispatched for LAB
        self.answered_by: tuple[str, str] = ("", "")

    def joined(self, board: str) -> BoardJoined:
        platforms, quiet = BOARDS[board]
        return BoardJoined(board, platforms, quiet, (LAB,) if board in self.inside else ())

    def partition(self, campaign: str) -> str:
        return LAB if campaign == self.LIMITED else ""

    def take(self, instruction: Instruction) -> None:
        if isinstance(instruction, Dispatch):
            key = (instruction.board_id, instruction.request_id)
            self.limited_at[key] = instruction.board_id in self.inside
            others = [c for c in ("c1", "query") if self.open(c, instruction.request_id)]
            assert others or instruction.board_id in self.inside
        if isinstance(instruction, Deliver) and instruction.measurement.outcome is Outcome.OK:
            limited = instruction.campaign_id == self.LIMITED
            assert not limited or self.limited_at[self.answered_by]
        super().take(instruction)

    def open(self, campaign: str, request_id: str) -> bool:
        key = (campaign, request_id)
        return self.wanted[key] > self.delivered[key]

    def result(self, board: str, request_id: str, outcome: Outcome) -> None:
        self.answered_by = (board, request_id)
        expected = self.limited_at.get(self.answered_by, False)
        self.limited_at[self.answered_by] = expected or board in self.inside
        self.send(ResultReceived(board, answer(request_id, outcome)))

    @precondition(lambda self: hasattr(self, "scheduler"))
    @rule(board=st.sampled_from(sorted(set(BOARDS) - set(ALWAYS))))
    def move(self, board: str) -> None:
        self.inside ^= {board}
        self.send(BoardPartitioned(board, (LAB,) if board in self.inside else ()))


TestPartitions = PartitionedWorld.TestCase
TestPartitions.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
