"""Works with one board: keeps it leased, uploads models, and measures one request after another.

The queue of the board is kept here, in the shard, so that the next measurement starts as soon as
the last one ends, whatever the rest of the controller is doing. Models are uploaded while another
measurement runs. Where measurements are short, the next one is already sent to the agent, which
queues it: that saves the time of a round trip, 6 ms on loopback. `OrderQueue` decides what is next.

A quiet board shares its host with the controller and measures real time. There, only one thing
happens at a time: all queued models are uploaded between two measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import DISK_FULL, BoardInfo
from latfarm_controller.agents.registry import BoardEntry, second_holder
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    CertificateError,
    ControllerError,
    DiskFullError,
    IdentityError,
    LeaseError,
    VersionSkewError,
)
from latfarm_controller.farm.boards.board_client import BoardClient, Connect
from latfarm_controller.farm.boards.disk_room import DiskRoom
from latfarm_controller.farm.boards.interfaces import Fetch, Order, ShardSettings
from latfarm_controller.farm.boards.model_upload import upload_model
from latfarm_controller.farm.boards.order_queue import OrderQueue, QueuedOrder
from latfarm_controller.farm.boards.shard_events import (
    BoardConnected,
    BoardRestarted,
    BoardUnreachable,
    ShardEvent,
)
from latfarm_controller.farm.boards.spool_listing import spooled_results
from latfarm_controller.farm.boards.wake_signal import Signal
from latfarm_controller.farm.scheduling.messages import (
    BoardLost,
    LeaseExpired,
    ProbeAnswered,
    ResultReceived,
    Withdrawn,
)
from latfarm_controller.holder import holder_id

UPLOAD_FAILED = "UPLOAD_FAILED"
"""Error code of a measurement whose model could not be uploaded."""
BOARD_REFUSED = "BOARD_REFUSED"
"""Error code of a measurement that the board's agent did not accept."""
RELEASE_S = 2.0
"""Seconds that a board gets to take its lease back before the connection is closed."""


class BoardWorker:
    """Works with one board until it is cancelled. Every method is called in its event loop.

    Args:
        entry: the board's entry in the inventory.
        settings: how to treat the board.
        connect: makes the client of the board.
        fetch: gets the files of a model.
        emit: called with each event of the board.
        holder_of: tells which board is connected with an id; empty if none is.
    """

    def __init__(
        self,
        entry: BoardEntry,
        settings: ShardSettings,
        connect: Connect,
        fetch: Fetch,
        emit: Callable[[ShardEvent], None],
        holder_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.entry = entry
        self.board_id = ""
        self.leased = False  # whether the board may hold a lease of ours
        self._connection = ""
        self._settings = settings
        self._connect = connect
        self._fetch = fetch
        self._emit = emit
        self._holder_of = holder_of
        self._client: BoardClient | None = None
        self._served = False
        self._most_companions = 0  # how many files beside a model the board takes
        self._orders = OrderQueue()
        self._disk = DiskRoom()
        self._changed = Signal()

    async def run(self) -> None:
        """Connect, work, and connect again after each failure; ends only when it is cancelled."""
        wait_s, told = self._settings.retry_s, ""
        while True:
            refused = foreign = False
            try:
                await self._serve()
            except ControllerError as error:
                reason, refused = str(error), isinstance(error, CertificateError)
                foreign = isinstance(error, IdentityError)
            except Exception as error:
                reason = f"{self.entry.name}: {type(error).__name__}: {error}"
            if self._served:  # the board was connected: begin again with the shortest pause
                wait_s, told = self._settings.retry_s, ""
                self._served = False
            if reason != told:
                self._emit(BoardUnreachable(self.entry.name, reason, refused, foreign))
                told = reason
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._settings.retry_cap_s)

    @property
    def leased_s(self) -> float:
        """For how many seconds at most the board stays leased without a renewal."""
        return self._settings.lease_ms / 1e3 if self.leased else 0.0

    # Orders

    def put(self, order: Order) -> None:
        """Put an order into the queue, unless it was made for an earlier connection.

        The scheduler is told of the loss of that connection, and sends such a request anew.
        """
        if order.connection != self._connection:
            return
        self._orders.put(order)
        self._changed.notify()

    def withdraw(self, request_id: str, abort: bool) -> None:
        """Take a request out of the queue; with `abort`, stop it if it runs.

        A request that is answered already is left as it is.
        """
        if self._orders.take_back(request_id):
            self._emit(Withdrawn(self.board_id, request_id))
            self._changed.notify()
        elif abort and self._orders.stop(request_id):
            self._changed.notify()

    async def acknowledge(self, request_ids: list[str]) -> None:
        """Let the board forget results.

        A board that cannot be called now keeps them; when its spool is full, it drops the oldest.
        """
        if self._client is not None:
            with contextlib.suppress(ControllerError):
                await self._client.acknowledge(request_ids)

    async def probe(self) -> None:
        """Ask the board to describe itself, and emit whether it works."""
        board_id, client = self.board_id, self._client
        healthy, reason = False, ""
        if client is not None and board_id:
            with contextlib.suppress(ControllerError):  # our own TLS files may be wrong, too
                info = await client.describe(self._settings.describe_ms)
                reason = self._disk.still_full(info)
                healthy = info.state != "quarantined" and bool(info.platforms) and not reason
        if healthy:
            self._disk.suffices()
        if board_id:
            self._emit(ProbeAnswered(board_id, healthy, reason))

    async def restart(self, part: str) -> None:
        """Have the agent restart a part, and emit how that went."""
        board_id, client = self.board_id, self._client
        if client is None:
            return
        try:
            told, ok = await client.restart(part), True
        except ControllerError as error:
            told, ok = str(error), False
        self._emit(BoardRestarted(board_id, part, ok, told))

    # Serving

    async def _serve(self) -> None:
        client = self._connect(self.entry, self._settings.holder)
        try:
            info = await self._describe(client)
            await self._acquire(client)
            if holder := self._holder_of(info.board_id):
                raise IdentityError(second_holder(self.entry.name, info.board_id, holder))
            spooled = await spooled_results(client)
            self._client, self.board_id, self._served = client, info.board_id, True
            self._connection = secrets.token_hex(8)
            shares_host = bool(info.boot_id) and info.boot_id == self._settings.host_boot_id
            self._most_companions = info.most_companions
            self._orders.quiet = shares_host and any(p.real_time for p in info.platforms)
            self._emit(
                BoardConnected(self.entry.name, info, self._orders.quiet, spooled, self._connection)
            )
            await self._work(client)
        finally:
            # From here on the shard sends it no orders.
            self._client, self.board_id, self._connection = None, "", ""
            self._orders.clear()
            # If the board cannot be reached, its lease runs out by itself.
            with contextlib.suppress(ControllerError, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await client.release()
                    self.leased = False
            await client.close()

    async def _acquire(self, client: BoardClient) -> None:
        """Lease the board, in the place of a lease of this home that is left over."""
        key = self._settings.holder_key
        await client.acquire(self._settings.lease_ms, holder_id(key, self.entry.name))
        self.leased = True

    async def _describe(self, client: BoardClient) -> BoardInfo:
        try:
            return await client.describe(self._settings.describe_ms)
        except IdentityError as error:
            name = self.entry.name
            raise IdentityError(
                f"board {name}: {error}; if it got a new system or new hardware on purpose: "
                f"latfarm boards accept {name}"
            ) from error

    async def _work(self, client: BoardClient) -> None:
        """Work until something fails; then emit what failed, and raise it."""
        loops = [
            self._renew(client),
            self._upload(client),
            self._start(client),
            self._take_answers(client),
        ]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            running = [request.answer for request in self._orders.running]
            for measuring in running:
                measuring.cancel()
            results = await asyncio.gather(*tasks, *running, return_exceptions=True)
        busy_ms = self._orders.busy_ms(time.monotonic())
        request_id = self._orders.running[0].request_id if self._orders.running else ""
        # Only the first failure is told; the others followed from it.
        broken_off = LeaseError(f"{self.entry.name}: a call was broken off without an error")
        error = next((e for e in results if isinstance(e, Exception)), broken_off)
        self.leased = error is broken_off or not isinstance(error, LeaseError)
        kind = LeaseExpired if isinstance(error, LeaseError) else BoardLost
        left_s = self.leased_s if request_id else 0.0  # without a request, nothing is measured
        self._emit(kind(self.board_id, request_id, str(error), left_s, busy_ms))
        raise error

    async def _renew(self, client: BoardClient) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_ms / 3000)
            await client.renew(self._settings.lease_ms)

    async def _upload(self, client: BoardClient) -> None:
        while True:
            item = await self._changed.until(self._orders.next_upload)
            assert item is not None
            try:
                files = ModelFiles.of(await self._fetch(item.order.handle))
                item.size_bytes = files.size_bytes
                most = self._most_companions
                await upload_model(client, self.entry.name, item.order, files, most)
                del files
            except (AgentLostError, LeaseError):
                raise
            except Exception as error:
                full = isinstance(error, DiskFullError)
                if full:
                    self._disk.lacked(item.size_bytes)
                if self._orders.drop(item):
                    text = str(error) if full else f"{type(error).__name__}: {error}"
                    code = DISK_FULL if full else UPLOAD_FAILED
                    failure = item.failure(self.board_id, code, text)
                    self._emit(ResultReceived(self.board_id, failure))
            item.uploaded = True
            self._changed.notify()

    async def _start(self, client: BoardClient) -> None:
        while True:
            item = await self._changed.until(self._orders.next_measurement)
            assert item is not None
            answer = asyncio.create_task(self._ask(client, item))
            answer.add_done_callback(self._changed.notify)
            self._orders.sent(item, time.monotonic(), answer)
            self._changed.notify()

    async def _take_answers(self, client: BoardClient) -> None:
        """Take the answers in the order of asking, which is the order in which the agent runs."""
        while True:
            await self._changed.until(self._orders.needs_care)
            first = self._orders.running[0]
            if not first.answer.done():
                await self._abort(client)
                continue
            measurement = first.answer.result()
            if measurement.error_code == DISK_FULL:
                self._disk.lacked(first.item.size_bytes)
            now_s = time.monotonic()
            stopped_ms = self._orders.busy_ms(now_s)
            busy_ms = self._orders.answered(measurement, now_s)
            if busy_ms is None:
                self._emit(Withdrawn(self.board_id, first.request_id, stopped_ms))
            else:
                self._emit(ResultReceived(self.board_id, measurement, busy_ms))
            self._changed.notify()

    async def _abort(self, client: BoardClient) -> None:
        """Stop what is to be stopped.

        A board that cannot stop single requests stops all of them: it gets its lease back, and is
        leased again.
        """
        told = self._orders.to_stop  # more may be withdrawn while the board is told
        if all([await client.withdraw(request_id) for request_id in told]):
            self._orders.told_to_stop(told)
            self._changed.notify()
            return
        answers = [request.answer for request in self._orders.running]
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        await client.release()
        await self._acquire(client)
        busy_ms = self._orders.busy_ms(time.monotonic())
        for request in self._orders.stopped_all():
            self._emit(Withdrawn(self.board_id, request.request_id, busy_ms))
            busy_ms = 0.0  # the board had not begun with those after the first
        self._changed.notify()

    async def _ask(self, client: BoardClient, item: QueuedOrder) -> Measurement:
        try:
            order = item.order
            return await client.measure(order.request, order.sha256, companions=order.companions)
        except (AgentLostError, LeaseError, IdentityError, VersionSkewError):
            raise
        except Exception as error:
            what = "" if isinstance(error, AgentError) else f"{type(error).__name__}: "
            code = DISK_FULL if isinstance(error, DiskFullError) else BOARD_REFUSED
            return item.failure(self.board_id, code, f"{what}{error}")
