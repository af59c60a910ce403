"""A rack over real gRPC of which boards lie, and the crew that recovers such boards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.rack.rack import Rack, RackConfig
from latfarm_agent.service.server import ServiceConfig
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.hook_runner import HookOutcome
from latfarm_controller.farm.supervision.power_switch import PowerSwitch
from latfarm_controller.farm.supervision.recovery_crew import RecoveryCrew
from latfarm_controller.farm.supervision.recovery_ladder import LadderLimits
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_protos.v1 import agent_pb2 as pb

from benchmarks.farm.boards import PLATFORM
from benchmarks.farm.controller_side import FarmCampaign
from tests.security.lying.lying_agent import LyingAgent

COUNT = 24
"""Number of measurements of the campaign."""
QUICK = LadderLimits(pause_s=0.001, pause_cap_s=0.001, away_s=3600.0, boot_s=3600.0)
"""Pauses of a millisecond; nothing is done about a board that is away."""
RECORD = CampaignRecord("c", "c", FarmCampaign.kind, PLATFORM)
HONEST = "rack-0001"
FOREIGN = "0" * 32
"""A fingerprint that no board of the rack has."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BoardEntry]]:
    """The boards of a rack of four in this process, over real gRPC."""
    folder = tmp_path_factory.mktemp("rack")
    profile = folder / "profile.json"
    profile.write_text(json.dumps({"platform": PLATFORM, "overhead_ms": 0.01}))
    rack = Rack(RackConfig(profile, 4, ServiceConfig(folder / "state"), measuring_ms=10.0))
    rack.start()
    try:
        told = rack.inventory()["boards"]
        yield [BoardEntry(name, **entry) for name, entry in told.items()]
    finally:
        rack.stop(1.0)


@dataclass
class Watched:
    """A farm that a crew cares for, and its boards, each of which can lie."""

    farm: Farm
    store: DuckDBStore
    agents: dict[str, LyingAgent]
    hooked: list[str]

    def told(self, name: str) -> list[str]:
        """The stored events of a board, the oldest first."""
        return [event.event for event in reversed(self.store.board_events(name))]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a state."""
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(
    folder: Path,
    boards: list[BoardEntry],
    lie: Callable[[dict[str, LyingAgent]], object],
    on_hook: Callable[[dict[str, LyingAgent]], Awaitable[object]] | None = None,
    lease_ms: int = 60_000,
) -> AsyncIterator[Watched]:
    """A farm of these boards with a crew.

    Args:
        folder: for the store.
        boards: the boards.
        lie: makes boards lie before they join.
        on_hook: called when the reboot hook of a board is run.
        lease_ms: duration of a lease; a board that forgets its lease is noticed after a third.
    """
    command = Hook(("true",))
    hooks = BoardHooks(reboot=command)
    hooked: list[str] = []
    settings = ShardSettings("test", lease_ms=lease_ms, retry_s=0.05)
    async with AsyncExitStack() as stack:
        agents = {entry.name: LyingAgent(entry.address) for entry in boards}
        lie(agents)
        entries = [
            replace(entry, address=await stack.enter_async_context(agents[entry.name].serving()))
            for entry in boards
        ]

        async def run_hook(hook: Hook, board: str, action: str) -> HookOutcome:
            assert hook == command
            hooked.append(f"{action} {board}")
            if on_hook is not None:
                await on_hook(agents)
            return HookOutcome(True, "done")

        store = stack.enter_context(DuckDBStore(folder / "store.duckdb"))
        farm = Farm(InlineBackend(), "test", policy=Policy(backoff_s=0.01), settings=settings)
        await farm.start()
        stack.push_async_callback(farm.stop)
        desk = BoardSupervisor(store, farm)
        stack.push_async_callback(desk.close)
        power = PowerSwitch(desk, lambda _: hooks, run_hook=run_hook)
        crew = RecoveryCrew(
            store, farm, desk, lambda _: hooks, power, limits=QUICK, rest_s=0.01, run_hook=run_hook
        )
        stack.push_async_callback(crew.close)
        await stack.enter_async_context(asyncio.timeout(150))
        await farm.add_boards(entries)
        yield Watched(farm, store, agents, hooked)


def _other_id(message: pb.DescribeResponse, board_id: str) -> None:
    message.board.board_id = board_id


def _older_token(lease: pb.Lease) -> None:
    lease.token -= 1


def _foreign(result: pb.Result) -> None:
    result.fingerprint = FOREIGN


def test_boards_that_lie_cost_their_own_work_and_nothing_else(
    tmp_path: Path, boards: list[BoardEntry]
) -> None:
    honest = boards[0]
    thief, stale, foreign = (entry.name for entry in boards[1:])

    def lie(agents: dict[str, LyingAgent]) -> None:
        agents[thief].describe = lambda message: _other_id(message, honest.board_id)
        agents[stale].lease = _older_token
        agents[foreign].result = _foreign

    async def play() -> None:
        async with watched(tmp_path, boards, lie) as made:
            await made.until(lambda: made.farm.state().boards.get(HONEST) == "ready")
            record = await Driver(made.store, made.farm).run(
                FarmCampaign(COUNT, longest_s=600.0), RECORD
            )
            assert record.state == "done"
            assert not made.agents[thief].measured, "who has another's id gets no work"
            assert not made.agents[stale].measured, "an old token lets nobody measure"
            assert made.farm.state().boards[HONEST] == "ready"
            await made.until(lambda: "health_failed" in made.told(foreign))

    asyncio.run(play())
    with DuckDBStore(tmp_path / "store.duckdb") as store:
        found = list(store.measurements())
    assert len({m.request_id for m in found}) == len(found) == COUNT
    assert {(m.ok, m.board_id) for m in found} == {(True, honest.board_id)}
    assert FOREIGN not in {m.fingerprint for m in found}


def test_a_board_that_begins_to_lie_loses_what_it_measured_then(
    tmp_path: Path, boards: list[BoardEntry]
) -> None:
    pair = boards[:2]
    liar = pair[1].name
    stolen: set[str] = set()
    truths: list[int] = []

    def lie(agents: dict[str, LyingAgent]) -> None:
        def result(message: pb.Result) -> None:
            if truths and len(agents[liar].measured) > truths[0]:
                stolen.add(message.request_id)
                message.board_id = pair[0].board_id
                agents[HONEST].gate.set()

        agents[liar].result = result

    async def play() -> None:
        async with watched(tmp_path, pair, lie) as made:
            await made.until(lambda: list(made.farm.state().boards.values()) == ["ready"] * 2)
            made.agents[HONEST].gate.clear()
            truths.append(len(made.agents[liar].measured) + 2)
            record = await Driver(made.store, made.farm).run(
                FarmCampaign(COUNT, longest_s=600.0), RECORD
            )
            assert record.state == "done"

    asyncio.run(play())
    with DuckDBStore(tmp_path / "store.duckdb") as store:
        owners = {m.request_id: m.board_id for m in store.measurements() if m.ok}
    assert len(owners) == COUNT
    asked_again = stolen & set(owners)  # besides, it lied in its health check
    assert asked_again
    assert {owners[request] for request in asked_again} == {pair[0].board_id}
    assert set(owners.values()) == {entry.board_id for entry in pair}


@pytest.mark.parametrize("heals", ["worker", "runtime", "reboot"])
def test_the_crew_climbs_the_ladder_of_a_real_board(
    tmp_path: Path, boards: list[BoardEntry], heals: str
) -> None:
    name = boards[1].name

    def lie(agents: dict[str, LyingAgent]) -> None:
        agents[name].result = _foreign
        agents[name].on_restart = lambda part: heal(agents) if part == heals else None

    def heal(agents: dict[str, LyingAgent]) -> None:
        agents[name].result = lambda _: None

    async def reboot(agents: dict[str, LyingAgent]) -> None:
        heal(agents)
        agents[name].describe = lambda message: setattr(message.board, "boot_id", "second")
        await agents[name].reboot()

    async def play() -> None:
        lease_ms = 15_000 if heals == "reboot" else 60_000
        async with watched(tmp_path, boards[:2], lie, reboot, lease_ms) as made:
            await made.until(lambda: "recovered" in made.told(name))
            assert made.farm.state().boards[name] == "ready"
            record = await Driver(made.store, made.farm).run(
                FarmCampaign(COUNT, longest_s=600.0), RECORD
            )
            assert record.state == "done"
            assert made.told(HONEST) == []
            told = made.told(name)
            steps = ["restart_worker", "restart_runtime", "reboot"]
            climbed = steps[: ["worker", "runtime", "reboot"].index(heals) + 1]
            assert [event for event in told if event in steps] == climbed
            assert set(told) - set(steps) == {"result_refused", "health_failed", "recovered"}
            assert made.agents[name].restarts == ["worker", "runtime"][: len(climbed)]
            assert made.hooked == ([f"reboot {name}"] if heals == "reboot" else [])
            board_ids = {m.board_id for m in made.store.measurements() if m.ok}
            assert board_ids <= {entry.board_id for entry in boards[:2]}

    asyncio.run(play())
