"""The client of a board that works on one stream where the board offers it.

A measurement by plain calls takes `GetBlob`, `UploadBlob`, `Measure` and `Acknowledge`, each with
its own stream of HTTP/2. On the stream of `Work` it takes one message each way: a small model goes
with its order, and acknowledgements go with later messages. Large models are still uploaded by
plain calls, and everything falls back to them where the agent is an older one.

Where a stream breaks before the board has confirmed all acknowledgements, the next order or renewal
opens another one and sends them again, so that no result stays in the spool of a board without
work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from latfarm_predictors.measurement import Measurement
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents import wire
from latfarm_controller.agents.board import RESTART, WORK_STREAM, Lease, MeasuringStage
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import CutError
from latfarm_controller.agents.work_stream import MOST_UNCONFIRMED, NoStreamError, WorkStream
from latfarm_controller.errors import AgentError, AgentLostError

INLINE_BYTES = 64 << 10
"""Size of the largest model that goes with its order, in bytes; agents take no larger one."""
RESTART_MS = 180_000.0
"""Longest time that an agent may take to restart a part: runtimes may load for two minutes."""
MOST_KEPT = 64
"""Most small models that are kept for their orders. The oldest one is uploaded for a new one."""


@dataclass(slots=True)
class _KeptModel:
    """A small model, and how many orders are to come for it."""

    data: bytes
    uses: int = 0


class StreamingClient(AgentClient):
    """An `AgentClient` that uses the work stream of a board that has one.

    `renew`, `upload`, `measure` and `acknowledge` go by the stream, once the board has described
    itself. The errors are those of the plain client.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._work: WorkStream | None = None
        self._opening = asyncio.Lock()
        self._unimplemented = False
        self._kept: OrderedDict[str, _KeptModel] = OrderedDict()
        self._watched: set[str] = set()
        self._withdrawn: set[str] = set()
        # Results to acknowledge that no open stream carries: the last one broke before the board
        # had confirmed them, or the board could not be reached.
        self._unconfirmed: dict[str, None] = {}

    @property
    def streams(self) -> bool:
        """Whether the board works on a stream."""
        told = self._described is not None and WORK_STREAM in self._described.capabilities
        return told and not self._unimplemented

    async def acquire(self, ttl_ms: int, holder_id: str = "") -> Lease:
        """Lease the board for `ttl_ms` milliseconds; see `AgentClient.acquire`.

        Raises:
            LeaseError: another client holds the board; the message names its holder.
        """
        if self._work is not None:
            await self._work.close()  # it is bound to the lease before
        lease = await super().acquire(ttl_ms, holder_id)
        if self.streams:
            # The boards of a farm join one by one, but get their first orders all at once.
            with contextlib.suppress(CutError):  # the first order tries again
                await self._stream()
        return lease

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        """Extend the lease by `ttl_ms`, by default by as long as it was granted for.

        A stream that broke is opened again if acknowledgements are unconfirmed, and takes them
        along: a board that gets no more orders must not keep what is in the store.

        Raises:
            LeaseError: the lease has expired, and another client may hold the board now.
        """
        lease = self._held()
        ttl_ms = lease.ttl_ms if ttl_ms is None else ttl_ms
        if self._open_work() is None and not self._left_over():
            return await super().renew(ttl_ms)
        if not self.streams:  # its agent is an older one
            await self._acknowledge_left_over()
            return await super().renew(ttl_ms)
        try:
            await self._connection.stub()  # notices a certificate that was revoked or has expired
            work = await self._stream()
            timeout_s = min(self.patience.call_ms, max(ttl_ms, 1) / 2) / 1e3
            granted = await work.renew(ttl_ms, timeout_s)
        except (CutError, NoStreamError, AgentLostError) as error:
            self._unimplemented |= isinstance(error, NoStreamError)
            return await super().renew(ttl_ms)
        self._lease = wire.lease_from_pb(granted)
        return self._lease

    async def release(self) -> None:
        """Give the lease back; nothing happens if this client has lost it."""
        if self._work is not None:
            await self._work.close()
        if self._lease is not None:
            await self._acknowledge_left_over()
        await super().release()

    async def upload(self, sha256: str, data: bytes) -> int:
        """Send a model to the board unless the board has it; returns the bytes sent.

        A small model is kept here instead, and goes with the order that `measure` sends.
        """
        if not self.streams or not 0 < len(data) <= INLINE_BYTES:
            return await super().upload(sha256, data)
        self._held()
        kept = self._kept.setdefault(sha256, _KeptModel(data))
        kept.uses += 1
        self._kept.move_to_end(sha256)
        if len(self._kept) > MOST_KEPT:
            oldest, model = self._kept.popitem(last=False)
            return await super().upload(oldest, model.data)
        return 0

    async def measure(
        self,
        request: wire.Request,
        sha256: str,
        on_stage: Callable[[MeasuringStage], None] | None = None,
        companions: Mapping[str, str] | None = None,
    ) -> Measurement:
        """Ask the board how long a model takes; see `AgentClient.measure`."""
        request_id = request.request_id
        self._left_over().pop(request_id, None)  # what is asked again must not be forgotten
        if on_stage is not None:
            self._watched.add(request_id)
        try:
            return await super().measure(request, sha256, on_stage, companions)
        finally:
            self._watched.discard(request_id)
            self._withdrawn.discard(request_id)
            if self._work is not None:
                self._work.unwatch(request_id)
            kept = self._kept.get(sha256)
            if kept is not None:
                kept.uses -= 1
                if kept.uses <= 0:
                    del self._kept[sha256]

    async def withdraw(self, request_id: str) -> bool:
        """Take back a request that is being measured, and leave the others where they are.

        `measure` then returns a failure with the code `CANCELLED`, or the result if that was
        finished already.

        Returns:
            False, if the board cannot do that: then only the end of the lease stops it.
        """
        work = self._open_work()
        if work is None:
            return False
        self._withdrawn.add(request_id)
        work.withdraw(request_id)
        return True

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        """Let the board forget results that are in the store.

        Returns:
            By plain calls, how many of them the board had. On the stream, how many will be told.
        """
        work = self._open_work()
        if work is not None:
            work.acknowledge(request_ids)
            return len(request_ids)
        self._keep_unconfirmed(request_ids)  # before the call, as it may fail or be cancelled
        removed = await super().acknowledge(request_ids)
        self._confirm(request_ids)
        return removed

    async def restart(self, part: str) -> str:
        """Have the agent restart a part; returns what it did, in words.

        Args:
            part: `board.WORKER` or `board.RUNTIME`.

        Raises:
            AgentError: the agent is too old for that, or something is being measured.
        """
        described = self._described or await self.describe()
        if RESTART not in described.capabilities:
            raise AgentError(f"{self.address}: its agent is too old to restart its {part}")
        request = pb.RestartRequest(token=self._held().token, part=part)
        answer = await self._connection.call("Restart", request, RESTART_MS)
        return self._told(partial(wire.restarted_from_pb, answer))

    async def close(self) -> None:
        """Close the connection; a lease that was not released expires by itself."""
        if self._work is not None:
            await self._work.close()
        await super().close()

    def _open_work(self) -> WorkStream | None:
        """The stream, if it is open under the present lease."""
        work, lease = self._work, self._lease
        if work is None or work.ended or lease is None or work.token != lease.token:
            return None
        return work

    async def _stream(self) -> WorkStream:
        """The stream; a new one if the last one has ended.

        Raises:
            CutError: the board cannot be reached now.
            LeaseError: this client holds no lease.
        """
        async with self._opening:
            work = self._open_work()
            if work is None:
                lease = self._held()
                stub = await self._connection.stub_for_stream()
                left_over = list(self._left_over())
                work = WorkStream(stub.Work(), self.address, lease.token, left_over)
                self._work = work
                self._unconfirmed.clear()  # the new stream has them now
            return work

    def _left_over(self) -> dict[str, None]:
        """Results to acknowledge that no open stream carries."""
        work = self._work
        if work is not None and self._open_work() is None:
            self._keep_unconfirmed(work.take_unconfirmed())
        return self._unconfirmed

    def _keep_unconfirmed(self, request_ids: Iterable[str]) -> None:
        """Note results to acknowledge later; of too many, the oldest stay in the board's spool."""
        self._unconfirmed.update(dict.fromkeys(request_ids))
        while len(self._unconfirmed) > MOST_UNCONFIRMED:
            del self._unconfirmed[next(iter(self._unconfirmed))]

    def _confirm(self, request_ids: Iterable[str]) -> None:
        """Forget acknowledgements that the board has confirmed."""
        for request_id in request_ids:
            self._unconfirmed.pop(request_id, None)

    async def _acknowledge_left_over(self) -> None:
        """Acknowledge by a plain call what no open stream carries; what fails is kept for later."""
        left_over = list(self._left_over())
        with contextlib.suppress(AgentError):
            await super().acknowledge(left_over)
            self._confirm(left_over)

    async def _ask(
        self,
        method: str,
        message: pb.MeasureRequest,
        deadline_s: float,
        on_stage: Callable[[MeasuringStage], None],
    ) -> pb.Result:
        """Order a measurement, and wait for its result."""
        await self._upload_companions(message.companions.values())
        kept = self._kept.get(message.blob_sha256)
        if self.streams:
            try:
                return await self._order(
                    message, method == "Profile", kept.data if kept else b"", deadline_s, on_stage
                )
            except NoStreamError:
                self._unimplemented = True
        if kept is not None:
            await super().upload(message.blob_sha256, kept.data)
        return await super()._ask(method, message, deadline_s, on_stage)

    async def _upload_companions(self, hashes: Iterable[str]) -> None:
        """Upload the files beside a model that were kept: only the model goes with an order."""
        for sha256 in hashes:
            kept = self._kept.pop(sha256, None)
            if kept is not None:
                await super().upload(sha256, kept.data)

    async def _order(
        self,
        message: pb.MeasureRequest,
        profile: bool,
        model: bytes,
        deadline_s: float,
        on_stage: Callable[[MeasuringStage], None],
    ) -> pb.Result:
        def hear(stage: pb.Stage) -> None:
            on_stage(self._told(partial(wire.stage_from_pb, stage)))

        request_id = message.request_id
        work = await self._stream()
        heard = work.heard
        try:
            future = work.order(
                message,
                profile=profile,
                model=model,
                on_stage=hear if request_id in self._watched else None,
            )
            if request_id in self._withdrawn:  # the stream broke before the board answered that
                work.withdraw(request_id)
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0.001)):
                await self._listen(future)
            return future.result()
        except TimeoutError as error:
            raise CutError("no result in time") from error
        except CutError as error:
            # A silent board may come back: then the order goes by a new stream.
            work.end(CutError(str(error)))
            raise CutError(str(error), progress=work.heard != heard) from error
