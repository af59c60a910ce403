"""A board that is kept for a group measures for nobody else, whatever a caller says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.app.question import Question
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.errors import UsageError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_protos.trust.identity import OPERATOR

from tests.security.conftest import Home, channel

PROFILE = {
    "platform": "closed",
    "peak_macs_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 1e6,
    "overhead_ms": 0.1,
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a simulated board."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    with LocalAgent(
        LocalAgentOptions(tmp_path / "agent", tmp_path / "log", "toy", simulate=profile)
    ) as agent:
        yield agent.address


def test_an_operator_outside_the_group_of_a_board_is_refused(own_home: Home, address: str) -> None:
    own_home.config = own_home.config.model_copy(
        update={"access_groups": {"vision": ("alice", "unix:dave")}}
    )
    registry = Registry(own_home.config.boards_file)
    registry.add("toy", address, replace=True)
    registry.set_profile("toy", lambda _old: BoardProfile(access="vision"))
    # The name of a user of this machine in a certificate makes nobody that user.
    people = [own_home.client(name, OPERATOR) for name in ("ada", "dave")]
    builder = GraphBuilder("net")
    graph = builder.build([builder.relu(builder.input((1, 3, 8, 8)))])

    def look(server: ControllerServer) -> None:
        for person in people:
            with channel(server, person) as opened:
                client = ControllerClient(opened)
                (board,) = client.boards()
                assert (board.access, board.state) == ("vision", "idle")
                config = {"graphs": [graph.to_json()]}
                with pytest.raises(UsageError, match="access group vision"):
                    client.start("networks", "closed", config)
                with pytest.raises(UsageError, match="the controller knows who calls"):
                    client.start("networks", "closed", config | {"started_by": "alice"})
                with pytest.raises(UsageError, match="access group vision"):
                    client.query(Question.about(graph, "closed"))

    async def play() -> None:
        async with own_home.serving() as server:
            await asyncio.to_thread(look, server)

    asyncio.run(play())
