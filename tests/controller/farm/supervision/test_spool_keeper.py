"""The spools of boards are emptied, and what is finished is not measured again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.spool_keeper import SpoolKeeper, is_kept
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.conftest import (
    RECORD,
    Lab,
    Rounds,
    collect,
    until,
)
from tests.controller.farm.fake_board import FakeBoard, FakeClient


def keeper_of(store: DuckDBStore, farm: Farm, standing: Standing = Standing.WORKING) -> SpoolKeeper:
    keeper = SpoolKeeper(store, farm, lambda _: standing)
    keeper.want({"p"})
    return keeper


def fill(lab: Lab, board: FakeBoard, *numbers: int, fingerprint: str = "") -> list[str]:
    """Put finished results of some requests into the spool of a board; returns their ids."""
    for number in numbers:
        spooled = lab.spooled(lab.request(number), board.board_id, fingerprint)
        board.spool[spooled.request_id] = spooled
    return list(board.spool)


def test_what_is_kept(lab: Lab) -> None:
    offers = (PlatformInfo("p", "onnx", "fp32", fingerprint="f"),)
    board = BoardInfo("b", "b", runtimes=(RuntimeInfo("toy", True, platforms=offers),))
    good = lab.spooled(lab.request(0), "b", "f")
    assert is_kept(good, board, {"p"}, Standing.WORKING)
    assert is_kept(good, board, {"p"}, Standing.DRAINING)
    assert is_kept(replace(good, board_id="", fingerprint=""), board, {"p"}, Standing.WORKING)
    assert not is_kept(good, board, {"p"}, Standing.QUARANTINED)
    assert not is_kept(good, board, {"q"}, Standing.WORKING), "no unfinished campaign needs it"
    assert not is_kept(good, board, set(), Standing.WORKING)
    for changes in (
        {"fingerprint": "another runtime"},
        {"board_id": "another"},
        {"platform": "q"},
        {"outcome": "infrastructure_error"},
        {"request_id": ""},
        {"protocol_version": 2},
    ):
        bad = replace(good, **changes)
        assert not is_kept(bad, board, {"p", "q"}, Standing.WORKING), changes


def test_a_campaign_that_goes_on_measures_nothing_that_is_in_a_spool(
    lab: Lab, store: DuckDBStore
) -> None:
    board, other = lab.board("b", page=4), lab.board("other")
    ids = fill(lab, board, *range(10))
    campaign = Rounds([[lab.request(number) for number in range(12)]])

    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await until(lambda: len(farm.pool("p")) == 2)
            await until(lambda: not board.spool)
            await until(lambda: len(store.found_results()) == 10)
            record = await Driver(store, farm).run(campaign, RECORD)
            await until(lambda: not store.found_results())
            await keeper.close()
            return record

    record = asyncio.run(scenario())
    assert (record.state, record.measurements) == ("done", 12)
    assert len(board.measured) + len(other.measured) == 2
    assert not set(board.measured + other.measured) & set(ids)
    stored = store.campaign_measurements("c1")
    assert {stored[name].latency_ms for name in ids} == {2.0}


def test_the_farm_remembers_what_it_found_across_a_second_death(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("b")
    ids = fill(lab, board, *range(3))

    async def first() -> None:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await until(lambda: not board.spool)
            await keeper.close()

    async def second() -> CampaignRecord:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await farm.wait_for("p", 60)
            campaign = Rounds([[lab.request(number) for number in range(4)]])
            record = await Driver(store, farm).run(campaign, RECORD)
            await keeper.close()
            return record

    asyncio.run(first())
    assert sorted(found.request_id for found in store.found_results()) == sorted(ids)
    assert asyncio.run(second()).measurements == 4
    assert len(board.measured) == 1
    assert store.found_results() == []


def test_an_open_request_is_answered_when_its_board_joins(lab: Lab, store: DuckDBStore) -> None:
    busy, late = lab.board("busy"), lab.board("late", alive=False)
    busy.gate.clear()
    fill(lab, late, 0, 1)

    async def scenario() -> None:
        async with lab.farm() as farm:
            keeper_of(store, farm)
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(0), lab.request(1)])
            await until(lambda: busy.busy)
            late.alive = True
            answers = await collect(farm, "c", 2)
            assert {answer.latency_ms for answer in answers.values()} == {2.0}
            await until(lambda: not late.spool)

    asyncio.run(scenario())
    assert busy.measured == late.measured == []


def test_what_nobody_needs_is_acknowledged_and_not_kept(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b", fingerprint="new")
    fill(lab, board, 0, 1, fingerprint="old")
    failed = lab.spooled(lab.request(2), "b", "new", "infrastructure_error")
    board.spool[failed.request_id] = failed

    async def scenario() -> None:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await until(lambda: not board.spool)
            assert store.found_results() == []
            farm.listen("c")
            farm.submit("c", [lab.request(0)])
            answers = await collect(farm, "c", 1)
            assert [answer.latency_ms for answer in answers.values()] == [1.0]
            await keeper.close()

    asyncio.run(scenario())
    assert len(board.acknowledged) >= 3
    assert board.measured == [lab.request(0).request_id]


def test_a_quarantined_board_answers_nothing_with_old_results(lab: Lab, store: DuckDBStore) -> None:
    board = lab.board("b")
    fill(lab, board, 0)

    async def scenario() -> None:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm, Standing.QUARANTINED)
            await until(lambda: not board.spool)
            await keeper.close()

    asyncio.run(scenario())
    assert store.found_results() == []


def test_what_was_found_at_a_board_goes_when_its_measurements_are_discarded(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("b")
    fill(lab, board, 0, 1)

    async def scenario() -> None:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await until(lambda: len(store.found_results()) == 2)
            farm.discard_measurements("b", 0.0, "it drifted")
            await keeper.close()
            assert store.found_results() == []
            farm.listen("c")
            farm.submit("c", [lab.request(0)])
            answers = await collect(farm, "c", 1)
            assert [answer.latency_ms for answer in answers.values()] == [1.0]

    asyncio.run(scenario())


def test_the_end_of_the_last_campaign_of_a_platform_forgets_what_was_found(
    lab: Lab, store: DuckDBStore
) -> None:
    board = lab.board("b")
    fill(lab, board, 0)

    async def scenario() -> None:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await until(lambda: len(store.found_results()) == 1)
            keeper.want(())
            await keeper.close()

    asyncio.run(scenario())
    assert store.found_results() == []


def test_an_agent_that_cannot_go_on_in_a_list_is_listed_all_the_same(
    lab: Lab, store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = lab.board("b")
    fill(lab, board, 0, 1, 2)
    listed = FakeClient.results

    async def from_the_start(self: FakeClient, _after: str = "") -> object:
        return await listed(self)

    monkeypatch.setattr(FakeClient, "results", from_the_start)

    async def scenario() -> None:
        async with lab.farm() as farm:
            keeper = keeper_of(store, farm)
            await until(lambda: not board.spool)
            await keeper.close()

    asyncio.run(scenario())
    assert len(store.found_results()) == 3
