"""What a conductor works with, and the gauges that show it to monitoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping

from latfarm_agent.bench.measuring import MeasuringBench
from latfarm_agent.files.blobs import BlobStore
from latfarm_agent.files.spool import Spool
from latfarm_agent.service.monitoring.metrics import AgentMetrics
from latfarm_agent.service.tokens import TokenFile
from latfarm_agent.session.session import Session


@dataclass(frozen=True)
class AgentParts:
    """What a conductor works with.

    Attributes:
        bench: measures; its `measure` is called by one thread at a time.
        session: the state machine, made with the last token of `tokens`.
        blobs: the models.
        spool: the finished results.
        tokens: keeps the highest lease token on disk.
        metrics: counts what happens.
    """

    bench: MeasuringBench
    session: Session
    blobs: BlobStore
    spool: Spool
    tokens: TokenFile
    metrics: AgentMetrics


def connect_gauges(
    parts: AgentParts,
    lease_remaining_s: Callable[[], float],
    conditions: Callable[[], Mapping[str, str] | None],
) -> None:
    """Let the gauges read their values when they are asked for.

    Args:
        parts: of the conductor.
        lease_remaining_s: how long the lease lasts, in seconds; 0: there is none.
        conditions: of the board; None while it must not be disturbed.
    """
    metrics, session, spool, blobs = parts.metrics, parts.session, parts.spool, parts.blobs
    metrics.lease_remaining_seconds.set_function(lease_remaining_s)
    metrics.queue_length.set_function(lambda: len(session.queued))
    metrics.spooled_results.set_function(lambda: len(spool))
    metrics.spool_bytes.set_function(lambda: spool.total_bytes)
    metrics.blobs.set_function(lambda: blobs.count)
    metrics.blob_bytes.set_function(lambda: blobs.total_bytes)
    metrics.blob_evictions.set_function(lambda: blobs.evictions)
    metrics.conditions.set_source(conditions)
