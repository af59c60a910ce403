"""The keeper of the Ray process: restarts, deadlines, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from latfarm_controller.errors import FarmError, RayAwayError
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.boards.model_builder import BuilderState, BuiltModel
from latfarm_controller.farm.processes.channel import Channel
from latfarm_controller.farm.processes.child_messages import (
    BuildModels,
    ChildOptions,
    ProbeBoard,
)
from latfarm_controller.farm.processes.child_process import ChildProcess
from latfarm_controller.farm.processes.ray_keeper import KeeperTimes, RayKeeper
from latfarm_controller.farm.processes.remote import RemoteBuilder, RemoteShard
from latfarm_controller.farm.scheduling.messages import ModelSpec
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

ROOT = Path(__file__).parents[4]
MODEL = ModelSpec("g", "onnx", "fp32")
SOON = KeeperTimes(pause_s=0.01, pause_cap_s=0.05)
NEVER_S = 1e6
"""A limit that no test reaches."""


@dataclass
class Kept:
    """A keeper of a fake Ray process, and all that it told."""

    keeper: RayKeeper
    log: Path
    told: list[BuilderState] = field(default_factory=list)

    def pids(self) -> list[int]:
        """The ids of the processes that were started so far."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return [int(pid) for pid in text.split()]

    async def up(self) -> None:
        await until(lambda: self.keeper.run is not None)


def command(log: Path, modes: str) -> list[str]:
    return [sys.executable, "-m", "tests.controller.farm.processes.fake_child", str(log), modes]


@asynccontextmanager
async def keep(folder: Path, modes: str, times: KeeperTimes = SOON) -> AsyncIterator[Kept]:
    log, told = folder / "pids", list[BuilderState]()
    options = ChildOptions(folder, folder)
    keeper = RayKeeper(
        options,
        told.append,
        times=times,
        command=command(log, modes),
        log_path=folder / "ray.log",
    )
    keeper.start()
    try:
        yield Kept(keeper, log, told)
    finally:
        await keeper.stop()
        assert not any(map(psutil.pid_exists, Kept(keeper, log).pids()))


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def graph() -> Graph:
    builder = GraphBuilder("g")
    return builder.build([builder.relu(builder.input((1, 2, 4, 4)))])


def test_it_tells_when_models_can_be_built_and_why_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keep(tmp_path, "fu") as kept:
            await until(lambda: kept.told)
            with pytest.raises(RayAwayError, match="Ray is being started"):
                await kept.keeper.call(BuildModels(()), 1)
            await kept.up()
            assert kept.told == [
                BuilderState(0, "Ray is being started", starting=True),
                BuilderState(0, "Ray is away: no room"),
                BuilderState(0, "Ray is started again after: no room", starting=True),
                BuilderState(3),
            ]
            (built,) = await RemoteBuilder(kept.keeper).build([(MODEL, graph())])
            assert built == BuiltModel(MODEL, "", 1, b"m")
        assert kept.told[-1] == BuilderState(0, "Ray is away: the controller stops")

    asyncio.run(scenario())


def test_a_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keep(tmp_path, "u") as kept:
            await kept.up()
            (first,) = kept.pids()
            os.kill(first, signal.SIGKILL)
            await until(lambda: len(kept.pids()) == 2)
            await kept.up()
            assert BuilderState(0, "Ray is away: the Ray process died") in kept.told
            assert kept.told[-1] == BuilderState(3)

    asyncio.run(scenario())


def test_what_was_asked_of_a_process_that_dies_fails_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keep(tmp_path, "xu") as kept:
            await kept.up()
            shard = RemoteShard(kept.keeper)
            (lost,) = await RemoteBuilder(kept.keeper).build([(MODEL, graph())])
            assert (lost.lost, lost.retryable) == (True, True)  # type: ignore[union-attr]
            with pytest.raises(RayAwayError):
                await shard.events()
            await kept.up()

    asyncio.run(scenario())


def test_a_process_without_a_sign_of_life_is_replaced(tmp_path: Path) -> None:
    times = KeeperTimes(pause_s=0.01, look_s=0.2, silent_looks=5, start_s=NEVER_S, stop_s=0.1)

    async def scenario() -> None:
        async with keep(tmp_path, "h", times) as kept:
            await kept.up()
            with pytest.raises(RayAwayError, match="gives no sign of life"):
                await kept.keeper.call(BuildModels(()), NEVER_S)
            await until(lambda: len(kept.pids()) > 1)
            assert not psutil.pid_exists(kept.pids()[0])

    asyncio.run(scenario())


def test_a_ray_that_never_starts_is_started_again(tmp_path: Path) -> None:
    times = KeeperTimes(pause_s=0.01, look_s=0.1, silent_looks=10_000, start_s=1.0)

    async def scenario() -> None:
        async with keep(tmp_path, "s", times) as kept:
            why = "Ray has not started in time"
            again = BuilderState(0, f"Ray is started again after: {why}", starting=True)
            await until(lambda: again in kept.told)
            assert BuilderState(0, f"Ray is away: {why}") in kept.told

    asyncio.run(scenario())


def test_a_process_whose_start_is_cancelled_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(end: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Channel, "over", cancelled)
    sleeping = [sys.executable, "-c", "import time; time.sleep(3600)", str(tmp_path)]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ChildProcess.start(sleeping, None))
    children = psutil.Process().children()
    assert not [child for child in children if str(tmp_path) in child.cmdline()]


def test_a_process_whose_end_is_cancelled_does_not_stay() -> None:
    async def scenario() -> None:
        sleeping = [sys.executable, "-c", "import time; time.sleep(3600)"]
        child = await ChildProcess.start(sleeping, None)
        ending = asyncio.create_task(child.end(NEVER_S))
        await asyncio.sleep(0.05)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert not psutil.pid_exists(child.pid)

    asyncio.run(scenario())


def test_a_start_that_takes_long_is_told_as_an_absence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = KeeperTimes(look_s=0.01, silent_looks=10**6, start_s=NEVER_S, slow_s=0.02, stop_s=0.1)

    async def scenario() -> None:
        async with keep(tmp_path, "s", times) as kept:
            await until(lambda: len(kept.told) == 2)
            assert kept.told[0].starting
            assert not kept.told[1].starting
            assert kept.told[1].away.startswith("Ray is away: it has not started within")
            assert str(tmp_path / "ray.log") in kept.told[1].away

    asyncio.run(scenario())
    (record,) = caplog.records
    assert "it has not started within" in record.getMessage()


def test_pauses_between_failures_grow_to_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with keep(tmp_path, "ddddu") as kept:
            await kept.up()

    asyncio.run(scenario())
    pauses = [float(record.getMessage().split()[-2]) for record in caplog.records[:4]]
    assert pauses == [0.01, 0.02, 0.04, 0.05]


def test_a_call_that_fails_ends_its_shard_for_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keep(tmp_path, "u") as kept:
            await kept.up()
            shard = RemoteShard(kept.keeper)
            with pytest.raises(FarmError, match="not here"):
                await shard.start(ShardSettings("test"), here=True)
            with pytest.raises(FarmError, match="not here"):
                await shard.probe("b")
            with pytest.raises(FarmError, match="not here"):
                await shard.events()

    asyncio.run(scenario())


def test_every_call_has_a_deadline(tmp_path: Path) -> None:
    times = KeeperTimes(margin_s=0.01)

    async def scenario() -> None:
        async with keep(tmp_path, "hu", times) as kept:
            await kept.up()
            with pytest.raises(FarmError, match="did not answer a ProbeBoard in time"):
                await kept.keeper.call(ProbeBoard(1, "b"), 0.01)
            assert kept.pids() == [kept.keeper.pid]
            os.kill(kept.pids()[0], signal.SIGKILL)  # it hangs, so it would not end by itself

    asyncio.run(scenario())


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from latfarm_controller.farm.processes.child_messages import ChildOptions
from latfarm_controller.farm.processes.ray_keeper import RayKeeper

async def main():
    keeper = RayKeeper(ChildOptions(Path("."), Path("none")), print, command=sys.argv[1:])
    keeper.start()
    while keeper.run is None:
        await asyncio.sleep(0.01)
    print(keeper.pid, "ray" in sys.modules, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_the_process_ends_when_the_controller_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, *command(tmp_path / "pids", "u")],
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout is not None
        line = controller.stdout.readline()
        while line.startswith("BuilderState"):
            line = controller.stdout.readline()
        pid, ray = line.split()
        assert ray == "False", "the controller must not import Ray"
        child = psutil.Process(int(pid))
        controller.kill()
        controller.wait()
        while alive(child):
            time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; where nobody reaps orphans, a dead one stays as a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; the limit of the test is the only one."""
    while not condition():
        await asyncio.sleep(0.005)
