"""Campaigns on a Ray whose parts are killed: they end by themselves, with undisturbed answers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import psutil
import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
from latfarm_controller.store.duckdb import DuckDBStore

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


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
args = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20,
        "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=args)
second = cluster.add_node(**args)
(raylet,) = second.all_processes["raylet"]
print(cluster.address, raylet.process.pid, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextmanager
def cluster_of_two() -> Iterator[tuple[str, int]]:
    """A Ray cluster of two nodes of two cores; gives its address and the second raylet's id."""
    while True:  # a raylet gives its agents 15 s to start, which a busy host may exceed
        with subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},  # loopback alone
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            found = re.search(r"^(127\.0\.0\.1:\d+) (\d+)$", _until_cluster(process.stdout), re.M)
            if found is not None:
                yield found[1], int(found[2])
                return


def _until_cluster(output: IO[str]) -> str:
    """What a process prints, up to the line that tells of the cluster."""
    lines = []
    for line in output:
        lines.append(line)
        if line.startswith("127.0.0.1:"):
            break
    return "".join(lines)


def test_two_raylets_carry_a_campaign_and_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 0)
    campaign = OpenEnded()

    async def disturb(farm: Farm, raylet: int) -> None:
        await until(lambda: farm.builders.slots == 3)
        await until(lambda: len(campaign.told) >= 10)
        kill(raylet)
        await until(lambda: farm.builders.slots == 1)  # the builders follow the cores
        goal = len(campaign.told) + 60
        await until(lambda: len(campaign.told) >= goal)
        campaign.ending = True

    async def scenario(address: str, raylet: int, boards: Sequence[BoardEntry]) -> None:
        options = RayOptions(tmp_path / "ray", address, log_path=tmp_path / "ray.log")
        with DuckDBStore(tmp_path / "store.duckdb") as store:
            async with farm_on(RayBackend(options), boards) as farm:
                disturbing = asyncio.create_task(disturb(farm, raylet))
                record = await Driver(store, farm).run(campaign, RECORD)
                await disturbing
                assert record.state == "done"

    with (
        two_boards(tmp_path, measure_ms=50, noise=0.05) as boards,
        cluster_of_two() as (address, raylet),
    ):
        asyncio.run(scenario(address, raylet, boards))
    calm = undisturbed(tmp_path / "calm", campaign.asked)
    assert campaign.values() == calm.values()
