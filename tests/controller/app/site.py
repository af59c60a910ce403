"""A home whose boards are in the event loop of the test, for campaigns that run unattended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app.app import Controller
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import AgentError
from latfarm_controller.farm.boards.interfaces import BoardRequest, ShardSettings
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.controller.farm.conftest import Lab, LabBackend
from tests.controller.farm.fake_board import FakeBoard, FakeClient, good


class FakeFleet(Fleet):
    """The boards of a lab, as far as their names are in the inventory."""

    def __init__(self, config: ControllerConfig, lab: Lab, names: set[str]) -> None:
        super().__init__(config, "test")
        self._lab = lab
        self._names = names

    def listed(self) -> list[BoardEntry]:
        return [self._lab.entry(name) for name in sorted(self._names)]

    async def entries(self) -> list[BoardEntry]:
        return self.listed()

    async def look_at(self, entries: Sequence[BoardEntry]) -> list[BoardView]:
        views = []
        for entry in entries:
            board = next(board for board in self._lab.boards if board.board_id == entry.name)
            try:
                views.append(BoardView(entry, await FakeClient(board).describe()))
            except AgentError as error:
                views.append(BoardView(entry, error=str(error)))
        return views


class Site:
    """Makes controllers of one home, one after the other; `names` is the inventory."""

    def __init__(self, home: Path) -> None:
        self.config = ControllerConfig(home=home, local_agent=False)
        self.config.make_dirs()
        self.lab = Lab()
        self.names: set[str] = set()

    def board(self, name: str, **options: object) -> Any:
        self.names.add(name)
        return self.lab.board(name, **options)

    @asynccontextmanager
    async def controller(
        self, *, unattended: bool = True, **policy: float
    ) -> AsyncIterator[tuple[Controller, Farm]]:
        values = {"backoff_s": 0.001, "quarantine_s": 0.002, "quarantine_cap_s": 0.004, **policy}
        with DuckDBStore(self.config.store_file) as store:
            farm = Farm(
                LabBackend(self.lab),
                "test",
                policy=Policy(**values),  # type: ignore[arg-type]
                settings=ShardSettings("test", retry_s=0.001, retry_cap_s=0.01),
            )
            fleet = FakeFleet(self.config, self.lab, self.names)
            controller = Controller(self.config, store, fleet, farm)
            try:
                if unattended:
                    await controller.campaigns.continue_unattended()
                yield controller, farm
            finally:
                await controller.close()

    async def start(self, controller: Controller, count: int, name: str = "c") -> CampaignRecord:
        """Start a campaign of that many networks."""
        graphs = [self.lab.graph(number).to_json() for number in range(count)]
        return await controller.campaigns.start("networks", "p", {"graphs": graphs}, name)


async def reach(controller: Controller, state: str, measured: int = 0) -> CampaignRecord:
    """The campaign `c` once it is in a state and has so many measurements."""
    async with asyncio.timeout(90):
        async for record in controller.campaigns.watch("c"):
            if record.state == state and record.measurements >= measured:
                return record
    raise AssertionError(f"the campaign ended as {record.state}: {record.error}")


def stop_after(board: FakeBoard, count: int) -> None:
    """Let a board give so many measurements, and hold the next one."""

    def answer(_: FakeBoard, request: BoardRequest) -> Measurement:
        if len(board.measured) + 1 >= count:
            board.gate.clear()
        return good(board, request)

    board.answer = answer


def go_on(board: FakeBoard) -> None:
    """Let a board measure without an end again."""
    board.answer = good
    board.gate.set()
