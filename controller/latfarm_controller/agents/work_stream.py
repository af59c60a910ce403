"""One open stream to a board: orders, results, renewals and acknowledgements under one lease.

The stream itself keeps nothing that must outlive it. An order whose stream broke is sent again on
the next one, where the board answers it from the running job or from its spool. Acknowledgements
that the board has not confirmed are handed to the next stream (`take_unconfirmed`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents.call_errors import (
    agents_name,
    as_error,
    cut,
    details_of,
    readable,
    refusal_as_error,
)
from latfarm_controller.agents.connection import CutError
from latfarm_controller.errors import AgentLostError, BadAnswerError

MOST_QUEUED = 256
"""Most messages that wait for a board that does not read; one more ends the stream."""
MOST_UNCONFIRMED = 10_000
"""Most acknowledgements that are kept until the board confirms them. Results whose acknowledgement
is lost stay in the board's spool."""
MOST_UNASKED = 1000
"""Most messages that nobody asked for, between two answers; one more ends the stream."""
ACKNOWLEDGE_S = 0.1
"""How long acknowledgements wait for another message that takes them along, in seconds.

A message of their own costs both sides as much as an order. But where the stream breaks before they
are sent, the results stay in the board's spool until the next order or the next renewal of the
lease.
"""
REMEMBERED = 256
"""How many answered requests are remembered, so that a second answer is known as such."""
CLOSE_S = 0.5
"""How long a board gets to confirm what was sent before the stream is closed, in seconds."""


class NoStreamError(Exception):
    """The agent of the board is an older one, which has no such stream."""


@dataclass(slots=True)
class _Renewal:
    """A renewal that was sent; its answer confirms the acknowledgements that it `covers`."""

    answer: asyncio.Future[pb.Lease]
    covers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A message that waits to be sent. `last`: the stream has nothing more to say."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    renewal: _Renewal | None = None
    last: bool = False


class WorkStream:
    """Speaks on one stream, from its start to its end. Use it from one event loop.

    Args:
        call: the call of `Work`, which has just been made.
        address: of the board, for messages.
        token: of the lease.
        acknowledged: request ids to acknowledge with the first message.
    """

    def __init__(
        self, call: Any, address: str, token: int, acknowledged: Iterable[str] = ()
    ) -> None:
        self.address = address
        self.token = token
        self.heard = 0
        """How many messages the board has sent."""
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._outgoing: asyncio.Queue[_Outgoing] = asyncio.Queue(MOST_QUEUED)
        self._orders: dict[str, asyncio.Future[pb.Result]] = {}
        self._watchers: dict[str, Callable[[pb.Stage], None]] = {}
        self._renewals: deque[_Renewal] = deque()
        self._waiting = dict.fromkeys(acknowledged)
        self._sent: dict[str, None] = {}
        self._answered: deque[str] = deque(maxlen=REMEMBERED)
        self._unasked = 0
        self._flushing: asyncio.TimerHandle | None = None
        self._closing = False
        self._error: Exception | None = None
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())
        self._put(_Outgoing())  # opens the stream

    @property
    def ended(self) -> bool:
        """Whether the stream takes and gives nothing any more."""
        return self._error is not None

    def take_unconfirmed(self) -> list[str]:
        """Request ids whose acknowledgement the board has not confirmed; the stream forgets them.

        To be called once the stream has ended, or its lease has.
        """
        taken = list(self._sent) + list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        return taken

    def order(
        self,
        request: pb.MeasureRequest,
        *,
        profile: bool = False,
        model: bytes = b"",
        on_stage: Callable[[pb.Stage], None] | None = None,
    ) -> asyncio.Future[pb.Result]:
        """Ask for a measurement; returns the future of its result, which must not be cancelled.

        The future fails with an AgentError if the board refuses, and with a CutError, a LeaseError
        or another AgentError if the stream ends before.

        Raises:
            CutError: the stream has ended.
        """
        self._check()
        request_id = request.request_id
        # What is asked again now must not be forgotten by the board before it is answered.
        self._waiting.pop(request_id, None)
        self._sent.pop(request_id, None)
        future = self._orders.get(request_id)
        if future is None:
            future = self._orders[request_id] = self._future()
        if on_stage is not None:
            self._watchers[request_id] = on_stage
            if len(self._watchers) == 1:
                self._put(_Outgoing({"watch": pb.Watch(stages=True)}))
        order = pb.Order(request=request, profile=profile, model=model)
        self._put(_Outgoing({"order": order}))
        return future

    def unwatch(self, request_id: str) -> None:
        """Call nobody about the stages of a request any more."""
        if self._watchers.pop(request_id, None) is None or self._watchers or self.ended:
            return
        self._put(_Outgoing({"watch": pb.Watch(stages=False)}))

    def withdraw(self, request_id: str) -> None:
        """Take an order back. It is answered all the same: cancelled, or finished already.

        Raises:
            CutError: the stream has ended.
        """
        self._check()
        self._put(_Outgoing({"withdrawal": pb.Withdrawal(request_id=request_id)}))

    def acknowledge(self, request_ids: Iterable[str]) -> None:
        """Let the board forget results, with the next message or a moment later.

        Raises:
            CutError: the stream has ended.
        """
        self._check()
        self._waiting.update(dict.fromkeys(request_ids))
        if self._flushing is None:
            self._flushing = self._loop.call_later(ACKNOWLEDGE_S, self._flush)

    async def renew(self, ttl_ms: int, timeout_s: float) -> pb.Lease:
        """Keep the lease, and learn that the board is still there.

        Raises:
            CutError: the stream has ended, or there is no answer in time, which ends it.
            LeaseError: the lease is lost.
        """
        self._check()
        renewal = _Renewal(self._future())
        self._renewals.append(renewal)
        self._put(_Outgoing({"renewal": pb.Renewal(ttl_ms=ttl_ms)}, renewal))
        await asyncio.wait({renewal.answer}, timeout=timeout_s)
        if not renewal.answer.done():
            self.end(CutError(f"the board did not answer a renewal within {timeout_s:.3g} s"))
        return renewal.answer.result()

    def end(self, error: Exception) -> None:
        """End the stream now; everything that waits for the board fails with this error."""
        if self._error is not None:
            return
        self._error = error
        futures: list[asyncio.Future[Any]] = list(self._orders.values())
        futures += [renewal.answer for renewal in self._renewals]
        self._orders.clear()
        self._renewals.clear()
        self._watchers.clear()
        for future in futures:
            if not future.done():
                future.set_exception(error)
        if self._flushing is not None:
            self._flushing.cancel()
        self._call.cancel()
        for task in (self._reader, self._writer):
            if task is not asyncio.current_task():
                task.cancel()

    async def close(self) -> None:
        """Say what is left to say, and end the stream."""
        try:
            if not self.ended:
                self._flush()
                self._closing = True
                self._put(_Outgoing(last=True))
                await asyncio.wait({self._reader}, timeout=CLOSE_S)
        finally:
            self.end(CutError("the stream was closed"))
            await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    def _future(self) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        future.add_done_callback(_seen)
        return future

    def _check(self) -> None:
        if self._error is not None:
            raise CutError(f"the stream has ended: {self._error}") from self._error

    def _put(self, message: _Outgoing) -> None:
        if self.ended:
            return
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self.end(CutError(f"the board does not read: {MOST_QUEUED} messages wait for it"))

    def _flush(self) -> None:
        self._flushing = None
        if self._waiting:
            self._put(_Outgoing())

    async def _write(self) -> None:
        while True:
            message = await self._outgoing.get()
            try:
                if message.last:
                    await self._call.done_writing()
                    return
                acknowledged = self._take_waiting()
                if message.renewal is not None:
                    message.renewal.covers = tuple(self._sent)
                await self._call.write(
                    pb.ToBoard(token=self.token, acknowledged=acknowledged, **message.fields)
                )
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reader learns why

    def _take_waiting(self) -> list[str]:
        taken, self._waiting = list(self._waiting), {}
        self._sent.update(dict.fromkeys(taken))
        while len(self._sent) > MOST_UNCONFIRMED:
            del self._sent[next(iter(self._sent))]
        return taken

    async def _read(self) -> None:
        try:
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    if self._closing:
                        self._sent.clear()  # the board has read everything before it ended
                    self.end(CutError("the board ended the stream"))
                    return
                self.heard += 1
                self._hear(readable(message, self.address, "Work"))
        except grpc.aio.AioRpcError as error:
            self.end(self._translated(error))
        except BadAnswerError as error:
            self.end(error)
        except asyncio.CancelledError:
            self.end(CutError("the stream was cancelled"))
            raise

    def _translated(self, error: Any) -> Exception:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return NoStreamError(f"{self.address}: the agent has no work stream")
        if cut(error) or agents_name(error) == "BUSY":
            return CutError(details_of(error) or error.code().name)
        return as_error(error, self.address, "Work")

    def _hear(self, message: pb.FromBoard) -> None:
        kind = message.WhichOneof("message")
        if kind == "result":
            self._hear_result(message.result)
        elif kind == "refusal":
            request_id = message.refusal.request_id
            if request_id not in self._orders:
                self._count_unasked()
                return
            error = refusal_as_error(message.refusal, self.address)
            lost = isinstance(error, AgentLostError)
            self._fail(request_id, CutError(str(error)) if lost else error)
        elif kind == "lease" and self._renewals:
            renewal = self._renewals.popleft()
            for request_id in renewal.covers:
                self._sent.pop(request_id, None)
            if not renewal.answer.done():
                renewal.answer.set_result(message.lease)
        elif kind == "stage" and message.stage.request_id in self._watchers:
            try:
                self._watchers[message.stage.request_id](message.stage.stage)
            except Exception as error:
                self._fail(message.stage.request_id, error)
        else:
            self._count_unasked()

    def _hear_result(self, result: pb.Result) -> None:
        request_id = result.request_id
        if request_id not in self._orders:
            if request_id in self._answered or not self._orders:
                self._count_unasked()
                return
            # It answers a request that nobody made. Whoever waits longest gets it, and judges it.
            request_id = next(iter(self._orders))
        future = self._orders.pop(request_id)
        self._done(request_id)
        if not future.done():
            future.set_result(result)

    def _fail(self, request_id: str, error: Exception) -> None:
        future = self._orders.pop(request_id, None)
        self._done(request_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def _done(self, request_id: str) -> None:
        self._answered.append(request_id)
        self._unasked = 0
        self.unwatch(request_id)

    def _count_unasked(self) -> None:
        self._unasked += 1
        if self._unasked > MOST_UNASKED:
            raise BadAnswerError(
                f"{self.address}: the board sent {self._unasked} messages that nobody asked for"
            )


def _seen(future: asyncio.Future[Any]) -> None:
    """Mark an exception as seen, as the task that waited may be gone."""
    if not future.cancelled():
        future.exception()
