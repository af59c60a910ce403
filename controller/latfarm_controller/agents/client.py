"""The client of a board's agent: lease the board, upload models, measure.

A lease, a half-sent model and a running measurement outlive the connection. What was interrupted
goes on where it stopped: an upload continues after the bytes that arrived, and a measurement is
asked for again under the same request id. The board keeps a finished result until the result is
acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents import results, wire
from latfarm_controller.agents.blob_upload import BlobUpload
from latfarm_controller.agents.board import BoardInfo, Lease, MeasuringStage
from latfarm_controller.agents.call_errors import as_error, cut, details_of, readable
from latfarm_controller.agents.connection import (
    BROKEN_OFF,
    FRUITLESS_TRIES,
    AgentConnection,
    CutError,
    Patience,
    broken_off,
)
from latfarm_controller.agents.spooled import MOST_SPOOLED, SpooledResult, spooled_from_pb
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    BadAnswerError,
    IdentityError,
    LeaseError,
    VersionSkewError,
)
from latfarm_controller.version_skew import skew

_T = TypeVar("_T")

WAITING_MS = 1_200_000.0
"""Longest time that a board may spend on a request outside its sessions: queueing, cooling down."""


class AgentClient:
    """Works with one board. Use it from one event loop; calls may overlap.

    Every method raises:
        AgentLostError: the board cannot be reached, or was lost and did not come back in time.
        CertificateError: the board is not who it must be, or does not accept our certificate.
        LeaseError: the method needs a lease, and this client has none or has lost it.
        BadAnswerError: the board said what no board can say.
        AgentError: the board refused, and says why.

    Args:
        address: `host:port` of the agent.
        holder: the name that the board shows to others while this client has leased it.
        tls: how both sides prove who they are; None for plain text, which is allowed on loopback.
        patience: how long to wait for answers.
        insecure: allow plain text beyond loopback as well.
        board_id: the id that the board must have; empty: any, unless its certificate names one.
    """

    def __init__(
        self,
        address: str,
        holder: str,
        tls: ControllerTlsFiles | None = None,
        *,
        patience: Patience | None = None,
        insecure: bool = False,
        board_id: str = "",
    ) -> None:
        self.address = address
        self.holder = holder
        self.board_id = board_id
        self._described: BoardInfo | None = None
        self.patience = patience or Patience()
        self._connection = AgentConnection(address, tls, self.patience, insecure)
        self._lease: Lease | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease as it was granted last; it may have expired since."""
        return self._lease

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        """Ask the board what it is and which platforms it offers; this needs no lease.

        Raises:
            IdentityError: it has another id than it must have.
            VersionSkewError: its agent is of a version that this controller does not use.
        """
        answer = await self._connection.call(
            "Describe", pb.DescribeRequest(), timeout_ms, again=True
        )
        info = self._told(partial(wire.board_from_pb, answer))
        self._check_identity(info.board_id)
        if reason := skew(info.agent_version):
            raise VersionSkewError(f"{self.address}: {reason}")
        self._described = info
        return info

    async def acquire(self, ttl_ms: int, holder_id: str = "") -> Lease:
        """Lease the board for `ttl_ms` milliseconds.

        Args:
            ttl_ms: how long the lease lasts.
            holder_id: what the holder shows to this board (`holder.holder_id`). A lease that was
                granted to the same id ends, and this one takes its place. Older agents ignore it.

        Raises:
            LeaseError: another client holds the board; the message names its holder.
        """
        request = pb.AcquireLeaseRequest(holder=self.holder, ttl_ms=ttl_ms, holder_id=holder_id)
        # The call is not made again: if only its answer was lost, this client holds the board.
        asked = asyncio.ensure_future(self._connection.call("AcquireLease", request))
        try:
            granted = await asyncio.shield(asked)
        except asyncio.CancelledError:
            # The board may still grant the lease; note it, so that `release` can give it back.
            with contextlib.suppress(AgentError):
                self._lease = wire.lease_from_pb(await asked)
            raise
        self._lease = wire.lease_from_pb(granted)
        return self._lease

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        """Extend the lease by `ttl_ms`, by default by as long as it was granted for.

        Raises:
            LeaseError: the lease has expired, and another client may hold the board now.
        """
        lease = self._held()
        request = pb.RenewLeaseRequest(
            token=lease.token, ttl_ms=lease.ttl_ms if ttl_ms is None else ttl_ms
        )
        renewed = wire.lease_from_pb(await self._connection.call("RenewLease", request, again=True))
        self._lease = renewed
        return renewed

    async def release(self) -> None:
        """Give the lease back; nothing happens if this client has lost it."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(LeaseError):
                await self._connection.call(
                    "ReleaseLease", pb.ReleaseLeaseRequest(token=lease.token), again=True
                )

    async def upload(self, sha256: str, data: bytes) -> int:
        """Send a model to the board unless the board has it; returns the bytes sent.

        Args:
            sha256: the hash of `data` as 64 hex digits; the board checks it.
            data: the model. It is sent in chunks of 1 MiB, from where an earlier upload stopped.
        """
        token = self._held().token
        return await BlobUpload(self._connection, token, sha256, data).send()

    async def measure(
        self,
        request: wire.Request,
        sha256: str,
        on_stage: Callable[[MeasuringStage], None] | None = None,
        companions: Mapping[str, str] | None = None,
    ) -> Measurement:
        """Ask the board how long a model takes.

        A failure of the model or of the board is returned as a measurement, too; so is a result
        that cannot be right, or that is of another board or platform. The board keeps the result
        until it is acknowledged.

        Args:
            request: what to measure; if its `profile` is set, the runtime's profiler is used.
            sha256: the hash of the model, which must have been uploaded.
            on_stage: called for each stage that the measurement enters.
            companions: the hash of each file beside the model, by name; uploaded as well.
        """
        message = wire.request_as_pb(request, self._held().token, sha256, companions)
        method = "Profile" if request.profile else "Measure"
        deadline_s = time.monotonic() + budget_ms(request.settings) / 1e3
        fruitless = 0
        while True:
            heard: list[MeasuringStage] = []

            def hear(stage: MeasuringStage, heard: list[MeasuringStage] = heard) -> None:
                heard.append(stage)
                if on_stage is not None:
                    on_stage(stage)

            try:
                result = await self._ask(method, message, deadline_s, hear)
            except CutError as error:
                fruitless = 0 if heard or error.progress else fruitless + 1
                if fruitless >= FRUITLESS_TRIES or time.monotonic() >= deadline_s:
                    raise AgentLostError(
                        f"{self.address}: lost request {request.request_id}: {error}"
                    ) from error
                await self.describe(self.patience.away_ms)
            else:
                return await self._measured(result, request)

    async def results(self, after: str = "") -> list[SpooledResult]:
        """Finished results that wait in the board's spool, oldest first; as many as fit a message.

        Args:
            after: only those that follow the result of this request; empty: from the first one.
                An older agent always begins with the first one.
        """
        request = pb.ListResultsRequest(after=after)
        answer = await self._connection.call("ListResults", request, again=True)
        return [spooled_from_pb(result) for result in answer.results[:MOST_SPOOLED]]

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        """Let the board forget results that are in the store; returns how many of them it had."""
        if not request_ids:
            return 0
        request = pb.AcknowledgeRequest(request_ids=list(request_ids))
        answer = await self._connection.call("Acknowledge", request, again=True)
        return int(answer.removed)

    async def close(self) -> None:
        """Close the connection; a lease that was not released expires by itself."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _held(self) -> Lease:
        if self._lease is None:
            raise LeaseError(f"{self.address}: the board is not leased to {self.holder}")
        return self._lease

    async def _measured(self, result: pb.Result, request: wire.Request) -> Measurement:
        """The measurement in a result; a result that fits no more is judged by a new description.

        The agent may have been started with other runtimes since the board described itself.
        """
        received_at_s = time.time()
        info = self._described or await self.describe()
        found = results.measurement_from_pb(result, request, info, received_at_s)
        if found.error_code == results.RESULT_FOREIGN:
            info = await self.describe()
            found = results.measurement_from_pb(result, request, info, received_at_s)
        return found

    def _check_identity(self, board_id: str) -> None:
        """Raise an IdentityError if the board has another id than it must have."""
        for source, wanted in (
            ("the inventory", self.board_id),
            ("its certificate", self._connection.certified_id),
        ):
            if wanted and board_id != wanted:
                raise IdentityError(
                    f"{self.address}: the board says that its id is {board_id}, but {source} says "
                    f"{wanted}; nothing of it is used"
                )

    def _told(self, convert: Callable[[], _T]) -> _T:
        """What a message of the board says; an error names the address of the board."""
        try:
            return convert()
        except BadAnswerError as error:
            raise BadAnswerError(f"{self.address}: {error}") from error

    async def _ask(
        self,
        method: str,
        message: pb.MeasureRequest,
        deadline_s: float,
        on_stage: Callable[[MeasuringStage], None],
    ) -> pb.Result:
        """Make one streaming call, and read its events up to the result."""
        left_s = max(deadline_s - time.monotonic(), 0.001)
        call = getattr(await self._connection.stub_for_stream(), method)(message, timeout=left_s)
        reading: asyncio.Task[Any] | None = None
        try:
            while True:
                reading = asyncio.ensure_future(call.read())
                await self._listen(reading)
                event = readable(await reading, self.address, method)
                if event is grpc.aio.EOF:
                    raise CutError("the stream ended without a result")
                kind = event.WhichOneof("event")
                if kind == "result":
                    result: pb.Result = event.result
                    return result
                if kind == "stage":
                    on_stage(self._told(partial(wire.stage_from_pb, event.stage)))
        except grpc.aio.AioRpcError as error:
            if cut(error):
                raise CutError(details_of(error) or error.code().name) from error
            raise as_error(error, self.address, method) from error
        except asyncio.CancelledError:
            if not broken_off():
                raise
            raise CutError(BROKEN_OFF) from None
        finally:
            call.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.wait({reading})
                if not reading.cancelled():
                    reading.exception()  # marks the exception as seen; it was raised above

    async def _listen(self, reading: asyncio.Future[Any]) -> None:
        """Wait for the next event; if none comes, ask the board whether it is still there."""
        while True:
            # asyncio.wait_for would cancel the read, and with it the whole call.
            done, _ = await asyncio.wait({reading}, timeout=self.patience.quiet_ms / 1e3)
            if done:
                return
            try:
                await self.describe()
            except AgentLostError as error:
                raise CutError(str(error)) from error


def budget_ms(settings: Settings) -> float:
    """The longest time that a request with these settings can take, by the board's own limits.

    This deadline is a last resort: a dead board is found long before, because it is silent.
    """
    session_ms = (
        settings.compile_timeout_ms
        + 4 * settings.run_timeout_ms
        + settings.warmup_ms
        + 4 * settings.max_ms
        + 4 * settings.energy_ms
        + 60_000.0
    )
    return WAITING_MS + max(settings.sessions, 1) * session_ms
