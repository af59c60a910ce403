"""One board of a shard: keeps it leased, uploads ahead, measures one request after the other.

The board's own queue is here, so that its next measurement starts as soon as the last one ended,
whatever the driver is doing. Uploads hide behind the running measurement, and where measurements
are short the next one is asked for before the last one ends: the agent queues it, which saves the
way there and back (6 ms on loopback). Not so on a quiet board, which shares its host with us: there
one thing happens after the other, and all that is queued is uploaded between two measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.agents.board import DISK_FULL, BoardInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    CertificateError,
    ControllerError,
    DiskFullError,
    LeaseError,
)
from latfarm_controller.farm.boards.links import (
    BoardAway,
    BoardClient,
    BoardFound,
    Connect,
    Fetch,
    Order,
    ShardEvent,
    ShardSettings,
)
from latfarm_controller.farm.scheduling.messages import (
    BoardLost,
    LeaseExpired,
    ProbeAnswered,
    ResultReceived,
    Withdrawn,
)

T = TypeVar("T")

UPLOAD_FAILED = "UPLOAD_FAILED"
BOARD_REFUSED = "BOARD_REFUSED"
RELEASE_S = 2.0
SHORT_MS = 1000.0
"""A measurement up to this long may have another behind it at the agent: a query waits for both."""


@dataclass(slots=True, order=True)
class _Item:
    key: tuple[int, int]  # the most urgent first, then first come
    order: Order = field(compare=False)
    uploaded: bool = field(default=False, compare=False)
    size_bytes: int = field(default=0, compare=False)  # known once it is uploaded


@dataclass(slots=True)
class _Flight:
    item: _Item
    started_s: float
    task: asyncio.Task[Measurement]

    @property
    def request_id(self) -> str:
        return self.item.order.question.request_id


class _Signal:
    """Lets coroutines of one event loop wait until a condition holds; no locks are needed."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self, _: object = None) -> None:
        """Something changed: all conditions are looked at again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], T]) -> T:
        """Wait until the condition gives something true; gives that."""
        while not (value := condition()):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return value


class BoardWorker:
    """Runs one board until it is cancelled; every method is called in its event loop."""

    def __init__(
        self,
        entry: BoardEntry,
        settings: ShardSettings,
        connect: Connect,
        fetch: Fetch,
        emit: Callable[[ShardEvent], None],
    ) -> None:
        self.entry = entry
        self.board_id = ""
        self._settings = settings
        self._connect = connect
        self._fetch = fetch
        self._emit = emit
        self._client: BoardClient | None = None
        self._served = False
        self._quiet = False
        self._items: list[_Item] = []
        self._numbers = itertools.count()
        self._flights: list[_Flight] = []  # asked for at the agent: the first runs
        self._last_ms = SHORT_MS
        self._landed_s = 0.0
        self._aborting: set[str] = set()
        self._lacking_bytes = 0  # of the model that its full disk had no room for
        self._changed = _Signal()

    async def run(self) -> None:
        """Connect, serve, and connect again after each failure; ends by cancellation alone."""
        wait_s, told = self._settings.retry_s, ""
        while True:
            refused = False
            try:
                await self._serve()
            except ControllerError as error:
                reason, refused = str(error), isinstance(error, CertificateError)
            except Exception as error:
                reason = f"{self.entry.name}: {type(error).__name__}: {error}"
            if self._served:  # it was there: start over
                wait_s, told = self._settings.retry_s, ""
                self._served = False
            if reason != told:
                self._emit(BoardAway(self.entry.name, reason, refused))
                told = reason
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._settings.retry_cap_s)

    # Orders

    def put(self, order: Order) -> None:
        """Into the queue."""
        self._items.append(_Item((-order.priority, next(self._numbers)), order))
        self._items.sort()
        self._changed.notify()

    def withdraw(self, request_id: str, abort: bool) -> None:
        """Out of the queue, or off the board with `abort`; too late is no matter."""
        for item in self._items:
            if item.order.question.request_id == request_id:
                self._items.remove(item)
                self._emit(Withdrawn(self.board_id, request_id))
                self._changed.notify()
                return
        if abort and any(flight.request_id == request_id for flight in self._flights):
            self._aborting.add(request_id)
            self._changed.notify()

    async def acknowledge(self, request_ids: list[str]) -> None:
        """Let the board forget; if it does not hear of it, it drops the oldest results itself."""
        if self._client is not None:
            with contextlib.suppress(AgentError):
                await self._client.acknowledge(request_ids)

    async def probe(self) -> None:
        """Ask it to describe itself."""
        board_id, client = self.board_id, self._client
        healthy, reason = False, ""
        if client is not None and board_id:
            with contextlib.suppress(AgentError):
                info = await client.describe(self._settings.describe_ms)
                reason = self._still_full(info)
                healthy = info.state != "quarantined" and bool(info.platforms) and not reason
        if healthy:
            self._lacking_bytes = 0
        if board_id:
            self._emit(ProbeAnswered(board_id, healthy, reason))

    def _still_full(self, info: BoardInfo) -> str:
        """Why a disk that was full is still no place for that model; empty: it is, or who knows."""
        room_bytes, lacking_bytes = info.room_bytes, self._lacking_bytes
        if room_bytes is None or room_bytes >= lacking_bytes:
            return ""
        return (
            f"its disk is still full: room for {room_bytes} bytes, {lacking_bytes} are needed; "
            "it works again once there is room"
        )

    # Serving

    async def _serve(self) -> None:
        client = self._connect(self.entry, self._settings.holder)
        try:
            info = await client.describe(self._settings.describe_ms)
            await client.acquire(self._settings.lease_ms)
            self._client, self.board_id, self._served = client, info.board_id, True
            shares_host = bool(info.boot_id) and info.boot_id == self._settings.host_boot_id
            self._quiet = shares_host and any(p.real_time for p in info.platforms)
            self._emit(BoardFound(self.entry.name, info, self._quiet))
            await self._work(client)
        finally:
            self._client, self.board_id = None, ""  # from here on orders pass it by
            self._items.clear()
            self._flights.clear()
            self._aborting.clear()
            # A board that went away need not be told; its lease runs out.
            with contextlib.suppress(AgentError, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await client.release()
            await client.close()

    async def _work(self, client: BoardClient) -> None:
        """Until something fails: then says what, to the scheduler, and raises it."""
        loops = [self._renew(client), self._upload(client), self._start(client), self._land(client)]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            flying = [flight.task for flight in self._flights]
            for flight in flying:
                flight.cancel()
            results = await asyncio.gather(*tasks, *flying, return_exceptions=True)
        request_id = self._flights[0].request_id if self._flights else ""
        # The first failure tells; what followed from it is silent.
        error = next(e for e in results if isinstance(e, Exception))
        if isinstance(error, LeaseError):
            self._emit(LeaseExpired(self.board_id, request_id, str(error)))
        else:
            self._emit(BoardLost(self.board_id, request_id, str(error)))
        raise error

    async def _renew(self, client: BoardClient) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_ms / 3000)
            await client.renew(self._settings.lease_ms)

    async def _upload(self, client: BoardClient) -> None:
        while True:
            item = await self._changed.until(self._next_upload)
            assert item is not None
            try:
                data = await self._fetch(item.order.handle)
                item.size_bytes = len(data)
                await client.upload(item.order.sha256, data)
                del data
            except (AgentLostError, LeaseError):
                raise
            except Exception as error:
                full = isinstance(error, DiskFullError)
                if full:
                    self._lacking_bytes = max(self._lacking_bytes, item.size_bytes)
                if item in self._items:  # not withdrawn meanwhile
                    self._items.remove(item)
                    text = str(error) if full else f"{type(error).__name__}: {error}"
                    failure = self._failure(item, DISK_FULL if full else UPLOAD_FAILED, text)
                    self._emit(ResultReceived(self.board_id, failure))
            item.uploaded = True
            self._changed.notify()

    def _next_upload(self) -> _Item | None:
        if self._aborting or (self._quiet and self._flights):
            return None
        return next((item for item in self._items if not item.uploaded), None)

    def _next_measurement(self) -> _Item | None:
        if self._quiet and any(not item.uploaded for item in self._items):
            return None
        short = self._last_ms < SHORT_MS and not self._quiet
        if self._aborting or len(self._flights) >= (2 if short else 1):
            return None
        return next((item for item in self._items if item.uploaded), None)

    async def _start(self, client: BoardClient) -> None:
        while True:
            item = await self._changed.until(self._next_measurement)
            assert item is not None
            self._items.remove(item)
            task = asyncio.create_task(self._ask(client, item))
            task.add_done_callback(self._changed.notify)
            self._flights.append(_Flight(item, time.monotonic(), task))
            self._changed.notify()

    async def _land(self, client: BoardClient) -> None:
        """Take the answers in the order in which they were asked for: the agent keeps it."""
        while True:
            await self._changed.until(self._landed_or_aborting)
            flight = self._flights[0]
            if not flight.task.done():
                await self._abort(client)
                continue
            measurement = flight.task.result()
            if measurement.error_code == DISK_FULL:
                self._lacking_bytes = max(self._lacking_bytes, flight.item.size_bytes)
            now_s = time.monotonic()
            elapsed_ms = 1e3 * (now_s - max(flight.started_s, self._landed_s))
            # What came out of the board's spool cost it nothing now.
            busy_ms = min(elapsed_ms, measurement.board_ms or elapsed_ms)
            self._landed_s, self._last_ms = now_s, busy_ms
            self._flights.remove(flight)
            self._aborting.discard(flight.request_id)  # too late
            self._emit(ResultReceived(self.board_id, measurement, busy_ms))
            self._changed.notify()

    def _landed_or_aborting(self) -> bool:
        """Whether the first is done or to be stopped; another's turn to be stopped comes later."""
        if not self._flights:
            return False
        first = self._flights[0]
        return first.task.done() or first.request_id in self._aborting

    async def _abort(self, client: BoardClient) -> None:
        """The lease decides over a measurement: give it back, and what runs is cancelled."""
        for flight in self._flights:
            flight.task.cancel()
        await asyncio.gather(*(f.task for f in self._flights), return_exceptions=True)
        await client.release()
        await client.acquire(self._settings.lease_ms)
        flights, self._flights = self._flights, []
        aborted = [flight for flight in flights if flight.request_id in self._aborting]
        self._aborting.clear()
        # Whatever else was at the agent goes back to its place.
        self._items += [flight.item for flight in flights if flight not in aborted]
        self._items.sort()
        for flight in aborted:
            self._emit(Withdrawn(self.board_id, flight.request_id))
        self._changed.notify()

    async def _ask(self, client: BoardClient, item: _Item) -> Measurement:
        try:
            return await client.measure(item.order.question, item.order.sha256)
        except (AgentLostError, LeaseError):
            raise
        except Exception as error:
            what = "" if isinstance(error, AgentError) else f"{type(error).__name__}: "
            return self._failure(item, BOARD_REFUSED, f"{what}{error}")

    def _failure(self, item: _Item, code: str, message: str) -> Measurement:
        question = item.order.question
        return Measurement(
            request_id=question.request_id,
            graph_hash=question.graph.hash,
            platform=question.platform,
            purpose=question.purpose,
            outcome=Outcome.INFRASTRUCTURE_ERROR,
            board_id=self.board_id,
            error_code=code,
            error_message=message,
            measured_at_s=time.time(),
            settings=question.settings,
        )
