"""What Prometheus may know: measurements, stages, uploads, leases, blobs, spool, the board's state.

Counting costs next to nothing and is always on; an HTTP server runs only where one is asked for.
"""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)

from latfarm_agent import PROTOCOL_VERSION, __version__
from latfarm_agent.errors import UsageError
from latfarm_agent.session import State

STAGE_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
KNOWN_STAGES = (
    "queued",
    "waiting",
    "loading",
    "warming",
    "timing",
    "cold",
    "profiling",
    "resting",
    "energy",
)
KNOWN_OUTCOMES = ("ok", "model_error", "infrastructure_error")


class MetricsServer:
    """The HTTP server behind `--metrics-port`."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Metrics:
    """The metrics of one agent, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        info = Gauge(
            "latfarm_agent_info",
            "Always 1; the labels tell the agent's version and its measurement protocol.",
            ["version", "protocol"],
            registry=self.registry,
        )
        info.labels(__version__, str(PROTOCOL_VERSION)).set(1)
        self._measurements = Counter(
            "latfarm_agent_measurements",
            "Finished measurements and profiles by kind, outcome and error code.",
            ["kind", "outcome", "error_code"],
            registry=self.registry,
        )
        for outcome in KNOWN_OUTCOMES:
            # Present from the start, so that a rate over the first failure is not missed.
            self._measurements.labels("measure", outcome, "")
        self._stage_seconds = Histogram(
            "latfarm_agent_stage_seconds",
            "How long measurements stayed in each stage.",
            ["stage"],
            buckets=STAGE_BUCKETS_S,
            registry=self.registry,
        )
        self._busy_seconds = Counter(
            "latfarm_agent_board_busy_seconds",
            "Seconds in which a measurement had the board.",
            registry=self.registry,
        )
        self._replays = Counter(
            "latfarm_agent_results_replayed",
            "Requests answered from the spool without measuring.",
            registry=self.registry,
        )
        self._uploads = Counter(
            "latfarm_agent_uploads",
            "Blob uploads by how they ended: complete, partial, present, cut or refused.",
            ["outcome"],
            registry=self.registry,
        )
        self._upload_bytes = Counter(
            "latfarm_agent_upload_bytes",
            "Bytes of blobs received.",
            registry=self.registry,
        )
        self._leases = Counter(
            "latfarm_agent_leases",
            "Leases by event: granted, renewed, released, expired or refused.",
            ["event"],
            registry=self.registry,
        )
        self._errors = Counter(
            "latfarm_agent_rpc_errors",
            "Calls that ended with an error, by method and error code.",
            ["method", "error_code"],
            registry=self.registry,
        )
        self._spool_failures = Counter(
            "latfarm_agent_spool_failures",
            "Results that were sent but could not be kept on disk.",
            registry=self.registry,
        )
        self._state = Gauge(
            "latfarm_agent_state",
            "1 for the state that the board is in, 0 for the others.",
            ["state"],
            registry=self.registry,
        )
        self.set_state(State.IDLE)
        self.queue_length = self._gauge(
            "latfarm_agent_queue_length", "Requests that wait for the board."
        )
        self.lease_remaining_seconds = self._gauge(
            "latfarm_agent_lease_remaining_seconds", "Until the lease expires; 0 without one."
        )
        self.blobs = self._gauge("latfarm_agent_blobs", "Complete blobs in the cache.")
        self.blob_bytes = self._gauge(
            "latfarm_agent_blob_bytes", "Bytes in the blob cache, partial uploads included."
        )
        self.blob_evictions = self._gauge(
            "latfarm_agent_blob_evictions", "Blobs removed to make room since the start."
        )
        self.spooled_results = self._gauge(
            "latfarm_agent_spooled_results", "Results that wait to be acknowledged."
        )
        self.spool_bytes = self._gauge("latfarm_agent_spool_bytes", "Bytes of spooled results.")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def set_state(self, state: State) -> None:
        """The board is in this state now."""
        for other in State:
            self._state.labels(other.value).set(1 if other is state else 0)

    def measured(self, kind: str, outcome: str, error_code: str, busy_s: float) -> None:
        """A measurement ended; `kind` is measure or profile."""
        self._measurements.labels(kind, outcome, error_code).inc()
        self._busy_seconds.inc(max(0.0, busy_s))

    def staged(self, stage: str, seconds: float) -> None:
        """A stage ended."""
        # Labels must stay few, whatever a runtime calls its stages.
        name = stage if stage in KNOWN_STAGES else "other"
        self._stage_seconds.labels(name).observe(max(0.0, seconds))

    def replayed(self) -> None:
        """A result was answered from the spool."""
        self._replays.inc()

    def spool_failed(self) -> None:
        """A result could not be kept."""
        self._spool_failures.inc()

    def uploaded(self, outcome: str) -> None:
        """An upload ended."""
        self._uploads.labels(outcome).inc()

    def received(self, size_bytes: int) -> None:
        """Bytes of a blob arrived."""
        self._upload_bytes.inc(size_bytes)

    def leased(self, event: str) -> None:
        """Something happened to a lease."""
        self._leases.labels(event).inc()

    def failed(self, method: str, error_code: str) -> None:
        """A call ended with an error."""
        self._errors.labels(method, error_code).inc()

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def serve(self, host: str, port: int) -> MetricsServer:
        """Answer /metrics over HTTP.

        Raises:
            UsageError: the port cannot be had.
        """
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise UsageError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; "
                "give another --metrics-port"
            ) from error
        return MetricsServer(server, thread)
