"""Before a campaign is resumed, boards are waited for that may still hand over what they had."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app import pools
from latfarm_controller.app.pools import Pools
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.farm.boards.interfaces import BoardStatus
from latfarm_controller.farm.boards.known_boards import CONNECTING
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.partitions import BoardChoice, Partitions
from latfarm_controller.farm.scheduling.messages import Standing

SHARD_STARTS = f"{CONNECTING}: Ray is being started"
"""Why a board is offline whose shard has not started yet."""

NEVER_S = 1e6
"""A limit that no test reaches."""


class FarmOfTwo:
    """A farm with a board that has joined, and one that has not."""

    def __init__(self, reason: str) -> None:
        self.near = BoardStatus("near", online=True)
        self.far = BoardStatus("far", reason=reason)
        self.partitions = Partitions(lambda name: name, lambda event: None)

    async def start(self) -> None:
        return

    async def add_boards(self, boards: object) -> None:
        return

    async def stop(self) -> None:
        return

    def check(self) -> None:
        return

    def pool(self, platform: str, board_id: str, choice: BoardChoice) -> list[BoardStatus]:
        return [status for status in self.boards() if status.online]

    def boards(self) -> list[BoardStatus]:
        return [self.near, self.far]


class TwoBoards:
    """An inventory with both boards."""

    async def offering(self, platform: str) -> list[Any]:
        return [SimpleNamespace(entry=BoardEntry(name, "127.0.0.1:1")) for name in ("near", "far")]

    def profiles(self) -> dict[str, BoardProfile]:
        return {}


def opens(farm: FarmOfTwo, monkeypatch: pytest.MonkeyPatch, **limits: float) -> bool:
    """Whether a resumed campaign starts although the far board has not joined."""
    monkeypatch.setattr(pools, "LOOK_S", 0.0)
    for name, limit_s in limits.items():
        monkeypatch.setattr(pools, name, limit_s)
    desk = SimpleNamespace(standing=lambda name: Standing.WORKING)

    async def scenario() -> bool:
        made = Pools(cast(Any, TwoBoards()), cast(Any, farm), cast(Any, desk), 0.0)
        cancel = asyncio.Event()
        opening = asyncio.create_task(made.open(CampaignScope(("toy",)), cancel, settle=True))
        for _ in range(200):
            await asyncio.sleep(0)
        started = opening.done()
        farm.far.online = True
        await opening
        await made.stop()
        return started

    return asyncio.run(scenario())


def test_a_board_whose_shard_starts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"SETTLE_S": 0.0, "SHARD_SETTLE_S": NEVER_S}
    assert not opens(FarmOfTwo(SHARD_STARTS), monkeypatch, **limits)
    assert opens(FarmOfTwo(CONNECTING), monkeypatch, **limits)


def test_it_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"SETTLE_S": NEVER_S, "SHARD_SETTLE_S": 0.0}
    assert opens(FarmOfTwo(SHARD_STARTS), monkeypatch, **limits)
    assert not opens(FarmOfTwo(CONNECTING), monkeypatch, **limits)


def test_a_board_that_told_why_it_does_not_join_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"SETTLE_S": NEVER_S, "SHARD_SETTLE_S": NEVER_S}
    assert opens(FarmOfTwo("it refuses our certificate"), monkeypatch, **limits)
