"""The gRPC server's life: composed, listening, told to stop, gone.

`Agent` puts the parts together over a state directory; `Server` listens for it.
"""

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
from latfarm_protos.v1 import agent_pb2, agent_pb2_grpc

from latfarm_agent.blobs import BlobStore
from latfarm_agent.conductor import Conductor, MeasuringBench
from latfarm_agent.errors import StateError, UsageError
from latfarm_agent.metrics import Metrics
from latfarm_agent.servicer import AgentServicer
from latfarm_agent.session import Limits, Session, State
from latfarm_agent.spool import Spool
from latfarm_agent.tls import TlsFiles, server_credentials
from latfarm_agent.tokens import StateLock, TokenFile

SERVICE_NAME = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
MAX_RECEIVE_BYTES = 16 << 20
MAX_THREADS = 64  # above all listeners and uploads together
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    # Else a second agent on the same port would silently get half of the calls.
    ("grpc.so_reuseport", 0),
    # A client that vanished without a word must not keep its calls open for hours.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config:
    """How an agent serves. Sizes in bytes."""

    state_dir: Path
    listen: str = "127.0.0.1:0"
    tls: TlsFiles | None = None
    insecure: bool = False
    reflection: bool = False
    max_blob_bytes: int = 4 << 30
    max_cache_bytes: int = 16 << 30
    max_spooled: int = 10_000
    limits: Limits = field(default_factory=Limits)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as its two parts; the host without brackets.

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address!r} is no HOST:PORT; give for example 127.0.0.1:50051")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise UsageError(f"{address!r}: write an IPv6 address as [HOST]:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class Server:
    """An agent that listens. `start` once, `stop` once.

    Args:
        config: how to serve.
        make_bench: makes what measures, once the state directory is ours; the server ends it.
        metrics: counted into.
        now_ms: the clock of leases, in milliseconds.

    Raises:
        UsageError: a wrong address or certificate, or a board that anybody could use.
        StateError: the state directory is in use or damaged.
    """

    def __init__(
        self,
        config: Config,
        make_bench: Callable[[], MeasuringBench],
        metrics: Metrics | None = None,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._config = config
        self._host, self._asked_port = split_address(config.listen)
        if config.tls is None and not is_loopback(self._host) and not config.insecure:
            raise UsageError(
                f"{config.listen} can be reached from outside: give --tls-cert, --tls-key and "
                "--tls-ca, or --insecure if everybody there may use this board"
            )
        self._credentials = server_credentials(config.tls) if config.tls is not None else None
        self.metrics = metrics or Metrics()
        self.port = 0
        self._stopping = False
        self._health = health.HealthServicer()
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
        self._pool = futures.ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(self._pool, options=OPTIONS)
        servicer = AgentServicer(self.conductor, self.metrics)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if config.reflection:
            # For administrators with grpcurl; not needed by any client of ours.
            from grpc_reflection.v1alpha import reflection

            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    def _compose(self, now_ms: Callable[[], float]) -> Conductor:
        config = self._config
        with _state_errors(config.state_dir):
            tokens = TokenFile(config.state_dir / "token")
            blobs = BlobStore(
                config.state_dir / "blobs",
                max_blob_bytes=config.max_blob_bytes,
                max_total_bytes=config.max_cache_bytes,
            )
            return Conductor(
                self._bench,
                Session(tokens.load(), config.limits),
                blobs,
                Spool(config.state_dir / "spool", max_entries=config.max_spooled),
                tokens,
                self.metrics,
                now_ms=now_ms,
                on_state=self._set_health,
            )

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    def start(self) -> None:
        """Describe the board, then listen.

        Raises:
            UsageError: the address cannot be had.
        """
        self.conductor.start()
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._config.listen)
            else:
                self.port = self._server.add_secure_port(self._config.listen, self._credentials)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise UsageError(
                f"cannot listen on {self._config.listen}: in use, not an address of this board, "
                "or not allowed; give another --listen"
            )
        self._server.start()
        self._set_health(self.conductor.state)
        logger.info("serving on %s", self.address)

    def stop(self, grace_s: float = 10.0) -> None:
        """Take nothing new, cancel what runs, let its listeners hear of it, and end the bench."""
        self._stopping = True
        self._health.enter_graceful_shutdown()
        stopped = self._server.stop(grace_s)
        self.conductor.stop(grace_s)
        stopped.wait()
        self._pool.shutdown()
        self._lock.close()

    def _set_health(self, state: State) -> None:
        if self._stopping:
            return
        quarantined = state is State.QUARANTINED
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
