"""A campaign that asks on until it is told to end, and a farm on which it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.campaigns.base import MeasurementRequest, Progress
from latfarm_controller.farm.boards.interfaces import FarmBackend, ShardSettings
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.host import host_boot_id
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.controller.farm.processes.ray_farm import PLATFORM, request, two_boards

RECORD = CampaignRecord("c1", "faults", "open", PLATFORM)


class OpenEnded:
    """A campaign that asks for new measurements until it is told to end."""

    kind = "open"

    def __init__(
        self,
        numbers: Sequence[int] | None = None,
        make: Callable[[int], MeasurementRequest] = request,
    ) -> None:
        self.ending = numbers is not None
        self._make = make
        self._left = list(numbers or ())
        self.asked: list[int] = []
        self.told: list[Measurement] = []

    def ask(self, count: int) -> list[MeasurementRequest]:
        if self.ending:
            numbers, self._left = self._left[:count], self._left[count:]
        else:
            numbers = list(range(len(self.asked), len(self.asked) + count))
        self.asked += numbers
        return [self._make(number) for number in numbers]

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self.told += measurements

    @property
    def done(self) -> bool:
        return self.ending and not self._left and len(self.told) == len(self.asked)

    def progress(self) -> Progress:
        return Progress("open", len(self.told), len(self.asked), ("open",))

    def outcome(self) -> Mapping[str, Any]:
        return {}

    def values(self) -> dict[str, float | None]:
        """The latency of each request, which is answered once."""
        assert len({answer.request_id for answer in self.told}) == len(self.told)
        assert all(answer.ok for answer in self.told), self.told
        return {answer.request_id: answer.latency_ms for answer in self.told}


@asynccontextmanager
async def farm_on(backend: FarmBackend, boards: Sequence[BoardEntry]) -> AsyncIterator[Farm]:
    settings = ShardSettings("test", host_boot_id(), lease_ms=2_000)
    farm = Farm(backend, "test", settings=settings)
    await farm.start(boards)
    try:
        await farm.wait_for(PLATFORM, 300)
        yield farm
    finally:
        await farm.stop()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; the limit of the test is the only one."""
    while not condition():
        await asyncio.sleep(0.02)


def undisturbed(
    folder: Path,
    numbers: Sequence[int],
    make: Callable[[int], MeasurementRequest] = request,
) -> OpenEnded:
    """The same requests on equal boards, without Ray and without a disturbance."""
    campaign = OpenEnded(numbers, make)
    folder.mkdir()

    async def scenario(boards: Sequence[BoardEntry]) -> None:
        with DuckDBStore(folder / "store.duckdb") as store:
            async with farm_on(InlineBackend(), boards) as farm:
                record = await Driver(store, farm).run(campaign, RECORD)
                assert record.state == "done"

    with two_boards(folder, noise=0.05) as boards:
        asyncio.run(scenario(boards))
    return campaign
