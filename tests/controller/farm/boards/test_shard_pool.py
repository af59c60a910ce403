"""The shards of a farm: which board goes to which, and what happens when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import RayAwayError
from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.boards.interfaces import Shard, ShardSettings
from latfarm_controller.farm.farm import Farm

from tests.controller.farm.conftest import Lab, LabBackend, collect, until


def test_a_shard_that_dies_is_replaced(lab: Lab) -> None:
    board = lab.board("b")
    board.gate.clear()

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(4)])
            await until(lambda: board.busy)
            (shard,) = lab.shards
            await shard.die()
            board.gate.set()
            answers = await collect(farm, "c", 4)
            assert all(answer.ok for answer in answers.values())
            assert len(lab.shards) == 2

    asyncio.run(scenario())


def test_a_shard_that_is_replaced_while_it_lives_gives_its_boards_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 0)
    board = lab.board("far")

    async def scenario() -> None:
        async with split_farm(lab, {"far": "192.0.2.7:1"}) as (farm, _):
            await farm.wait_for("p", 60)
            _, far = lab.shards
            far.dead.set()  # it counts as dead, because it did not answer in time
            await until(lambda: len(lab.shards) == 3 and farm.pool("p"))
            assert far.working == []
            assert board.leases == 2

    asyncio.run(scenario())


class SplitBackend(LabBackend):
    """Notes where each shard beyond the first one was to run; it may refuse to start one."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.here: list[bool] = []
        self.refusals = 0

    async def far_shard(self, settings: ShardSettings, *, here: bool) -> Shard:
        if self.refusals:
            self.refusals -= 1
            raise RayAwayError("Ray is away: it was killed")
        self.here.append(here)
        return await self.shard(settings)


@asynccontextmanager
async def split_farm(
    lab: Lab, addresses: dict[str, str], refusals: int = 0
) -> AsyncIterator[tuple[Farm, SplitBackend]]:
    """A farm with these boards, at these addresses."""
    backend = SplitBackend(lab)
    backend.refusals = refusals
    settings = ShardSettings("test", retry_s=0.001, retry_cap_s=0.01, restart_s=0.0)
    farm = Farm(backend, "test", settings=settings)
    await farm.start([BoardEntry(name, address) for name, address in addresses.items()])
    try:
        yield farm, backend
    finally:
        await farm.stop()


def addresses(lab: Lab, near: int, far: int) -> dict[str, str]:
    """Addresses of `near` boards on loopback and of `far` boards on other machines, by name."""
    found = {f"near{i}": f"127.0.0.1:{i + 1}" for i in range(near)}
    found |= {f"far{i}": f"192.0.2.7:{i + 1}" for i in range(far)}
    for name in found:
        lab.board(name)
    return found


def test_the_first_boards_need_no_shard_of_their_own(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 2)
    monkeypatch.setattr(shard_pool, "BOARDS_A_SHARD", 3)

    async def scenario() -> None:
        async with split_farm(lab, addresses(lab, near=0, far=8)) as (farm, backend):
            await until(lambda: all(status.online for status in farm.boards()))
            assert [status.shard for status in farm.boards()] == [0, 0, 1, 1, 1, 2, 2, 2]
            assert backend.here == [False, False]

    asyncio.run(scenario())


def test_boards_on_loopback_stay_with_this_host(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 0)
    monkeypatch.setattr(shard_pool, "BOARDS_A_SHARD", 2)

    async def scenario() -> None:
        known = addresses(lab, near=3, far=3)
        # The order is far0, near0, far1, near1, far2, near2.
        mixed = dict(sorted(known.items(), key=lambda item: (item[0][-1], item[0])))
        async with split_farm(lab, mixed) as (farm, backend):
            await until(lambda: all(status.online for status in farm.boards()))
            shards = {status.name: status.shard for status in farm.boards()}
            assert backend.here == [False, True, False, True]
            for name, shard in shards.items():
                assert backend.here[shard - 1] or name.startswith("far")

    asyncio.run(scenario())


def test_boards_wait_for_a_shard_that_cannot_start_yet(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 1)

    async def scenario() -> None:
        async with split_farm(lab, addresses(lab, near=2, far=0), refusals=3) as (farm, _):
            await until(lambda: all(status.online for status in farm.boards()))
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(4)])
            assert all(answer.ok for answer in (await collect(farm, "c", 4)).values())

    asyncio.run(scenario())


def test_a_board_whose_shard_cannot_start_is_still_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 0)

    async def scenario() -> None:
        async with split_farm(lab, addresses(lab, near=1, far=0), refusals=3) as (farm, backend):
            assert (await farm.wait_for("p", 20)).name == "p"
            assert backend.refusals == 0

    asyncio.run(scenario())


def test_why_a_board_waits_for_its_shard_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 0)

    async def scenario() -> None:
        async with split_farm(lab, addresses(lab, near=1, far=0), refusals=10**9) as (farm, _):
            told = "connecting: Ray is away: it was killed"
            await until(lambda: farm.boards()[0].reason == told)

    asyncio.run(scenario())
