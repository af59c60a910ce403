"""Boards that the farm has not connected to are asked how they are, and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app import unused_boards
from latfarm_controller.app.unused_boards import UnusedBoards
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor


class Inventory:
    """Stands for the fleet, the farm and the supervisor."""

    def __init__(self, told: Mapping[str, str]) -> None:
        self.told = dict(told)  # name -> state that the board gives; empty: it does not answer
        self.serving: dict[str, BoardEntry] = {}
        self.held: dict[str, Standing] = {}
        self.asked: list[list[str]] = []
        self.broken = 0

    def listed(self) -> list[BoardEntry]:
        if self.broken:
            self.broken -= 1
            raise ControllerError("boards.json is half written")
        return [BoardEntry(name, "127.0.0.1:1") for name in self.told]

    def entries(self) -> dict[str, BoardEntry]:
        return self.serving

    def standing(self, name: str) -> Standing:
        return self.held.get(name, Standing.WORKING)

    async def look_at(self, entries: Sequence[BoardEntry]) -> list[BoardView]:
        self.asked.append([entry.name for entry in entries])
        return [
            BoardView(entry, BoardInfo(f"id-{entry.name}", entry.name, state=state))
            if (state := self.told[entry.name])
            else BoardView(entry, error="no route to host")
            for entry in entries
        ]


def boards_of(inventory: Inventory) -> UnusedBoards:
    return UnusedBoards(
        cast(Fleet, inventory), cast(Farm, inventory), cast(BoardSupervisor, inventory)
    )


def test_boards_are_shown_by_their_answers_and_by_what_was_decided() -> None:
    inventory = Inventory(
        {
            "a": "idle",
            "off": "",
            "ill": "quarantined",
            "kept": "idle",
            "bad": "idle",
            "used": "idle",
        }
    )
    inventory.serving = {"used": BoardEntry("used", "127.0.0.1:1")}
    inventory.held = {"kept": Standing.DRAINING, "bad": Standing.QUARANTINED}
    boards = boards_of(inventory)
    assert boards.states() == {}
    asyncio.run(boards.ask())
    assert boards.states() == {
        "a": "ready",
        "off": "away",
        "ill": "quarantined",
        "kept": "draining",
        "bad": "quarantined",
    }
    assert inventory.asked == [["a", "off", "ill", "kept", "bad"]], "the farm holds the other one"
    inventory.held.clear()
    assert boards.states()["kept"] == "ready", "a decision counts without a new call"
    inventory.told = {"off": "idle"}
    asyncio.run(boards.ask())
    assert boards.states() == {"off": "ready"}


def test_asking_goes_on_after_an_inventory_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unused_boards, "CALL_S", 0.0)
    inventory = Inventory({"a": "idle"})
    inventory.broken = 3
    boards = boards_of(inventory)

    async def run() -> None:
        task = asyncio.create_task(boards.run())
        async with asyncio.timeout(90):
            while not boards.states():
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert caplog.text.count("the inventory cannot be read for metrics") == 1
