"""Boards that live in the test's own event loop, and a farm of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.spooled import SpooledResult, spooled_from_pb
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.campaigns.base import MeasurementRequest, Progress
from latfarm_controller.errors import FarmError, StoreFullError
from latfarm_controller.farm.boards.board_client import BoardClient, Connect
from latfarm_controller.farm.boards.interfaces import Shard, ShardSettings
from latfarm_controller.farm.boards.shard import InlineShard
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement
from latfarm_protos.v1 import agent_pb2 as pb

from tests.controller.farm.fake_board import FakeBoard, FakeClient

RECORD = CampaignRecord("c1", "first", "rounds", "p")
BOOT_ID = "the-controllers-host"


class MortalShard(InlineShard):
    """A shard that dies when it is told to, as a Ray actor dies with its process."""

    def __init__(self, settings: ShardSettings, connect: Connect) -> None:
        super().__init__(settings, connect)
        self.dead = asyncio.Event()

    @property
    def working(self) -> list[str]:
        """The names of the boards that it works with."""
        return list(self._workers)

    async def die(self) -> None:
        await self.close()
        self.dead.set()

    async def events(self) -> list[ShardEvent]:
        happened = asyncio.ensure_future(super().events())
        died = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({happened, died}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise FarmError("a board shard died")
            return await happened
        finally:
            happened.cancel()
            died.cancel()


class LabBackend(InlineBackend):
    """Runs the shards of a lab in the test's event loop."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.connect, lab.build)
        self.lab = lab

    async def shard(self, settings: ShardSettings) -> Shard:
        shard = MortalShard(settings, self.lab.connect)
        self.lab.shards.append(shard)
        return shard


@dataclass
class Lab:
    """Fake boards, and requests to ask them. `beside`: the companions of each model.

    `clock_s` is the clock of the farm.
    """

    beside: dict[str, bytes] = field(default_factory=dict)
    boards: list[FakeBoard] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    shards: list[MortalShard] = field(default_factory=list)
    clock_s: Callable[[], float] = time.monotonic

    def board(self, board_id: str, **options: object) -> FakeBoard:
        board = FakeBoard(board_id, **options)  # type: ignore[arg-type]
        self.boards.append(board)
        return board

    def graph(self, number: int) -> Graph:
        builder = GraphBuilder(f"g{number}")
        x = builder.input((1, number + 1, 4, 4))
        return builder.build([builder.relu(builder.conv(x, 4, 3))])

    def request(self, number: int, platform: str = "p", repeat: int = 0) -> MeasurementRequest:
        return MeasurementRequest(self.graph(number), platform, "kernel", repeat=repeat)

    def build(self, graph: Graph, model_format: str, dtype: str) -> bytes | ModelFiles:
        # In a thread: while it lasts, no quiet board may be timing.
        assert not any(b.busy and b.real_time and b.boot_id == BOOT_ID for b in self.boards)
        self.built.append(hash_of(graph))
        data = f"{hash_of(graph)} {model_format} {dtype}".encode()
        return ModelFiles(data, self.beside) if self.beside else data

    def connect(self, entry: BoardEntry, holder: str) -> BoardClient:
        return FakeClient(next(board for board in self.boards if board.board_id == entry.name))

    def entry(self, board_id: str) -> BoardEntry:
        return BoardEntry(board_id, "127.0.0.1:1")

    def spooled(
        self, request: MeasurementRequest, board_id: str, fingerprint: str = "", outcome: str = "ok"
    ) -> SpooledResult:
        """A result as a board keeps it; its latency is 2 ms."""
        session = pb.Session(runs_ms=[2.0] * 5)
        result = pb.Result(
            request_id=request.request_id,
            outcome=outcome,
            sessions=[session] if outcome == "ok" else [],
            board_id=board_id,
            platform=request.platform,
            fingerprint=fingerprint,
            protocol_version=1,
            measured_at_s=1.0,
            board_ms=5.0,
        )
        return spooled_from_pb(result)

    @asynccontextmanager
    async def farm(self, **policy: float) -> AsyncIterator[Farm]:
        """A farm of all boards, with waits of milliseconds."""
        values = {"backoff_s": 0.001, "quarantine_s": 0.002, "quarantine_cap_s": 0.004, **policy}
        farm = Farm(
            LabBackend(self),
            "test",
            policy=Policy(**values),  # type: ignore[arg-type]
            settings=ShardSettings("test", BOOT_ID, retry_s=0.001, retry_cap_s=0.01, restart_s=0.0),
            clock_s=self.clock_s,
        )
        await farm.start([self.entry(board.board_id) for board in self.boards])
        try:
            yield farm
        finally:
            await farm.stop()


class Rounds:
    """Asks its requests in rounds, the next one after all of the last were told."""

    kind = "rounds"

    def __init__(self, rounds: Sequence[Sequence[MeasurementRequest]]) -> None:
        self._rounds = [list(requests) for requests in rounds]
        self._total = sum(map(len, rounds))
        self._waiting: set[str] = set()
        self._left = self._rounds.pop(0) if self._rounds else []
        self.told: list[Measurement] = []
        self.fail_after: int | None = None

    def ask(self, count: int) -> list[MeasurementRequest]:
        if not self._left and not self._waiting and self._rounds:
            self._left = self._rounds.pop(0)
        asked, self._left = self._left[:count], self._left[count:]
        self._waiting |= {request.request_id for request in asked}
        return asked

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for measurement in measurements:
            self._waiting.remove(measurement.request_id)  # told once, and only what was asked
            self.told.append(measurement)
            if self.fail_after == len(self.told):
                raise ValueError("the fit exploded")

    @property
    def done(self) -> bool:
        return not (self._left or self._waiting or self._rounds)

    def progress(self) -> Progress:
        return Progress("rounds", len(self.told), self._total, ("rounds",))

    def outcome(self) -> Mapping[str, Any]:
        return {"told": len(self.told)}


async def collect(farm: Farm, campaign_id: str, count: int) -> dict[str, Measurement]:
    """The next `count` answers of a campaign by request id; each comes once."""
    inbox = farm.listen(campaign_id)
    found = Counter[str]()
    answers = {}
    for _ in range(count):
        item = await inbox.get()
        assert isinstance(item, Delivery)
        measurement = item.measurement
        found[measurement.request_id] += 1
        answers[measurement.request_id] = measurement
    assert set(found.values()) <= {1}
    return answers


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with DuckDBStore(tmp_path / "store.duckdb") as opened:
        yield opened


class FullDisk:
    """Lets a store write no rows, or no records of campaigns, as if its disk were full.

    `rows` and `records` say what fails, `failures_left` how many more writes of rows fail besides,
    and `failed` how many failed.
    """

    def __init__(self) -> None:
        self.rows = self.records = False
        self.failures_left = self.failed = 0

    def refuse(self, action: str) -> None:
        self.failed += 1
        self.failures_left -= 1
        reason = "No space left on device; free space on the disk, then start again"
        raise StoreFullError(f"store.duckdb: cannot {action}: {reason}")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """The disk of every store of a test; it is not full at first."""
    disk = FullDisk()
    add, put = DuckDBStore.add_measurements, DuckDBStore.put_campaign

    def add_measurements(self: DuckDBStore, *arguments: Any) -> Any:
        if disk.rows or disk.failures_left > 0:
            disk.refuse("write measurements")
        return add(self, *arguments)

    def put_campaign(self: DuckDBStore, record: CampaignRecord) -> None:
        if disk.records:
            disk.refuse("write a campaign")
        put(self, record)

    monkeypatch.setattr(DuckDBStore, "add_measurements", add_measurements)
    monkeypatch.setattr(DuckDBStore, "put_campaign", put_campaign)
    return disk
