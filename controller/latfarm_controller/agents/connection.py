"""The gRPC connection to one board: opened and proven when needed, with deadlines and errors."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from dataclasses import dataclass
from typing import Any

import grpc
from latfarm_protos.trust.contexts import TlsFileError
from latfarm_protos.trust.message_fields import careful
from latfarm_protos.trust.proof import Proof
from latfarm_protos.v1 import agent_pb2_grpc

from latfarm_controller.agents.call_errors import as_error, cut, readable
from latfarm_controller.agents.tls import ControllerTlsFiles, check_open, is_revoked, meet_board
from latfarm_controller.doubling_wait import doubling_wait_s
from latfarm_controller.errors import AgentError, AgentLostError, UsageError

RESULT_BYTES = 20 << 20
"""Largest result of a board: a million runs with their slowdowns have 16 MB, 20,000 layers 3 MB."""
DESCRIPTION_BYTES = 2 << 20
"""Largest description of a board: 500 platforms with their settings have about half of that."""
ANSWER_BYTES = 1 << 16
"""Largest answer to any other call: leases, states of uploads and counts have less than 1 KB."""
FRUITLESS_TRIES = 3
"""How often in a row a call may be interrupted without any progress before it is given up."""
CONNECT_S = 7.0
"""Longest wait for a channel to a proven board, in seconds: one attempt and a pause."""
BROKEN_OFF = "this side closed the connection during a call"
"""What is said of a call that another call of the same client ended; see `broken_off`."""
_LARGER = {
    "Describe": DESCRIPTION_BYTES,
    "Measure": RESULT_BYTES,
    "Profile": RESULT_BYTES,
    "ListResults": RESULT_BYTES,  # 3 MiB, unless the first result alone is larger
    "Work": RESULT_BYTES,
}
_SERVICE = "latfarm_protos.v1.AgentService"
# A small message can become a large one in memory: empty parts of two bytes become fifty times as
# large (measured with protobuf 7). So each call has a limit of its own (gRFC A2, service config).
_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {"name": [{"service": _SERVICE}], "maxResponseMessageBytes": ANSWER_BYTES},
            *(
                {
                    "name": [{"service": _SERVICE, "method": method}],
                    "maxResponseMessageBytes": most_bytes,
                }
                for method, most_bytes in _LARGER.items()
            ),
        ]
    }
)

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # boards are in the local network: no proxy is used
    ("grpc.use_local_subchannel_pool", 1),  # clients of one board do not share a connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This is no pause: it is how long an attempt may take, with the TLS handshake of a slow board.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),  # also sets TCP's user timeout
    ("grpc.max_receive_message_length", RESULT_BYTES),
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.service_config_disable_resolution", 1),  # only ours counts
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits for a board, in milliseconds.

    Attributes:
        call_ms: for the answer to a plain call, including the time to connect.
        away_ms: for a board that cannot be reached during a measurement or an upload.
        quiet_ms: for the next event of a measurement, before the client asks whether the board is
            still there.
    """

    call_ms: float = 10_000.0
    away_ms: float = 30_000.0
    quiet_ms: float = 30_000.0


class CutError(Exception):
    """A connection or stream broke, so that the same call may succeed later; says how it broke.

    `progress`: the board was heard of meanwhile, so that another try is not in vain.
    """

    def __init__(self, text: str, *, progress: bool = False) -> None:
        super().__init__(text)
        self.progress = progress


class _CarefulChannel:
    """A channel whose answers are counted before they are read; see `readable`."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, kind: str) -> Any:
        """The function of the channel that makes calls of a kind, as generated stubs use it."""
        make = getattr(self._channel, kind)

        def call_of(*args: Any, response_deserializer: Any, **others: Any) -> Any:
            return make(*args, response_deserializer=careful(response_deserializer), **others)

        return call_of


class AgentConnection:
    """Opens, proves and renews the gRPC channel to a board. Use it from one event loop.

    With TLS, the certificate of the board is checked before each new connection, and the connection
    trusts that certificate alone. TLS files that have changed are read again then. A board whose
    certificate has been revoked since is not called again.

    Args:
        address: `host:port` of the agent.
        tls: how both sides prove who they are; None for plain text, which is allowed on loopback.
        patience: how long to wait for answers.
        insecure: allow plain text beyond loopback as well.
    """

    def __init__(
        self, address: str, tls: ControllerTlsFiles | None, patience: Patience, insecure: bool
    ) -> None:
        self.address = address
        self.patience = patience
        self._tls = tls
        self._insecure = insecure
        self._proof: Proof | None = None
        self._stamp: object = None
        self._meeting = asyncio.Lock()
        self._channel: Any = None
        self._agent: Any = None
        self._closed = False

    @property
    def certified_id(self) -> str:
        """The id of the board in its certificate; empty without TLS, or if it names none."""
        return "" if self._proof is None else self._proof.identity.board_id

    async def stub(self, deadline_s: float = math.inf) -> Any:
        """The stub of the agent's service; the channel is opened at the first call.

        With TLS, the channel is connected, so that a call that fails was sent.

        Args:
            deadline_s: when the caller stops waiting, on the monotonic clock in seconds.

        Raises:
            AgentLostError: the board cannot be reached.
            CertificateError: the board is not who it must be, or does not accept our certificate.
            AgentError: the connection was closed.
        """
        if self._closed:
            raise AgentError(f"{self.address}: this client is closed")
        if self._tls is not None:
            async with self._meeting:
                await self._prove(self._tls)
            await self._connected(deadline_s)
        elif self._agent is None:
            check_open(self.address, self._tls, self._insecure)
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
            self._agent = agent_pb2_grpc.AgentServiceStub(_CarefulChannel(self._channel))
        return self._agent

    async def stub_for_stream(self) -> Any:
        """The stub, for a call that is made again when it breaks.

        Raises:
            CutError: the board cannot be reached now.
        """
        try:
            return await self.stub()
        except AgentLostError as error:
            raise CutError(str(error)) from error

    async def call(
        self, method: str, request: Any, timeout_ms: float | None = None, *, again: bool = False
    ) -> Any:
        """Make one plain call and return its answer.

        Args:
            method: name of the call.
            request: its message.
            timeout_ms: how long it may take, including the time to connect.
            again: whether the call is made again if the connection breaks during it, which is only
                right for calls that may be made twice.
        """
        timeout_ms = self.patience.call_ms if timeout_ms is None else timeout_ms
        deadline_s = time.monotonic() + timeout_ms / 1e3
        # Without TLS, gRPC itself may wait for the board; with TLS, `stub` proves the board anew.
        waits = self._tls is None
        while True:
            try:
                call = getattr(await self.stub(deadline_s), method)
                left_s = max(deadline_s - time.monotonic(), 0.001)
                answer = await call(request, timeout=left_s, wait_for_ready=waits)
                return readable(answer, self.address, method)
            except AgentLostError:
                if time.monotonic() >= deadline_s:
                    raise
            except grpc.aio.AioRpcError as error:
                if not (again and cut(error) and time.monotonic() < deadline_s):
                    raise as_error(error, self.address, method) from error
            except asyncio.CancelledError:
                if not broken_off():
                    raise
                if not again or time.monotonic() >= deadline_s:
                    raise AgentLostError(f"{self.address}: {BROKEN_OFF}: {method}") from None
            # The connection was made and broke at once: leave the board a moment.
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        await self._hang_up()

    async def _prove(self, tls: ControllerTlsFiles) -> None:
        """Have a channel to a proven board; a new one if the files or the board have changed."""
        if self._proof is not None and (
            self._proof.identity.expired or is_revoked(self._proof, tls)
        ):
            await self._hang_up()
        stamp = _stamp(tls)
        if self._channel is not None and stamp == self._stamp:
            state = self._channel.get_state()
            if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING):
                return
        proof = await meet_board(self.address, tls)
        if self._channel is not None and stamp == self._stamp and proof == self._proof:
            return  # it is the same board: gRPC connects the channel again by itself
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
        self._agent = agent_pb2_grpc.AgentServiceStub(_CarefulChannel(self._channel))
        self._proof, self._stamp = proof, stamp

    async def _connected(self, deadline_s: float) -> None:
        """Wait until the channel to a board that was just proven is connected.

        Raises:
            AgentLostError: it was not connected in time; the board must be proven again.
        """
        channel, until_s = self._channel, min(deadline_s, time.monotonic() + CONNECT_S)
        for looks in itertools.count(1):
            if channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY:
                return
            if time.monotonic() >= until_s or channel is not self._channel:
                raise AgentLostError(f"{self.address}: no connection was made in time")
            # A thousand boards may connect at once, so that looking often would take a core.
            await asyncio.sleep(doubling_wait_s(0.005, 0.2, looks))

    async def _hang_up(self) -> None:
        channel, self._channel, self._agent, self._proof = self._channel, None, None, None
        if channel is not None:
            await channel.close()


def broken_off() -> bool:
    """Whether a call that raised a CancelledError was ended by another call of the same client.

    The other call noticed that the TLS files or the board have changed, and closed the channel.
    gRPC cancels the calls of a channel that is closed, and the task that waits for one of them
    would end as if somebody had cancelled it.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _stamp(tls: ControllerTlsFiles) -> object:
    """A value that changes when the TLS files do."""
    try:
        return tls.files.stamp()
    except TlsFileError as error:
        raise UsageError(str(error)) from error
