"""Boards that lie about who they are or what they measured, in a farm with an honest board."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.app.app import Controller
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.measurement import Measurement
from latfarm_protos.v1 import agent_pb2 as pb

from tests.security.lying.lying_agent import LyingAgent

PROFILE = {
    "platform": "toy",
    "peak_macs_per_ms": 2e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "measure_ms": 20,
}
SETTINGS = {"sessions": 1, "warmup_ms": 0.0, "max_ms": 10.0, "max_runs": 5}
COUNT = 24
HONEST, LIAR = "honest", "liar"


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two simulated boards of one platform: their addresses."""
    folder = tmp_path_factory.mktemp("boards")
    profile = folder / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    made = [
        LocalAgent(LocalAgentOptions(folder / name, folder / f"{name}.log", name, simulate=profile))
        for name in (HONEST, LIAR)
    ]
    try:
        yield {agent.options.name: agent.start() for agent in made}
    finally:
        for agent in made:
            agent.stop()


class Scene:
    """A controller with an honest board and one that can lie."""

    def __init__(
        self,
        config: ControllerConfig,
        controller: Controller,
        honest: LyingAgent,
        liar: LyingAgent,
    ) -> None:
        self.config, self.controller = config, controller
        self.honest, self.liar = honest, liar

    async def ids(self) -> dict[str, str]:
        """The ids of the boards by name; empty for one that is not used."""
        return {board.name: board.board_id for board in await self.controller.boards()}

    async def start(self) -> CampaignRecord:
        graphs = []
        for channels in range(1, COUNT + 1):
            b = GraphBuilder(f"net{channels}")
            graphs.append(b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), channels, 3))]).to_json())
        config = {"settings": SETTINGS, "graphs": graphs}
        return await self.controller.campaigns.start("networks", "toy", config, "c")

    async def end(self) -> CampaignRecord:
        states = [state async for state in self.controller.campaigns.watch("c")]
        return states[-1]

    async def events(self) -> list[tuple[str, str]]:
        return [(e.board, e.event) for e in await self.controller.control.events("")]


@asynccontextmanager
async def scene(home: Path, agents: dict[str, str]) -> AsyncIterator[Scene]:
    config = ControllerConfig(home=home, local_agent=False)
    config.make_dirs()
    honest, liar = LyingAgent(agents[HONEST]), LyingAgent(agents[LIAR])
    async with honest.serving() as address, liar.serving() as other:
        registry = Registry(config.boards_file)
        registry.add(HONEST, address)
        registry.add(LIAR, other)
        with DuckDBStore(config.store_file) as store:
            farm = Farm(
                InlineBackend(),
                "test",
                policy=Policy(backoff_s=0.01),
                settings=ShardSettings("test", lease_ms=2000, retry_s=0.05),
            )
            controller = Controller(config, store, Fleet(config, "test"), farm)
            try:
                async with asyncio.timeout(90):
                    yield Scene(config, controller, honest, liar)
            finally:
                await controller.close()


def play(
    home: Path, agents: dict[str, str], act: Callable[[Scene], Awaitable[object]]
) -> list[Measurement]:
    """Act in a fresh scene; what its store has afterwards."""

    async def main() -> ControllerConfig:
        async with scene(home, agents) as made:
            await act(made)
            return made.config

    with DuckDBStore(asyncio.run(main()).store_file) as store:
        return list(store.measurements())


def test_a_second_agent_with_the_id_of_a_board_gets_none_of_its_measurements(
    tmp_path: Path, agents: dict[str, str]
) -> None:
    stolen: set[str] = set()
    by_the_honest: set[str] = set()
    ids: dict[str, str] = {}

    async def act(made: Scene) -> None:
        ids.update(await made.ids())

        def begin_to_lie_with_the_third(message: pb.Result) -> None:
            if len(made.liar.measured) >= 3:
                stolen.add(message.request_id)
                made.liar.claim(ids[HONEST])
                made.liar.result(message)
                made.honest.gate.set()

        made.honest.gate.clear()
        made.liar.result = begin_to_lie_with_the_third
        await made.start()
        assert (await made.end()).state == "done"
        assert await made.ids() == {HONEST: ids[HONEST], LIAR: ""}
        await made.controller.close()  # the events of the last moment are stored then
        told = await made.events()
        assert {(LIAR, "id_refused"), (LIAR, "result_refused")} & set(told)
        assert (HONEST, "id_refused") not in told
        by_the_honest.update(made.honest.measured)

    found = play(tmp_path, agents, act)
    good = [m for m in found if m.ok]
    assert len(good) == COUNT
    owners = {m.request_id: m.board_id for m in good}
    assert set(owners.values()) == {ids[HONEST], ids[LIAR]}
    # What the second agent measured while it lied was measured again by the honest board.
    assert stolen
    assert {owners[request_id] for request_id in stolen} == {ids[HONEST]}
    # Nothing is stored under the honest id that the honest board has not measured.
    assert {name for name, owner in owners.items() if owner == ids[HONEST]} <= by_the_honest


def test_an_agent_that_joins_with_the_id_of_a_board_is_refused(
    tmp_path: Path, agents: dict[str, str]
) -> None:
    async def act(made: Scene) -> None:
        registry = Registry(made.config.boards_file)
        entry = registry.remove(LIAR)
        honest = (await made.ids())[HONEST]
        made.liar.claim(honest)
        registry.add(LIAR, entry.address)
        boards = {board.name: board for board in await made.controller.boards()}
        assert boards[HONEST].board_id == honest
        assert boards[LIAR].state == "unreachable"
        assert f"which is that of board {HONEST}" in boards[LIAR].detail
        await made.start()
        assert (await made.end()).state == "done"
        assert not made.liar.measured
        await made.controller.close()
        assert (LIAR, "id_refused") in await made.events()
        assert registry.get(LIAR).board_id == ""

    assert {m.ok for m in play(tmp_path, agents, act)} == {True}


def _many(message: pb.DescribeResponse) -> None:
    platforms = message.runtimes[0].platforms
    platforms.extend([platforms[0]] * 2000)


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        (lambda m: setattr(m, "protocol_version", 2**32 - 1), "4294967295 as version"),
        (lambda m: setattr(m.board, "board_id", "\x1b[2J"), "is not printable"),
        (_many, "platforms, 500 at most"),
        (lambda m: m.board.hardware.update({"cpu": "x" * 40_000_000}), "too large"),
    ],
    ids=["protocol", "escape", "platforms", "bytes"],
)
def test_a_board_that_describes_itself_badly_is_one_board_that_is_away(
    tmp_path: Path, agents: dict[str, str], lie: Callable[[Any], object], says: str
) -> None:
    async def act(made: Scene) -> None:
        made.liar.describe = lie
        boards = {board.name: board for board in await made.controller.boards()}
        assert boards[HONEST].platforms == ("toy",)
        assert boards[LIAR].state == "unreachable"
        assert says in boards[LIAR].detail
        assert boards[LIAR].detail.isprintable()

    play(tmp_path, agents, act)


@pytest.mark.parametrize(
    "lie",
    [
        lambda m: setattr(m, "protocol_version", 2**32 - 1),
        lambda m: setattr(m, "memory_bytes", 2**64 - 1),
        lambda m: setattr(m, "fingerprint", "0" * 32),
        lambda m: m.layers.add(name="l", latency_ms=float("nan")),
        lambda m: m.conditions.update({"uncorrected_ms": "banana", "\x1b": "\x1b"}),
        lambda m: setattr(m, "error_message", "\x1b[2J" * 10_000_000),
    ],
    ids=["protocol", "memory", "fingerprint", "layers", "conditions", "bytes"],
)
def test_a_bad_result_is_a_failure_of_its_board_and_of_no_campaign(
    tmp_path: Path, agents: dict[str, str], lie: Callable[[Any], object]
) -> None:
    ids: dict[str, str] = {}

    async def act(made: Scene) -> None:
        def lies(message: pb.Result) -> None:
            lie(message)
            made.honest.gate.set()

        made.liar.result = lies
        made.honest.gate.clear()
        ids.update(await made.ids())
        await made.start()
        assert (await made.end()).state == "done"
        assert made.liar.measured

    found = play(tmp_path, agents, act)
    assert {(m.ok, m.board_id) for m in found} == {(True, ids[HONEST])}
