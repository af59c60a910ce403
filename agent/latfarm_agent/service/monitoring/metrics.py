"""The agent's metrics for Prometheus.

Counting costs almost nothing and is always on; an HTTP server runs only if it is asked for. Metrics
follow the conventions of Prometheus: seconds, bytes, hertz and degrees Celsius, where the agent's
messages use milliseconds and megahertz.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Callable, Mapping, Sequence

from latfarm_protos.error_codes import CODES
from latfarm_protos.trust.contexts import TlsFileError
from latfarm_protos.trust.http_port import HttpPort, Page
from latfarm_protos.trust.identity import Identity
from latfarm_protos.trust.revoked import RevokedError
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from latfarm_agent import PROTOCOL_VERSION, __version__
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.service.monitoring.collectors import (
    AgentCertificateCollector,
    ConditionsCollector,
    DiskCollector,
    ReaderCertificateCollector,
)
from latfarm_agent.service.tls import AgentTlsFiles
from latfarm_agent.session.messages import SessionState

STAGE_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
"""Upper bounds of the histogram of stages, in seconds."""

KNOWN_STAGES = (
    "queued",
    "upload",
    "waiting",
    "loading",
    "warming",
    "timing",
    "cold",
    "profiling",
    "resting",
    "energy",
)
"""Stages with a series of their own; a runtime may call its stages anything."""

REFUSALS = {"NOT_READY": "not_ready", "THROTTLED": "throttled"}
"""Error codes of measurements that the board's conditions did not allow, and their labels."""

TRIED_AGAIN = "tried_again_after"
"""The condition of a measurement whose worker died and was started again."""

MOST_CODES = 50
"""Most error codes with a series of their own, as a runtime may invent any number of codes."""


class AgentMetrics:
    """The metrics of one agent, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.conditions = ConditionsCollector()
        self.registry.register(self.conditions)
        self._readers = ReaderCertificateCollector()
        self.registry.register(self._readers)
        info = Gauge(
            "latfarm_agent_build_info",
            "Always 1; the labels tell the agent's version, measurement protocol and Python.",
            ["version", "protocol", "python"],
            registry=self.registry,
        )
        info.labels(__version__, str(PROTOCOL_VERSION), platform.python_version()).set(1)
        self._add_measurements()
        self._add_service()
        self._add_board()

    def _add_measurements(self) -> None:
        """Add what is counted of measurements."""
        self._measurements = self._counter(
            "latfarm_agent_measurements",
            "Finished measurements and profiles by kind, outcome and error code.",
            ["kind", "outcome", "error_code"],
        )
        for outcome, codes in CODES.items():
            # Present from the start, so that a rate over the first failure is not missed.
            for code in codes:
                self._measurements.labels("measure", outcome, code)
        self._codes: set[str] = set().union(*CODES.values())
        self._refused = self._counter(
            "latfarm_agent_conditions_refused",
            "Measurements that the board's conditions did not allow: not ready, or throttled.",
            ["reason"],
        )
        for reason in REFUSALS.values():
            self._refused.labels(reason)
        self._retries = self._counter(
            "latfarm_agent_worker_retries",
            "Measurements for which a worker that had died was started anew.",
        )
        self._stage_seconds = Histogram(
            "latfarm_agent_stage_seconds",
            "How long measurements stayed in each stage, waiting and upload included.",
            ["stage"],
            buckets=STAGE_BUCKETS_S,
            registry=self.registry,
        )
        self._busy_seconds = self._counter(
            "latfarm_agent_board_busy_seconds", "Seconds in which a measurement had the board."
        )
        self._replays = self._counter(
            "latfarm_agent_results_replayed", "Requests answered from the spool without measuring."
        )
        self._spool_failures = self._counter(
            "latfarm_agent_spool_failures",
            "Results that were sent but could not be kept on disk.",
        )

    def _add_service(self) -> None:
        """Add what is counted of connections, calls, uploads and leases."""
        self._turned_away = self._counter(
            "latfarm_agent_refused_connections",
            "Connections that were refused, by reason: missing, expired, wrong_ca, revoked, ...",
            ["reason"],
        )
        self._uploads = self._counter(
            "latfarm_agent_uploads",
            "Blob uploads by how they ended: complete, partial, present, cut or refused.",
            ["outcome"],
        )
        self._upload_bytes = self._counter("latfarm_agent_upload_bytes", "Bytes of blobs received.")
        self._leases = self._counter(
            "latfarm_agent_leases",
            "Leases by event: granted, renewed, released, expired, replaced or refused.",
            ["event"],
        )
        self._errors = self._counter(
            "latfarm_agent_rpc_errors",
            "Calls that ended with an error, by method and error code.",
            ["method", "error_code"],
        )

    def _add_board(self) -> None:
        """Add the board's state, and gauges whose values the conductor provides."""
        self._quarantines = self._counter(
            "latfarm_agent_quarantines",
            "Times the board stopped taking work after too many failures in a row.",
        )
        self._state = Gauge(
            "latfarm_agent_state",
            "1 for the state that the board is in, 0 for the others.",
            ["state"],
            registry=self.registry,
        )
        self._now = SessionState.IDLE
        self.set_state(SessionState.IDLE)
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

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def set_state(self, state: SessionState) -> None:
        """Set the state that the board is in now."""
        if state is SessionState.QUARANTINED and self._now is not state:
            self._quarantines.inc()
        self._now = state
        for other in SessionState:
            self._state.labels(other.value).set(1 if other is state else 0)

    def measured(
        self,
        kind: str,
        outcome: str,
        error_code: str,
        busy_s: float,
        conditions: Mapping[str, str] | None = None,
    ) -> None:
        """Count a measurement that ended.

        Args:
            kind: "measure" or "profile".
            outcome: its outcome.
            error_code: its error code; empty: none.
            busy_s: how long it had the board, in seconds.
            conditions: its conditions.
        """
        if error_code in REFUSALS:
            self._refused.labels(REFUSALS[error_code]).inc()
        if error_code not in self._codes:
            if len(self._codes) < MOST_CODES:
                self._codes.add(error_code)
            else:
                error_code = "other"
        self._measurements.labels(kind, outcome, error_code).inc()
        self._busy_seconds.inc(max(0.0, busy_s))
        if conditions is not None:
            if conditions.get(TRIED_AGAIN):
                self._retries.inc()
            self.conditions.saw(conditions)

    def staged(self, stage: str, seconds: float) -> None:
        """Count a stage that ended after so many seconds."""
        # There must be few labels, whatever a runtime calls its stages.
        name = stage if stage in KNOWN_STAGES else "other"
        self._stage_seconds.labels(name).observe(max(0.0, seconds))

    def replayed(self) -> None:
        """Count a request that was answered from the spool."""
        self._replays.inc()

    def spool_failed(self) -> None:
        """Count a result that could not be kept on disk."""
        self._spool_failures.inc()

    def uploaded(self, outcome: str) -> None:
        """Count an upload that ended."""
        self._uploads.labels(outcome).inc()

    def received(self, size_bytes: int) -> None:
        """Count bytes of a blob that arrived."""
        self._upload_bytes.inc(size_bytes)

    def leased(self, event: str) -> None:
        """Count an event of a lease."""
        self._leases.labels(event).inc()

    def turned_away(self, reason: str) -> None:
        """Count a refused connection; reasons are those of `latfarm_protos.trust.identity`."""
        self._turned_away.labels(reason).inc()

    def _reader_came(self, identity: Identity) -> None:
        """Note who reads the metrics, and until when the certificate is valid."""
        self._readers.saw(identity.name, identity.expires_s)

    def failed(self, method: str, error_code: str) -> None:
        """Count a call that ended with an error."""
        self._errors.labels(method, error_code).inc()

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def watch_files(self, state_dir: Path, tls: AgentTlsFiles | None) -> None:
        """Add metrics of the file system of `state_dir`, and of when certificates expire."""
        self.registry.register(DiskCollector(state_dir))
        if tls is not None:
            files = {"agent": tls.cert, "authority": tls.ca}
            self.registry.register(AgentCertificateCollector(files))

    def serve(
        self,
        host: str,
        port: int,
        tls: AgentTlsFiles | None = None,
        healthy: Callable[[], bool] = lambda: True,
    ) -> HttpPort:
        """Answer /metrics and /-/healthy, over mutual TLS where files are given.

        Raises:
            AgentUsageError: the port is not free, or the files cannot be used.
        """

        def metrics() -> Page:
            return Page(generate_latest(self.registry), CONTENT_TYPE_LATEST)

        def health() -> Page:
            return Page(b"healthy\n") if healthy() else Page(b"quarantined\n", status=503)

        pages = {"/metrics": metrics, "/-/healthy": health}
        files = None if tls is None else tls.files
        try:
            return HttpPort(host, port, pages, files, self.turned_away, self._reader_came)
        except (OSError, OverflowError, TlsFileError, RevokedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise AgentUsageError(
                f"cannot serve metrics on {host}:{port}: {reason}; give another --metrics-port"
            ) from error
