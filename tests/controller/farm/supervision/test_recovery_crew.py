"""Boards are checked before their first work, and recovered step by step."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from latfarm_controller.board_hooks import BoardHooks
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.campaigns.sentinels import sentinel_kernel
from latfarm_controller.errors import BuildError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.health_check import operator_kernel
from latfarm_controller.farm.supervision.hook_runner import HookOutcome
from latfarm_controller.farm.supervision.recovery_ladder import LadderLimits
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import RECORD, Lab, Rounds, collect, until
from tests.controller.farm.fake_board import FakeBoard, good
from tests.controller.farm.supervision.ward import HOOK, checks, ward, watched

pytestmark = pytest.mark.timeout(60)

HOOKS = BoardHooks(reboot=HOOK, power_cycle=HOOK, power_off=HOOK)
CHECK = [f"health {hash_of(graph)[:8]}" for graph in (operator_kernel(), sentinel_kernel())]


def test_a_board_runs_one_operator_and_its_sentinel_before_its_first_work(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    asked = watched(board)

    async def play() -> None:
        async with ward(lab, store) as cared:
            await cared.farm.wait_for("p", 60)
            cared.farm.listen("c")
            cared.farm.submit("c", [lab.request(number) for number in range(4)])
            await collect(cared.farm, "c", 4)
            assert cared.state("a") == "ready"
            await until(lambda: len(board.acknowledged) == 2)

    asyncio.run(play())
    assert asked[:2] == CHECK
    assert checks(asked) == 2
    assert len(asked) == 6
    assert store.board_events() == [], "a check that is passed is no event"
    assert list(store.measurements()) == [], "nothing of a check is among the results"


def test_a_board_is_checked_again_after_a_reboot_and_not_after_a_lost_connection(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a", boot_id="first")
    asked = watched(board)

    async def play() -> None:
        async with ward(lab, store) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")
            await lab.shards[-1].die()
            await until(lambda: cared.farm.recoveries == 2)
            assert cared.state("a") == "ready"
            assert checks(asked) == 2
            board.boot_id = "second"
            await lab.shards[-1].die()
            await until(lambda: cared.farm.recoveries == 3)
            await until(lambda: checks(asked) == 4 and cared.state("a") == "ready")

    asyncio.run(play())


def test_a_board_that_fails_its_check_gets_no_work_and_restarts_its_worker(
    lab: Lab, store: DuckDBStore
) -> None:
    board, sick = lab.board("a"), [True]
    asked = watched(board, lambda: sick[0])

    def restart(_: FakeBoard, part: str) -> None:
        sick[0] = False

    board.on_restart = restart

    async def play() -> None:
        async with ward(lab, store) as cared:
            await cared.farm.wait_for("p", 60)
            cared.farm.listen("c")
            cared.farm.submit("c", [lab.request(1)])
            await collect(cared.farm, "c", 1)
            await until(lambda: "recovered" in cared.told)

    asyncio.run(play())
    assert board.restarts == ["worker"]
    assert checks(asked) == len(asked) - 1, "its only work came after its checks"
    told = list(reversed(store.board_events("a")))
    assert [event.event for event in told] == ["health_failed", "restart_worker", "recovered"]
    assert "it could not run one operator on p" in told[0].reason
    assert "the device does not answer" in told[0].reason
    assert told[1].reason.startswith("done: its worker was restarted; because: ")
    assert told[1].details == {"step": "restart_worker", "ok": True}
    assert {event.actor for event in told} == {"recovery"}


def test_an_old_board_without_hooks_that_fails_its_check_is_quarantined(
    lab: Lab, store: DuckDBStore
) -> None:
    old, well = lab.board("a", capabilities=()), lab.board("b")
    asked = watched(old, lambda: True)

    async def play() -> None:
        async with ward(lab, store) as cared:
            await cared.farm.wait_for("p", 60)
            cared.farm.listen("c")
            cared.farm.submit("c", [lab.request(number) for number in range(4)])
            await collect(cared.farm, "c", 4)
            await until(lambda: cared.desk.standing("a") is Standing.QUARANTINED)
            assert cared.desk.standing("b") is Standing.WORKING
            assert cared.crew.story("a") == ""

    asyncio.run(play())
    assert checks(asked) == len(asked)
    assert len(well.measured) == 6
    told = {event.event: event.reason for event in store.board_events("a")}
    assert store.board_events("a")[0].event == "quarantined", "after all that led to it"
    skipped = [e.reason for e in store.board_events("a") if e.event == "step_skipped"]
    assert len(skipped) == 4
    assert any("too old" in reason for reason in skipped)
    assert any("latfarm boards set a --reboot-hook" in reason for reason in skipped)
    assert told["quarantined"].endswith("look at it, then: latfarm boards resume a")


def test_a_board_climbs_to_its_reboot_hook_and_is_checked_when_it_is_back(
    lab: Lab, store: DuckDBStore
) -> None:
    board, sick = lab.board("a", boot_id="first"), [True]
    watched(board, lambda: sick[0])

    async def reboot(action: str) -> HookOutcome:
        board.boot_id = "second"
        sick[0] = False
        await lab.shards[-1].die()
        return HookOutcome(True, f"{action} sent")

    async def play() -> list[str]:
        async with ward(lab, store, hooks=HOOKS, on_hook=reboot) as cared:
            await until(lambda: "recovered" in cared.told and cared.state("a") == "ready")
            return cared.calls

    assert asyncio.run(play()) == ["reboot a"]
    assert board.restarts == ["worker", "runtime"]
    told = [event.event for event in reversed(store.board_events("a"))]
    assert [event for event in told if event != "health_failed"] == [
        "restart_worker",
        "restart_runtime",
        "reboot",
        "recovered",
    ]


def test_a_board_that_fails_its_work_restarts_its_worker_and_is_checked(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    failures = iter(range(3))

    def answer(board: FakeBoard, question: BoardRequest) -> Measurement:
        if question.purpose == "kernel" and next(failures, None) is not None:
            raise RuntimeError("the delegate is gone")
        asked.append(question.purpose)
        return good(board, question)

    asked: list[str] = []
    board.answer = answer

    async def play() -> None:
        async with ward(lab, store) as cared:
            await cared.farm.wait_for("p", 60)
            cared.farm.listen("c")
            cared.farm.submit("c", [lab.request(number) for number in range(5)])
            answers = await collect(cared.farm, "c", 5)
            assert all(each.ok for each in answers.values())
            await until(lambda: "restart_worker" in cared.told)

    asyncio.run(play())
    assert asked[:2] == ["health"] * 2
    assert asked.count("health") == 4, "once when it joined, once after its failures"
    assert board.restarts == ["worker"]


def test_a_board_that_is_slower_than_it_was_fails_its_check(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("a", capabilities=())
    pace = {"ms": 5.0}

    def answer(board: FakeBoard, question: BoardRequest) -> Measurement:
        number = len(board.measured)
        latency_ms = pace["ms"] + 0.001 * (number % 3)
        made = good(board, question)
        return replace(made, latency_ms=latency_ms, measured_at_s=1000.0 + number)

    board.answer = answer

    async def learn() -> None:
        async with ward(lab, store) as cared:
            await cared.farm.wait_for("p", 60)
            marks = [
                [MeasurementRequest(sentinel_kernel(), "p", SENTINEL, repeat=number)]
                for number in range(10)
            ]
            await Driver(store, cared.farm).run(Rounds(marks), RECORD)

    async def again() -> None:
        async with ward(lab, store) as cared:
            await until(lambda: "quarantined" in cared.told)

    asyncio.run(learn())
    assert store.board_events() == []
    pace["ms"] = 5.6
    before = len(board.measured)
    asyncio.run(again())
    assert len(board.measured) == before + 4, "an operator, the sentinel, and twice again"
    failed = [event for event in store.board_events() if event.event == "health_failed"]
    assert len(failed) == 1
    assert "+12" in failed[0].reason
    assert "of its reference on p" in failed[0].reason


def test_a_model_that_cannot_be_built_condemns_no_board(lab: Lab, store: DuckDBStore) -> None:
    lab.board("a")

    def refuse(*_: object) -> bytes:
        raise BuildError("no such op")

    lab.build = refuse  # type: ignore[method-assign, assignment]

    async def play() -> None:
        async with ward(lab, store) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")

    asyncio.run(play())
    assert store.board_events() == []


def test_a_drained_board_is_checked_once_it_may_work(lab: Lab, store: DuckDBStore) -> None:
    async def play() -> list[str]:
        async with ward(lab, store) as cared:
            await cared.desk.drain("a", "new fan", "ada")
            asked = watched(lab.board("a"))
            await cared.farm.add_boards([lab.entry("a")])  # only now, or its check may be quicker
            await until(lambda: cared.state("a") == "draining")
            assert asked == []
            await cared.desk.resume("a", "", "ada")
            assert cared.desk.standing("a") is Standing.WORKING
            await until(lambda: cared.state("a") == "ready")
            return asked

    assert asyncio.run(play()) == CHECK


def test_a_board_that_is_quarantined_by_hand_is_checked_when_it_works_again(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    asked = watched(board)

    async def play() -> None:
        async with ward(lab, store) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")
            await cared.desk.quarantine("a", "smoke", "ada")
            await until(lambda: cared.state("a") == "quarantined")
            await cared.desk.resume("a", "", "ada")
            await until(lambda: cared.state("a") == "ready" and checks(asked) == 4)

    asyncio.run(play())
    assert asked == 2 * CHECK


def test_a_board_that_does_not_answer_is_rebooted_and_checked(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("a", boot_id="first")

    async def reboot(_: str) -> HookOutcome:
        board.boot_id, board.alive = "second", True
        return HookOutcome(True, "")

    async def play() -> list[str]:
        async with ward(lab, store, hooks=HOOKS, on_hook=reboot) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")
            board.alive = False
            await lab.shards[-1].die()
            await until(lambda: "recovered" in cared.told)
            assert cared.state("a") == "ready"
            return cared.calls

    assert asyncio.run(play()) == ["reboot a"]
    assert [event.event for event in store.board_events("a")] == ["recovered", "reboot"]


def test_a_board_that_a_person_switched_off_stays_off(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("a")

    async def switch(_: str) -> HookOutcome:
        board.alive = False
        await lab.shards[-1].die()
        return HookOutcome(True, "")

    async def play() -> list[str]:
        async with ward(lab, store, hooks=HOOKS, on_hook=switch) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")
            await cared.power.switch("a", "off", "new card", "ada")
            await until(lambda: "does not answer" in cared.farm.boards()[0].reason)
            assert cared.crew.story("a") == ""
            board.alive = True
            await until(lambda: cared.farm.recoveries == 2)
            assert not cared.power.is_off("a")
            return cared.calls

    assert asyncio.run(play()) == ["power_off a"]


def test_a_board_that_leaves_the_inventory_is_left_alone(lab: Lab, store: DuckDBStore) -> None:
    lab.board("a")

    async def play() -> list[str]:
        async with ward(lab, store, hooks=HOOKS) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")
            await cared.farm.remove_board("a")
            await until(lambda: not cared.farm.under_way("a"))
            assert cared.crew.story("a") == ""
            return cared.calls

    assert asyncio.run(play()) == []
    assert store.board_events() == []


def test_a_board_that_is_too_hot_is_checked_again_and_climbs_nothing(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    left = iter(range(12))

    def answer(board: FakeBoard, question: BoardRequest) -> Measurement:
        made = good(board, question)
        if next(left, None) is None:
            return made
        return replace(made, outcome=Outcome.INFRASTRUCTURE_ERROR, error_code="THROTTLED")

    board.answer = answer

    async def play() -> None:
        async with ward(lab, store) as cared:
            await until(lambda: cared.farm.recoveries == 1 and cared.state("a") == "ready")

    asyncio.run(play())
    assert board.restarts == []
    (event,) = store.board_events("a")
    assert event.event == "health_failed"
    assert event.reason.endswith("that may pass by itself, and it is checked again")


def test_a_board_that_no_campaign_has_used_can_be_quarantined(lab: Lab, store: DuckDBStore) -> None:
    lab.board("a")

    async def play() -> None:
        async with ward(lab, store) as cared:
            await cared.desk.quarantine("idle", "smoke", "ada")
            assert cared.desk.standing("idle") is Standing.QUARANTINED
            await cared.desk.resume("idle", "", "ada")
            assert cared.desk.standing("idle") is Standing.WORKING

    asyncio.run(play())


def test_what_is_wrong_with_a_board_is_told_while_it_waits_for_its_next_step(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    watched(board, lambda: True)

    async def play() -> str:
        async with ward(lab, store, limits=LadderLimits(pause_s=3600.0)) as cared:
            await until(lambda: cared.told.count("health_failed") == 2)
            await until(lambda: "health check runs" not in cared.crew.story("a"))
            assert cared.state("a") == "checking"
            return cared.crew.story("a")

    story = asyncio.run(play())
    assert story.startswith("it could not run one operator on p: ")
    assert story.endswith("; done so far: restart_worker")
    assert board.restarts == ["worker"]
