"""The gRPC server of the agent: puts the parts together over a state directory, and listens."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import time
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from latfarm_protos.trust.calls import CallGuard
from latfarm_protos.trust.gate import Gate, peer_refusal
from latfarm_protos.trust.http_port import HttpPort
from latfarm_protos.trust.identity import Refusal
from latfarm_protos.v1 import agent_pb2, agent_pb2_grpc

from latfarm_agent.bench.measuring import MeasuringBench
from latfarm_agent.errors import AgentUsageError, RequestError, StateError
from latfarm_agent.files.blobs import BlobStore
from latfarm_agent.files.spool import Spool
from latfarm_agent.service.conductor import Conductor
from latfarm_agent.service.dialler import Dialler, DialTarget
from latfarm_agent.service.monitoring.metrics import AgentMetrics
from latfarm_agent.service.parts import AgentParts
from latfarm_agent.service.servicer import MAX_UPLOAD_BYTES_PER_S, AgentServicer
from latfarm_agent.service.tls import AgentTlsFiles, open_gate
from latfarm_agent.service.tokens import StateLock, TokenFile
from latfarm_agent.session.messages import SessionState
from latfarm_agent.session.session import Session, SessionLimits

SERVICE_NAME = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
MAX_RECEIVE_BYTES = 16 << 20
"""Largest message that the server accepts."""

MAX_THREADS = 64
"""Threads for calls: more than all listeners and uploads together."""

MAX_CALLS = 128
"""Most calls that run or wait for a thread; one more gets RESOURCE_EXHAUSTED."""

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 128),
    # Otherwise a second agent on the same port would silently get half of the calls.
    ("grpc.so_reuseport", 0),
    # Calls of a client that disappeared must not stay open for hours.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceConfig:
    """How an agent serves; see the options of `latfarm-agent serve`. Sizes are in bytes.

    With a `controller`, the agent calls it at this `host:port` and listens nowhere.
    """

    state_dir: Path
    listen: str = "127.0.0.1:0"
    controller: str = ""
    controller_name: str = ""
    tls: AgentTlsFiles | None = None
    insecure: bool = False
    reflection: bool = False
    max_blob_bytes: int = 4 << 30
    max_cache_bytes: int = 4 << 30
    max_spooled: int = 10_000
    max_upload_bytes_per_s: int = MAX_UPLOAD_BYTES_PER_S
    limits: SessionLimits = field(default_factory=SessionLimits)


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; gives the host without brackets, and the port.

    Raises:
        AgentUsageError: the text has neither form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise AgentUsageError(f"{address!r} is not HOST:PORT; give for example 127.0.0.1:50051")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise AgentUsageError(f"{address!r}: write an IPv6 address as [HOST]:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class AgentServer:
    """An agent that listens. `start` once, `stop` once.

    Args:
        config: how to serve.
        make_bench: makes the bench, after the state directory is locked; the server ends it.
        metrics: counts what happens; None: new ones.
        now_ms: the clock of leases, in milliseconds.

    Raises:
        AgentUsageError: a wrong address or certificate, or a board that everybody could use.
        StateError: the state directory is in use or damaged.
    """

    def __init__(
        self,
        config: ServiceConfig,
        make_bench: Callable[[], MeasuringBench],
        metrics: AgentMetrics | None = None,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._config = config
        self._host, self._asked_port = split_address(config.listen)
        self.metrics = metrics or AgentMetrics()
        self._dialler = self._make_dialler() if config.controller else None
        listens = self._dialler is None
        if listens and not (config.tls or config.insecure or is_loopback(self._host)):
            raise AgentUsageError(
                f"{config.listen} can be reached from outside: give --tls-cert, --tls-key and "
                "--tls-ca, or --insecure if everybody there may use this board"
            )
        self._gate: Gate | None = None
        if listens and config.tls is not None:
            self._gate = open_gate(config.tls, self.metrics.turned_away)
        self.port = 0
        self._stopping = False
        self._health = health.HealthServicer()
        try:
            self._lock = StateLock(config.state_dir)
            try:
                self._bench = make_bench()
                try:
                    self.conductor = self._compose(now_ms)
                except BaseException:
                    self._bench.close()
                    raise
            except BaseException:
                self._lock.close()
                raise
        except BaseException:
            self._close_doors()
            raise
        self.metrics.watch_files(config.state_dir, config.tls)
        self._pool = futures.ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(
            self._pool,
            options=OPTIONS,
            interceptors=(CallGuard(self._refusal, RequestError),),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        self._servicer = AgentServicer(
            self.conductor, self.metrics, upload_bytes_per_s=config.max_upload_bytes_per_s
        )
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if config.reflection:
            # For administrators with grpcurl; our clients do not need it.
            from grpc_reflection.v1alpha import reflection

            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    def _make_dialler(self) -> Dialler:
        config = self._config
        if config.tls is None:
            raise AgentUsageError(
                "--controller needs --tls-cert, --tls-key and --tls-ca: both sides prove themselves"
            )
        host, port = split_address(config.controller)
        target = DialTarget(host, port, config.controller_name or host)
        return Dialler(target, config.tls.files, self.metrics.turned_away)

    def _close_doors(self) -> None:
        if self._gate is not None:
            self._gate.close()
        if self._dialler is not None:
            self._dialler.close()

    def _compose(self, now_ms: Callable[[], float]) -> Conductor:
        config = self._config
        with _state_errors(config.state_dir):
            tokens = TokenFile(config.state_dir / "token")
            blobs = BlobStore(
                config.state_dir / "blobs",
                max_blob_bytes=config.max_blob_bytes,
                max_total_bytes=config.max_cache_bytes,
            )
            parts = AgentParts(
                self._bench,
                Session(tokens.load(), config.limits),
                blobs,
                Spool(config.state_dir / "spool", max_entries=config.max_spooled),
                tokens,
                self.metrics,
            )
            return Conductor(parts, now_ms=now_ms, on_state=self._set_health)

    @property
    def address(self) -> str:
        """`host:port` that clients connect to; empty if the agent listens nowhere."""
        if self._dialler is not None:
            return ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    def start(self) -> None:
        """Describe the board, then listen or call the controller.

        Raises:
            AgentUsageError: the address is not free, or not one of this board.
        """
        self.conductor.start()
        self.port = self._take_port()
        if self.port == 0:
            raise AgentUsageError(
                f"cannot listen on {self._config.listen}: in use, not an address of this board, "
                "or not allowed; give another --listen"
            )
        self._server.start()
        self._set_health(self.conductor.state)
        if self._dialler is not None:
            self._dialler.start(self.conductor.describe().board.board_id)
            logger.info("calling the controller at %s", self._config.controller)
            return
        if self._gate is not None:
            self._gate.start()
        elif not is_loopback(self._host):
            logger.warning(
                "serving on %s without certificates, as --insecure says: everybody who reaches it "
                "may use this board",
                self.address,
            )
        logger.info("serving on %s", self.address)

    def _take_port(self) -> int:
        """Listen; gives the port that clients connect to, 0: the address is not free."""
        try:
            if self._dialler is not None:
                return int(self._server.add_insecure_port(f"unix:{self._dialler.inner}"))
            if self._gate is None:
                return int(self._server.add_insecure_port(self._config.listen))
            port = self._gate.listen(self._host, self._asked_port)
            return port if self._server.add_insecure_port(f"unix:{self._gate.inner}") else 0
        except (RuntimeError, OSError):
            return 0

    def _refusal(self, peer: str, method: str) -> Refusal | None:
        refusal = peer_refusal(self._dialler or self._gate, peer)[1]
        if refusal is not None:
            logger.warning("%s refused: %s [%s]", method, refusal.text, refusal.reason)
        return refusal

    def serve_metrics(self, port: int) -> HttpPort:
        """Answer /metrics at the service's address and with its certificates.

        Raises:
            AgentUsageError: the port is not free, or the certificates cannot be used.
        """
        return self.metrics.serve(
            self._host,
            port,
            self._config.tls,
            lambda: self.conductor.state is not SessionState.QUARANTINED,
        )

    def stop(self, grace_s: float = 10.0) -> None:
        """Accept nothing new, cancel what runs, let its listeners know, and end the bench."""
        self._stopping = True
        self._health.enter_graceful_shutdown()
        stopped = self._server.stop(grace_s)
        self.conductor.stop(grace_s)
        self._servicer.stop()
        stopped.wait()
        self._pool.shutdown()
        self._close_doors()
        self._lock.close()

    def _set_health(self, state: SessionState) -> None:
        if self._stopping:
            return
        quarantined = state is SessionState.QUARANTINED
        status = health_pb2.HealthCheckResponse.ServingStatus
        for name in ("", SERVICE_NAME):
            self._health.set(name, status.NOT_SERVING if quarantined else status.SERVING)


@contextlib.contextmanager
def _state_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"cannot use the state directory {directory}: {error.strerror or error}"
        ) from error
