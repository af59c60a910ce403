"""Which versions of agents a controller uses, and what it says of those that it does not use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from latfarm_controller import __version__
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry, Registry
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import VersionSkewError
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.boards.shard import InlineShard
from latfarm_controller.farm.boards.shard_events import BoardConnected, BoardUnreachable
from latfarm_controller.version_skew import skew

from tests.controller.agents.fake_agent import FakeAgent, run, serving

MAJOR, MINOR = (int(part) for part in __version__.split(".")[:2])
NEXT = f"{MAJOR}.{MINOR + 1}.0"
"""A version of agents that this controller uses."""
TOO_NEW = f"{MAJOR}.{MINOR + 2}.0"


@pytest.mark.parametrize(
    ("controller", "agent"),
    [
        ("1.4.0", "1.4.0"),
        ("1.4.0", "1.4.9"),
        ("1.4.7", "1.3.0"),
        ("1.4.0", "1.5.2"),
        ("1.4.0", "1.5.0rc1"),
        ("1.4.0.dev3+local", "1.3"),
        ("0.1.0", "0.0.9"),
        ("1.9.0", "1.10.0"),
        ("1.4.0", ""),
    ],
)
def test_one_minor_version_either_way_is_used(controller: str, agent: str) -> None:
    assert skew(agent, controller) == ""


@pytest.mark.parametrize(
    ("controller", "agent", "says"),
    [
        ("1.4.0", "1.2.9", "too old for this controller of version 1.4.0"),
        ("1.4.0", "1.2.9", "; upgrade the board"),
        ("1.4.0", "1.6.0", "too new for this controller"),
        ("1.4.0", "1.6.0", "; upgrade this controller"),
        ("1.1.0", "1.10.0", "too new"),
        ("2.0.0", "1.9.0", "too old"),
        ("1.0.0", "2.0.0", "too new"),
        ("1.0.0", "0.1.0", "too old"),
        ("1.4.0", "unknown", "minor versions that differ by one at most"),
        ("1.4.0", "4", "its agent has version 4"),
        ("1.4.0", "\u0661.\u0664.0", "its agent has version"),
    ],
)
def test_every_other_version_is_not_used(controller: str, agent: str, says: str) -> None:
    assert says in skew(agent, controller)


def test_a_client_refuses_the_agent_before_it_asks_for_anything() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        with pytest.raises(VersionSkewError, match=f"{client.address}.*{TOO_NEW}.*too new"):
            await client.describe()
        agent.version = NEXT
        assert (await client.describe()).agent_version == NEXT

    run(test, version=TOO_NEW)


def views_of(home: Path, agents: dict[str, FakeAgent]) -> dict[str, BoardView]:
    """How a controller sees boards with these agents."""

    async def main() -> dict[str, BoardView]:
        registry = Registry(home / "boards.json")
        fleet = Fleet(ControllerConfig(home=home, local_agent=False), "me")
        places = {name: serving(agent) for name, agent in agents.items()}
        try:
            for name, place in places.items():
                registry.add(name, await place.__aenter__())
            return {view.entry.name: view for view in await fleet.views()}
        finally:
            for place in places.values():
                await place.__aexit__(None, None, None)

    return asyncio.run(main())


def test_the_listing_of_boards_tells_why_one_is_not_used(tmp_path: Path) -> None:
    agents = {
        "near": FakeAgent(board_id="1", version=NEXT),
        "far": FakeAgent(board_id="2", version=TOO_NEW),
    }
    found = views_of(tmp_path, agents)
    near, far = found["near"], found["far"]
    assert near.info is not None
    assert near.info.agent_version == NEXT
    assert far.info is None
    assert f"version {TOO_NEW}, which is too new" in far.error
    assert Registry(tmp_path / "boards.json").get("far").board_id == "", "no id of it is noted"


def test_a_board_gets_no_work_until_it_has_a_version_that_is_used() -> None:
    agent = FakeAgent(version=TOO_NEW)
    settings = ShardSettings("me", retry_s=0.01, retry_cap_s=0.01)

    async def main() -> None:
        async with serving(agent) as address:
            shard = InlineShard(settings)
            try:
                await shard.open([BoardEntry("far", address)])
                (told,) = await shard.events()
                assert isinstance(told, BoardUnreachable)
                assert "too new for this controller" in told.reason
                assert not told.foreign
                assert agent.holder == "", "it was never leased"
                agent.version = NEXT
                (joined,) = await shard.events()
                assert isinstance(joined, BoardConnected)
                assert joined.info.agent_version == NEXT
                assert agent.holder == "me"
            finally:
                await shard.close()

    asyncio.run(main())
