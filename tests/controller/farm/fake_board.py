"""A board that exists in a test alone, and its client."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from latfarm_controller.agents.board import (
    COMPANIONS,
    RESTART,
    ROOM,
    BoardInfo,
    Lease,
    PlatformInfo,
    RuntimeInfo,
)
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    DiskFullError,
    LeaseError,
)
from latfarm_controller.farm.boards.interfaces import (
    BoardRequest,
)
from latfarm_predictors.measurement import Measurement, Outcome

Answer = Callable[["FakeBoard", BoardRequest], Measurement]


def good(board: FakeBoard, question: BoardRequest) -> Measurement:
    """A measurement as a healthy board gives it."""
    return Measurement(
        question.request_id,
        question.graph.hash,
        question.platform,
        question.purpose,
        Outcome.OK,
        board_id=board.board_id,
        latency_ms=1.0,
        runs=10,
        board_ms=5.0,
        settings=question.settings,
    )


def cancelled(board: FakeBoard, question: BoardRequest) -> Measurement:
    """What a board answers that has stopped a request."""
    return replace(
        good(board, question), outcome=Outcome.INFRASTRUCTURE_ERROR, error_code="CANCELLED"
    )


async def first_of(*events: asyncio.Event) -> asyncio.Event:
    """Wait until one of the events is set, and return the first one that is."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    return next(event for event in events if event.is_set())


@dataclass
class FakeBoard:
    """A board: `answer` decides what it says; `gate` holds its measurements while it is clear.

    `claims` is the id that it gives, if that is not its own. `stops`: it can stop single requests.
    """

    board_id: str
    claims: str = field(default="", kw_only=True)
    stops: bool = field(default=False, kw_only=True)
    stopped: dict[str, asyncio.Event] = field(default_factory=dict)
    platforms: tuple[str, ...] = ("p",)
    boot_id: str = ""
    real_time: bool = False
    answer: Answer = good
    alive: bool = True
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    measured: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    blobs: set[str] = field(default_factory=set)
    beside: dict[str, str] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: int = 0
    busy: bool = False
    refuse_uploads: int = 0
    room_bytes: int | None = None
    most_companions: int | None = None
    described: int = 0
    uploads: int = 0
    token: int = 0
    leases: int = 0
    holder_ids: list[str] = field(default_factory=list)
    spool: dict[str, SpooledResult] = field(default_factory=dict)
    fingerprint: str = ""
    page: int = 100
    capabilities: tuple[str, ...] = (RESTART,)
    restarts: list[str] = field(default_factory=list)
    on_restart: Callable[[FakeBoard, str], None] = lambda board, part: None

    def __post_init__(self) -> None:
        self.gate.set()


class FakeClient:
    """Speaks to a `FakeBoard`; a `BoardClient`."""

    def __init__(self, board: FakeBoard) -> None:
        self.board = board
        self.token = 0

    def _check(self, *, lease: bool = False) -> None:
        if not self.board.alive:
            raise AgentLostError(f"{self.board.board_id} does not answer")
        if lease and self.token != self.board.token:
            raise LeaseError(f"{self.board.board_id} is not ours")

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        self._check()
        offers = tuple(
            PlatformInfo(
                name,
                "onnx",
                "fp32",
                fingerprint=self.board.fingerprint,
                real_time=self.board.real_time,
            )
            for name in self.board.platforms
        )
        runtime = RuntimeInfo("fake", True, "1", platforms=offers)
        self.board.described += 1
        told = {ROOM: self.board.room_bytes, COMPANIONS: self.board.most_companions}
        return BoardInfo(
            self.board.claims or self.board.board_id,
            self.board.board_id,
            self.board.boot_id,
            conditions={name: str(value) for name, value in told.items() if value is not None},
            runtimes=(runtime,),
            capabilities=self.board.capabilities,
        )

    async def acquire(self, ttl_ms: int, holder_id: str = "") -> Lease:
        self._check()
        self.board.holder_ids.append(holder_id)
        self.board.token += 1
        self.board.leases += 1
        self.token = self.board.token
        return Lease(self.token, ttl_ms)

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        self._check(lease=True)
        return Lease(self.token, ttl_ms or 0)

    async def release(self) -> None:
        if self.token == self.board.token:
            self.board.token += 1
        self.token = 0

    async def upload(self, sha256: str, data: bytes) -> int:
        self._check(lease=True)
        if self.board.refuse_uploads:
            self.board.refuse_uploads -= 1
            raise AgentError("no space left on the board")
        self.board.uploads += 1
        if self.board.room_bytes is not None and len(data) > self.board.room_bytes:
            raise DiskFullError("the board's disk lacks room for this blob")
        assert hashlib.sha256(data).hexdigest() == sha256
        self.board.blobs.add(sha256)
        return len(data)

    async def measure(
        self, request: BoardRequest, sha256: str, *, companions: Mapping[str, str]
    ) -> Measurement:
        self._check(lease=True)
        assert {sha256, *companions.values()} <= self.board.blobs
        self.board.beside.update(companions)
        self.board.asked += 1
        assert self.board.asked <= 2, "more than one request waits behind another"
        try:
            async with self.board.turn:
                self.board.busy = True
                await asyncio.sleep(0)
                stopped = self.board.stopped.setdefault(request.request_id, asyncio.Event())
                if await first_of(self.board.gate, stopped) is stopped:
                    return cancelled(self.board, request)
                self._check(lease=True)
                measurement = self.board.answer(self.board, request)
                self.board.measured.append(request.request_id)
        finally:
            self.board.asked -= 1
            self.board.busy = self.board.turn.locked()
        return measurement

    async def results(self, after: str = "") -> list[SpooledResult]:
        self._check()
        names = list(self.board.spool)
        begin = names.index(after) + 1 if after in names else 0
        return [self.board.spool[name] for name in names[begin : begin + self.board.page]]

    async def withdraw(self, request_id: str) -> bool:
        if self.board.stops:
            self.board.stopped.setdefault(request_id, asyncio.Event()).set()
        return self.board.stops

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        self.board.acknowledged += request_ids
        return sum(self.board.spool.pop(name, None) is not None for name in request_ids)

    async def restart(self, part: str) -> str:
        self._check(lease=True)
        if RESTART not in self.board.capabilities:
            raise AgentError("too old")
        self.board.restarts.append(part)
        self.board.on_restart(self.board, part)
        return f"its {part} was restarted"

    async def close(self) -> None:
        return
