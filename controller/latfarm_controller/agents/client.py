"""A board as a coroutine sees it: lease, upload, measure, with deadlines and typed errors.

Connections come and go; a lease, a half-sent model and a running measurement outlive them. What was
cut is taken up where it stopped: uploads at the bytes that arrived, measurements by asking again
with the same request id, whose finished result the board keeps until it is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_protos.trust.contexts import TlsFileError
from latfarm_protos.trust.proof import Proof
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

from latfarm_controller.agents import wire
from latfarm_controller.agents.board import BoardInfo, Lease, MeasuringStage
from latfarm_controller.agents.call_errors import as_error, cut
from latfarm_controller.agents.tls import ControllerTlsFiles, check_open, is_revoked, meet_board
from latfarm_controller.errors import AgentError, AgentLostError, LeaseError, UsageError

CHUNK_BYTES = 1 << 20
SLOWEST_BYTES_PER_MS = 100.0
"""An upload slower than this (0.8 Mbit/s) counts as stuck, and is resumed."""
FRUITLESS_TRIES = 3
"""How often in a row something may be cut without having got any further."""
MAX_MESSAGE_BYTES = 64 << 20
WAITING_MS = 1_200_000.0
"""Most time a board may spend on a request beside its sessions: queueing, cooling down."""

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # boards are neighbours, whatever the environment says
    ("grpc.use_local_subchannel_pool", 1),  # two clients of a board do not share their fate
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),  # sets TCP's user timeout too
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits, in milliseconds.

    `call_ms`: for the answer to a plain call, connecting included. `away_ms`: for a board that went
    away during a measurement or an upload. `quiet_ms`: for the next event of a measurement, before
    the board is asked whether it is still there.
    """

    call_ms: float = 10_000.0
    away_ms: float = 30_000.0
    quiet_ms: float = 30_000.0


class _CutError(Exception):
    """A stream broke; the message says how."""


class AgentClient:
    """One board, for one holder. Use it from one event loop; calls may overlap.

    Every method raises:
        AgentLostError: the board cannot be reached, or went away and did not come back in time.
        CertificateError: the board is not who it must be, or does not accept our certificate.
        LeaseError: the method needs a lease that is not ours, or no more.
        AgentError: the board refused, and says why.

    Args:
        address: `host:port` of the agent.
        holder: who we are, for those who find the board leased.
        tls: how both sides prove themselves; None speaks in the clear, on loopback alone.
        patience: how long to wait.
        insecure: speak in the clear beyond loopback as well.

    The certificate of a board is looked at before each new connection, and the connection trusts
    that certificate alone. Files that changed are read anew then, and a board whose certificate
    was revoked since is not called again.
    """

    def __init__(
        self,
        address: str,
        holder: str,
        tls: ControllerTlsFiles | None = None,
        *,
        patience: Patience | None = None,
        insecure: bool = False,
    ) -> None:
        self.address = address
        self.holder = holder
        self._tls = tls
        self._insecure = insecure
        self._proof: Proof | None = None
        self._stamp: object = None
        self._meeting = asyncio.Lock()
        self._patience = patience or Patience()
        self._channel: Any = None
        self._agent: Any = None
        self._lease: Lease | None = None
        self._closed = False

    @property
    def lease(self) -> Lease | None:
        """The lease as last granted; it may have expired since."""
        return self._lease

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        """What the board is and offers; needs no lease."""
        answer = await self._call("Describe", pb.DescribeRequest(), timeout_ms, again=True)
        return wire.board_from_pb(answer)

    async def acquire(self, ttl_ms: int) -> Lease:
        """Take the board for `ttl_ms`.

        Raises:
            LeaseError: somebody else holds it; the message names the holder.
        """
        request = pb.AcquireLeaseRequest(holder=self.holder, ttl_ms=ttl_ms)
        # Not asked again: if only the answer was lost, the board is held already, by us.
        asked = asyncio.ensure_future(self._call("AcquireLease", request))
        try:
            granted = await asyncio.shield(asked)
        except asyncio.CancelledError:
            # The board may grant it all the same: know of it, so that `release` gives it back.
            with contextlib.suppress(AgentError):
                self._lease = wire.lease_from_pb(await asked)
            raise
        self._lease = wire.lease_from_pb(granted)
        return self._lease

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        """Keep the board for another `ttl_ms`, by default as long as was granted before.

        Raises:
            LeaseError: it expired, and may be somebody else's now.
        """
        lease = self._held()
        request = pb.RenewLeaseRequest(
            token=lease.token, ttl_ms=lease.ttl_ms if ttl_ms is None else ttl_ms
        )
        renewed = wire.lease_from_pb(await self._call("RenewLease", request, again=True))
        self._lease = renewed
        return renewed

    async def release(self) -> None:
        """Give the board back; no change when it is not ours any more."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(LeaseError):
                await self._call(
                    "ReleaseLease", pb.ReleaseLeaseRequest(token=lease.token), again=True
                )

    async def upload(self, sha256: str, data: bytes) -> int:
        """Bring a model to the board unless it is there; bytes that were sent.

        Args:
            sha256: of `data`, 64 hex digits; the board checks it.
            data: the model; sent in chunks of 1 MiB, from where an earlier upload was cut.
        """
        token = self._held().token
        fruitless = 0
        first_bytes = furthest_bytes = -1
        why = "it says it has all bytes, but not the model"
        while True:
            state = await self._call("GetBlob", pb.GetBlobRequest(sha256=sha256), again=True)
            if state.complete:
                return 0 if first_bytes < 0 else len(data) - first_bytes
            first_bytes = state.received_bytes if first_bytes < 0 else first_bytes
            fruitless = 0 if state.received_bytes > furthest_bytes else fruitless + 1
            furthest_bytes = max(furthest_bytes, state.received_bytes)
            if fruitless >= FRUITLESS_TRIES or state.received_bytes > len(data):
                raise AgentError(
                    f"{self.address}: the upload of {sha256} ({len(data)} bytes) stopped at "
                    f"{state.received_bytes} bytes: {why}"
                )
            try:
                state = await self._send(token, sha256, data, state.received_bytes)
            except _CutError as error:
                why = str(error)
            else:
                if state.complete:
                    return len(data) - first_bytes

    async def measure(
        self,
        request: wire.Request,
        sha256: str,
        on_stage: Callable[[MeasuringStage], None] | None = None,
    ) -> Measurement:
        """Ask the board how long a model takes.

        Failures of the model and of the board's own doing come back as measurements. The result
        stays on the board until `acknowledge`.

        Args:
            request: what is asked; one with `profile` set goes to the runtime's profiler.
            sha256: of the model that `upload` brought.
            on_stage: called for each stage event as it arrives.
        """
        message = wire.request_as_pb(request, self._held().token, sha256)
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
            except _CutError as error:
                fruitless = 0 if heard else fruitless + 1
                if fruitless >= FRUITLESS_TRIES or time.monotonic() >= deadline_s:
                    raise AgentLostError(
                        f"{self.address}: lost request {request.request_id}: {error}"
                    ) from error
                await self.describe(self._patience.away_ms)
            else:
                return wire.measurement_from_pb(result, request)

    async def spooled(self) -> list[str]:
        """Request ids of the results that wait on the board to be acknowledged."""
        answer = await self._call("ListResults", pb.ListResultsRequest(), again=True)
        return [result.request_id for result in answer.results]

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        """Let the board forget results that are in the store; how many it had."""
        if not request_ids:
            return 0
        request = pb.AcknowledgeRequest(request_ids=list(request_ids))
        answer = await self._call("Acknowledge", request, again=True)
        return int(answer.removed)

    async def close(self) -> None:
        """Close the connection; the lease is left to expire unless it was released before."""
        self._closed = True
        channel, self._channel, self._agent = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> AgentClient:
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

    async def _stub(self) -> Any:
        """The stub; the channel is opened at the first call, in the loop that makes it."""
        if self._closed:
            raise AgentError(f"{self.address}: this client is closed")
        if self._tls is not None:
            async with self._meeting:
                await self._prove(self._tls)
        elif self._agent is None:
            check_open(self.address, self._tls, self._insecure)
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
            self._agent = agent_pb2_grpc.AgentServiceStub(self._channel)
        return self._agent

    async def _prove(self, tls: ControllerTlsFiles) -> None:
        """Have a channel to a board that was met: a new one where either side has changed."""
        if self._proof is not None and is_revoked(self._proof, tls):
            await self._hang_up()
        stamp = _stamp(tls)
        if self._channel is not None and stamp == self._stamp:
            state = self._channel.get_state()
            if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING):
                return
        proof = await meet_board(self.address, tls)
        if self._channel is not None and stamp == self._stamp and proof == self._proof:
            return  # the same board, back again: the channel finds its own way
        await self._hang_up()
        try:
            credentials = proof.credentials(tls.files)
        except OSError as error:
            raise UsageError(f"cannot read the TLS files: {error}") from error
        name = tls.server_name
        named = (("grpc.ssl_target_name_override", name),) if name else ()
        self._channel = grpc.aio.secure_channel(
            self.address, credentials, options=(*_OPTIONS, *named)
        )
        self._agent = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._proof, self._stamp = proof, stamp

    async def _hang_up(self) -> None:
        channel, self._channel, self._agent, self._proof = self._channel, None, None, None
        if channel is not None:
            await channel.close()

    async def _call(
        self, method: str, request: Any, timeout_ms: float | None = None, *, again: bool = False
    ) -> Any:
        """One plain call; `again`: it may be made twice, so one cut on the way is made again."""
        timeout_ms = self._patience.call_ms if timeout_ms is None else timeout_ms
        deadline_s = time.monotonic() + timeout_ms / 1e3
        # Without TLS gRPC may wait for the board by itself; with it we meet the board anew.
        waits = self._tls is None
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.001)
            try:
                call = getattr(await self._stub(), method)
                return await call(request, timeout=left_s, wait_for_ready=waits)
            except AgentLostError:
                if time.monotonic() >= deadline_s:
                    raise
            except grpc.aio.AioRpcError as error:
                if not (again and cut(error) and time.monotonic() < deadline_s):
                    raise as_error(error, self.address, method) from error
            # The connection came up and broke at once: leave the board a moment.
            await asyncio.sleep(min(0.05, left_s))

    async def _reached(self) -> Any:
        """The stub for a stream; a board that is away now has cut it."""
        try:
            return await self._stub()
        except AgentLostError as error:
            raise _CutError(str(error)) from error

    async def _send(self, token: int, sha256: str, data: bytes, offset: int) -> pb.BlobState:
        async def chunks() -> AsyncIterator[pb.UploadBlobRequest]:
            yield pb.UploadBlobRequest(
                token=token,
                sha256=sha256,
                size_bytes=len(data),
                offset=offset,
                data=data[offset : offset + CHUNK_BYTES],
            )
            for start in range(offset + CHUNK_BYTES, len(data), CHUNK_BYTES):
                yield pb.UploadBlobRequest(data=data[start : start + CHUNK_BYTES])

        timeout_ms = self._patience.away_ms + (len(data) - offset) / SLOWEST_BYTES_PER_MS
        call = (await self._reached()).UploadBlob(chunks(), timeout=timeout_ms / 1e3)
        try:
            state: pb.BlobState = await call
        except grpc.aio.AioRpcError as error:
            # The last two: where it goes on is another place by now, as after a newer upload.
            moved = (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.ABORTED)
            if cut(error) or error.code() in moved:
                raise _CutError(error.details() or error.code().name) from error
            raise as_error(error, self.address, "UploadBlob") from error
        finally:
            call.cancel()
        return state

    async def _ask(
        self,
        method: str,
        message: pb.MeasureRequest,
        deadline_s: float,
        on_stage: Callable[[MeasuringStage], None],
    ) -> pb.Result:
        """Read one stream to its result."""
        left_s = max(deadline_s - time.monotonic(), 0.001)
        call = getattr(await self._reached(), method)(message, timeout=left_s)
        reading: asyncio.Task[Any] | None = None
        try:
            while True:
                reading = asyncio.ensure_future(call.read())
                await self._listen(reading)
                event = await reading
                if event is grpc.aio.EOF:
                    raise _CutError("the stream ended without a result")
                kind = event.WhichOneof("event")
                if kind == "result":
                    result: pb.Result = event.result
                    return result
                if kind == "stage":
                    on_stage(wire.stage_from_pb(event.stage))
        except grpc.aio.AioRpcError as error:
            if cut(error):
                raise _CutError(error.details() or error.code().name) from error
            raise as_error(error, self.address, method) from error
        finally:
            call.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.wait({reading})
                if not reading.cancelled():
                    reading.exception()  # seen: it is told above, or of no interest any more

    async def _listen(self, reading: asyncio.Task[Any]) -> None:
        """Wait for the next event; in silence, ask the board whether it is still there."""
        while True:
            # Not wait_for: cancelling a read cancels the whole call.
            done, _ = await asyncio.wait({reading}, timeout=self._patience.quiet_ms / 1e3)
            if done:
                return
            try:
                await self.describe()
            except AgentLostError as error:
                raise _CutError(str(error)) from error


def _stamp(tls: ControllerTlsFiles) -> object:
    try:
        return tls.files.stamp()
    except TlsFileError as error:
        raise UsageError(str(error)) from error


def budget_ms(settings: Settings) -> float:
    """The longest that a request with these settings can take on a board that keeps its own limits.

    A last resort: a dead board is found long before, by its silence.
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
