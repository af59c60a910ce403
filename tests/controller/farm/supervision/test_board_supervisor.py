"""Boards that are drained, quarantined and resumed: scheduler, farm, driver and store together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.check import PURPOSE, CheckCampaign
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.campaigns.sentinels import sentinel_kernel
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.scheduling.messages import (
    CHECK,
    BoardHeld,
    BoardJoined,
    Build,
    BuildReady,
    Dispatch,
    ForgetResult,
    ModelSpec,
    RequestsQueued,
    ResultReceived,
    Standing,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import RECORD, Lab, Rounds, until
from tests.controller.farm.fake_board import FakeBoard, good

pytestmark = pytest.mark.timeout(60)

MODEL = ModelSpec("g", "onnx", "fp32")


def work(name: str, purpose: str = "kernel", board: str = "") -> Work:
    return Work(name, "p", MODEL, purpose, board=board)


def ready(*boards: str) -> Scheduler:
    """A scheduler whose boards have joined, and whose one model is built."""
    scheduler = Scheduler(Policy(depth=2))
    for board in boards:
        scheduler.handle(0.0, BoardJoined(board, ("p",)))
    (build,) = scheduler.handle(0.0, RequestsQueued("c", tuple(map(work, "1234"))))
    assert build == Build((MODEL,))
    return scheduler


def answer(name: str) -> Measurement:
    return Measurement(name, "g", "p", "kernel", Outcome.OK, latency_ms=1.0)


def test_the_check_has_one_name_everywhere() -> None:
    assert CHECK == PURPOSE


def test_a_draining_board_finishes_what_it_runs_and_gives_the_rest_back() -> None:
    scheduler = ready("a")
    sent = scheduler.handle(1.0, BuildReady(MODEL, 1))
    assert [order.request_id for order in sent if isinstance(order, Dispatch)] == ["1", "2"]
    held = scheduler.handle(2.0, BoardHeld("a", Standing.DRAINING))
    assert held == [Withdraw("a", "1"), Withdraw("a", "2")]
    assert scheduler.handle(3.0, Withdrawn("a", "2")) == []
    done = scheduler.handle(4.0, ResultReceived("a", answer("1")))
    assert not [order for order in done if isinstance(order, Dispatch)]
    board = scheduler.board("a")
    assert board is not None
    assert board.assigned == []
    assert scheduler.usable_boards("p") == []

    let_go = scheduler.handle(5.0, BoardHeld("a", Standing.WORKING))
    assert [order.request_id for order in let_go if isinstance(order, Dispatch)] == ["2", "3"]


def test_a_quarantined_board_is_stopped_and_another_takes_over() -> None:
    scheduler = ready("a")
    scheduler.handle(1.0, BuildReady(MODEL, 1))
    held = scheduler.handle(2.0, BoardHeld("a", Standing.QUARANTINED))
    assert held == [Withdraw("a", "1", abort=True), Withdraw("a", "2", abort=True)]
    late = scheduler.handle(3.0, ResultReceived("a", answer("1")), Withdrawn("a", "2"))
    assert late == [ForgetResult("a", "1")], "its late answer is not used"
    taken = scheduler.handle(4.0, BoardJoined("b", ("p",)))
    assert [(o.board_id, o.request_id) for o in taken if isinstance(o, Dispatch)] == [
        ("b", "1"),
        ("b", "2"),
    ]


def test_a_held_board_that_proves_itself_runs_its_checks_alone() -> None:
    scheduler = ready("a")
    scheduler.handle(1.0, BoardHeld("a", Standing.QUARANTINED, checking=True))
    check = RequestsQueued("check", (work("mine", CHECK, "a"), work("else", CHECK)))
    sent = scheduler.handle(2.0, BuildReady(MODEL, 1), check)
    assert [order.request_id for order in sent if isinstance(order, Dispatch)] == ["mine"]


def test_a_board_stays_held_when_it_comes_back() -> None:
    scheduler = ready("a")
    scheduler.handle(1.0, BoardHeld("a", Standing.DRAINING))
    assert not [
        order
        for order in scheduler.handle(2.0, BuildReady(MODEL, 1), BoardJoined("a", ("p",)))
        if isinstance(order, Dispatch)
    ]


def clocked(lab: Lab, board: FakeBoard, pace: Callable[[FakeBoard, int], float]) -> None:
    """Give a board's answers a time of measuring, and its sentinels latencies by `pace`."""

    def at(board: FakeBoard, question: Any) -> Measurement:
        number = len(board.measured)
        latency = pace(board, number) if question.purpose in (SENTINEL, PURPOSE) else 1.0
        made = good(board, question)
        return replace(made, latency_ms=latency, measured_at_s=float(1000 + number))

    board.answer = at


def sentinel(number: int) -> MeasurementRequest:
    return MeasurementRequest(sentinel_kernel(), "p", SENTINEL, repeat=number)


def test_a_drained_board_survives_a_restart_and_comes_back_when_it_is_resumed(
    lab: Lab, store: DuckDBStore
) -> None:
    first, second = lab.board("a"), lab.board("b")

    async def play(drain: bool) -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            await until(lambda: len(farm.pool("p")) == 2)
            if drain:
                await supervisor.drain("a", "new fan", "ada")
                await supervisor.drain("a", "told twice", "ada")
            assert supervisor.standing("a") is Standing.DRAINING
            campaign = Rounds([[lab.request(n) for n in range(6)]])
            record = replace(RECORD, campaign_id=f"c{drain}")
            ended = await Driver(store, farm).run(campaign, record)
            assert ended.state == "done"
            assert farm.under_way("a") == 0

    asyncio.run(play(drain=True))
    asyncio.run(play(drain=False))
    assert first.measured == []
    assert len(second.measured) == 12
    (event,) = store.board_events("a")
    assert (event.event, event.reason, event.actor, event.board_id) == (
        "drained", "new fan", "ada", "a",
    )  # fmt: skip

    async def resume() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await until(lambda: len(farm.pool("p")) == 2)
            await supervisor.resume("a", "", "ada")
            campaign = Rounds([[lab.request(n) for n in range(6, 12)]])
            await Driver(store, farm).run(campaign, replace(RECORD, campaign_id="last"))

    asyncio.run(resume())
    assert first.measured
    assert [event.event for event in store.board_events()] == ["resumed", "drained"]


def test_what_a_board_measured_since_its_last_good_sentinel_is_asked_of_another(
    lab: Lab, store: DuckDBStore
) -> None:
    bad, well = lab.board("a"), lab.board("b")
    clocked(lab, bad, lambda _board, _number: 5.0)
    clocked(lab, well, lambda _board, _number: 5.0)
    well.alive = False

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            marks = [sentinel(number) for number in range(8)]
            work = [lab.request(number) for number in range(4)]
            last = [lab.request(number) for number in range(4, 6)]
            campaign = Rounds([marks, work, last])
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            await until(lambda: len(bad.measured) == 12)
            bad.gate.clear()
            well.alive = True
            await until(lambda: len(farm.pool("p")) == 2)
            await supervisor.quarantine("a", "fan is broken", "ada")
            ended = await running
            assert ended.state == "done"
            assert len(campaign.told) == 14, "told once each"

    asyncio.run(play())
    by_board: dict[str, set[str]] = {"a": set(), "b": set()}
    for measurement in store.measurements(campaign_id="c1"):
        by_board[measurement.board_id].add(measurement.purpose)
    assert by_board == {"a": {SENTINEL}, "b": {"kernel"}}
    used = store.campaign_measurements("c1").values()
    assert sum(measurement.purpose == "kernel" for measurement in used) == 6
    (event,) = store.board_events("a")
    assert event.details["good_until_s"] == 1007.0


def test_a_drifting_sentinel_quarantines_its_board_with_a_reason_and_a_remedy(
    lab: Lab, store: DuckDBStore
) -> None:
    board, other = lab.board("a"), lab.board("b")

    def creeping(board: FakeBoard, number: int) -> float:
        if number == 24:
            board.gate.clear()
        return 5.0 + 0.001 * (number % 3) + 0.4 * (number >= 20)

    clocked(lab, board, creeping)
    clocked(lab, other, lambda _b, number: 5.0 + 0.001 * (number % 3))
    other.alive = False

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            campaign = Rounds([[sentinel(n)] for n in range(30)] + [[lab.request(1)]])
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            await until(lambda: supervisor.standing("a") is Standing.QUARANTINED)
            other.alive = True
            assert (await running).state == "done"
            await supervisor.close()
            assert supervisor.standing("b") is Standing.WORKING

    asyncio.run(play())
    (event,) = store.board_events("a")
    assert event.actor == "cusum"
    assert "slower than its reference" in event.reason
    assert event.reason.endswith("latfarm boards resume a")
    assert event.details["shift"] == pytest.approx(0.08, abs=0.01)
    assert event.details["good_until_s"] == 1019.0
    # What was measured after it is used no more, unless another board measured it again.
    assert {m.board_id for m in store.sentinels("a")} == {"a"}
    assert max(m.measured_at_s for m in store.sentinels("a")) == 1019.0
    assert len(store.campaign_measurements("c1")) == 31


def test_a_drift_of_a_shared_machine_is_told_and_its_level_learned_anew(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a")
    clocked(lab, board, lambda _b, number: 5.0 + 0.001 * (number % 3) + 0.4 * (number >= 20))

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm, shared=("a",))
            await farm.wait_for("p", 60)
            campaign = Rounds([[sentinel(n)] for n in range(60)] + [[lab.request(1)]])
            assert (await Driver(store, farm).run(campaign, RECORD)).state == "done"
            await supervisor.close()
            assert supervisor.standing("a") is Standing.WORKING
            (level,) = await supervisor.references("a")
            assert level.accepts(5.4)
            assert not level.accepts(5.0)

    asyncio.run(play())
    (event,) = store.board_events("a")
    assert (event.event, event.actor) == ("drifted", "cusum")
    assert event.details["shift"] == pytest.approx(0.08, abs=0.01)
    assert store.standings() == {}
    assert len(store.campaign_measurements("c1")) == 61  # none is discarded


def test_a_board_comes_back_by_a_passed_sentinel(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("a")
    pace = {"ms": 5.0}
    clocked(lab, board, lambda _board, number: pace["ms"] + 0.001 * (number % 3))

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            driver = Driver(store, farm)
            await farm.wait_for("p", 60)
            await driver.run(Rounds([[sentinel(n)] for n in range(10)]), RECORD)
            await supervisor.quarantine("a", "test", "ada")
            (reference,) = await supervisor.references("a")
            assert reference.platform == "p"
            for latency_ms, accepted in ((5.6, False), (5.0, True)):
                pace["ms"] = latency_ms
                campaign = CheckCampaign(sentinel_kernel(), "p", reference.settings, "a")
                record = CampaignRecord(f"check-{campaign.nonce}", "check", "check", "p")
                supervisor.allow_check("a", allowed=True)
                ended = await driver.run(campaign, record, scope=CampaignScope(("p",), "a"))
                supervisor.allow_check("a", allowed=False)
                assert ended.state == "done", ended
                assert campaign.latency_ms is not None
                assert reference.accepts(campaign.latency_ms) is accepted
            assert "of its reference on p" in reference.tell(5.6)
            await supervisor.resume("a", "", "ada")
            assert farm.healthy("p") or await farm.wait_for("p", 60)

    asyncio.run(play())


def test_a_new_reference_forgets_the_old_normal(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("a")
    clocked(lab, board, lambda _board, number: 5.0 + 0.001 * (number % 3))

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm, clock_s=lambda: 2000.0)
            await farm.wait_for("p", 60)
            await Driver(store, farm).run(Rounds([[sentinel(n)] for n in range(10)]), RECORD)
            assert len(await supervisor.references("a")) == 1
            await supervisor.drain("a", "", "ada")
            await supervisor.resume("a", "new cooler", "ada", new_reference=True)
            assert await supervisor.references("a") == []

        async with lab.farm() as farm:
            again = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            assert await again.references("a") == []

    asyncio.run(play())


def test_a_board_whose_disk_was_full_is_taken_back_when_there_is_room(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a", room_bytes=1)

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            campaign = Rounds([[lab.request(n) for n in range(4)]])
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            await until(lambda: store.board_events("a"))
            tried, looked = board.uploads, board.described
            # It is asked for room, again and again, and for nothing else.
            await until(lambda: board.described > looked + 3)
            assert board.uploads <= tried + 2, "what was on its way when the first one failed"
            assert farm.state().boards == {"a": "quarantined"}
            assert "room for 1 bytes" in farm.boards()[0].reason
            assert supervisor.standing("a") is Standing.WORKING
            board.room_bytes = 1 << 20
            assert (await running).state == "done"
            await supervisor.close()

    asyncio.run(play())
    assert len(board.measured) == 4
    back, full = store.board_events("a")
    assert (full.event, full.actor) == ("disk_full", "farm")
    assert "lacks room for this blob; it is taken back once there is room" in full.reason
    assert (back.event, back.reason) == ("disk_free", "its disk has room again")
    assert store.standings() == {}


def test_a_full_disk_that_somebody_saw_to_needs_no_second_word(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("a", room_bytes=1)

    async def play() -> None:
        async with lab.farm(quarantine_s=1e6, quarantine_cap_s=1e6) as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            campaign = Rounds([[lab.request(1)]])
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            await until(lambda: store.board_events("a"))
            board.room_bytes = 1 << 20
            await supervisor.resume("a", "made room", "ada")
            assert (await running).state == "done"
            await supervisor.close()

    asyncio.run(play())
    assert [event.event for event in store.board_events("a")] == ["resumed", "disk_full"]


def test_without_any_sentinel_nothing_is_discarded(lab: Lab, store: DuckDBStore) -> None:
    lab.board("a")

    async def play() -> None:
        async with lab.farm() as farm:
            supervisor = BoardSupervisor(store, farm)
            await farm.wait_for("p", 60)
            await Driver(store, farm).run(Rounds([[lab.request(1)]]), RECORD)
            await supervisor.quarantine("a", "", "ada")

    asyncio.run(play())
    assert len(store.campaign_measurements("c1")) == 1
