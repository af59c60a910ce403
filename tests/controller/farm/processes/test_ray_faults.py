"""Campaigns on a Ray whose parts are killed: they end by themselves, with undisturbed answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
from latfarm_controller.store.duckdb import DuckDBStore

from benchmarks.farm.cluster import TwoRaylets, two_raylets
from tests.controller.farm.processes.open_ended import (
    RECORD,
    OpenEnded,
    farm_on,
    undisturbed,
    until,
)
from tests.controller.farm.processes.ray_farm import (
    alive,
    command_line,
    pid_of,
    processes_of,
    shard_pids,
    two_boards,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.xdist_group("command"),  # one Ray at a time
    pytest.mark.timeout(900),
]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _gone(backend: RayBackend, run: object) -> bool:
    return backend.keeper.run is not run


def builder_pid(backend: RayBackend) -> int:
    """The id of a process of Ray that builds models, or that waits for some."""
    return next(
        pid
        for pid in processes_of(backend)
        if command_line(pid).startswith("ray::") and "ActorShard" not in command_line(pid)
    )


def test_each_part_of_ray_is_killed_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 1)
    backend = RayBackend(RayOptions(tmp_path / "ray", cpus=2, log_path=tmp_path / "ray.log"))
    campaign = OpenEnded()
    seen: list[int] = []

    async def answered(more: int) -> None:
        goal = len(campaign.told) + more
        await until(lambda: len(campaign.told) >= goal)

    async def disturb(farm: Farm) -> None:
        await until(lambda: backend.keeper.run)
        await until(lambda: all(status.online for status in farm.boards()))
        await answered(5)
        (shard,) = shard_pids(backend)
        kill(shard)
        await answered(5)
        await until(lambda: shard_pids(backend) not in ([], [shard]))
        kill(builder_pid(backend))
        await answered(5)
        for victim in ("gcs_server", "raylet", "the Ray process"):
            await until(lambda: backend.keeper.run)
            await answered(5)
            run, own = backend.keeper.run, backend.keeper.pid
            assert own is not None
            seen.extend([*processes_of(backend), own])
            kill(own if victim == "the Ray process" else pid_of(backend, victim))
            await until(partial(_gone, backend, run))
            assert "Ray" in farm.builders.away
            assert farm.builders.slots == 0
        await until(lambda: backend.keeper.run)
        await answered(40)  # more than were built before the last kill
        await until(lambda: all(status.online for status in farm.boards()))
        campaign.ending = True

    async def scenario() -> None:
        with DuckDBStore(tmp_path / "store.duckdb") as store:
            async with farm_on(backend, boards) as farm:
                disturbing = asyncio.create_task(disturb(farm))
                record = await Driver(store, farm).run(campaign, RECORD)
                await disturbing
                assert record.state == "done"
                seen.extend(processes_of(backend))

    with two_boards(tmp_path, measure_ms=50, noise=0.05) as boards:
        asyncio.run(scenario())
        assert not [pid for pid in seen if psutil.pid_exists(pid) and alive(pid)]
    calm = undisturbed(tmp_path / "calm", campaign.asked)
    assert campaign.values() == calm.values()


def test_two_raylets_carry_a_campaign_and_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 0)
    campaign = OpenEnded()

    async def disturb(farm: Farm, cluster: TwoRaylets) -> None:
        await until(lambda: farm.builders.slots == 3)
        await until(lambda: len(campaign.told) >= 10)
        cluster.kill()
        await until(lambda: farm.builders.slots == 1)  # the builders follow the cores
        goal = len(campaign.told) + 60
        await until(lambda: len(campaign.told) >= goal)
        campaign.ending = True

    async def scenario(cluster: TwoRaylets, boards: Sequence[BoardEntry]) -> None:
        options = RayOptions(tmp_path / "ray", cluster.address, log_path=tmp_path / "ray.log")
        with DuckDBStore(tmp_path / "store.duckdb") as store:
            async with farm_on(RayBackend(options), boards) as farm:
                disturbing = asyncio.create_task(disturb(farm, cluster))
                record = await Driver(store, farm).run(campaign, RECORD)
                await disturbing
                assert record.state == "done"

    with (
        two_boards(tmp_path, measure_ms=50, noise=0.05) as boards,
        two_raylets() as cluster,
    ):
        asyncio.run(scenario(cluster, boards))
    calm = undisturbed(tmp_path / "calm", campaign.asked)
    assert campaign.values() == calm.values()
