"""Finished measurements in the spool, as the conductor uses them."""

from __future__ import annotations

import logging

from latfarm_protos.error_codes import INFRASTRUCTURE_ERROR

from latfarm_agent import wire
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.errors import AgentDiskFullError
from latfarm_agent.files.spool import Entry, Spool
from latfarm_agent.service.monitoring.metrics import AgentMetrics
from latfarm_agent.session.messages import MeasurementJob
from latfarm_agent.session.session import CANCELLED, LEASE_LOST

MAX_LISTED_BYTES = 3 << 20
"""Bound of one list of results; gRPC clients receive messages of at most 4 MiB by default."""

_UNWANTED = frozenset({CANCELLED, LEASE_LOST})
"""Codes of failures that are not kept: whoever asks again has the request measured, and nobody else
is to hear of them."""

logger = logging.getLogger(__name__)


class SpooledResults:
    """Keeps results until their owner has acknowledged them. Thread-safe.

    Args:
        spool: the files.
        metrics: counts results that could not be kept.
    """

    def __init__(self, spool: Spool, metrics: AgentMetrics) -> None:
        self._spool = spool
        self._metrics = metrics

    def check_room(self, coming: int) -> None:
        """Whether so many more results may be made.

        Raises:
            SpoolFullError: too many results wait to be acknowledged.
        """
        self._spool.check_room(coming)

    def final(self, request_id: str, fingerprint: str = "") -> Entry | None:
        """The result of a request; None where there is none, or where a repeat measures again.

        Args:
            request_id: of the request.
            fingerprint: of its platform now. A result under another fingerprint was taken with
                another runtime or other settings, so that a repeat measures again; empty: any.
        """
        entry = self._spool.get(request_id)
        if entry is None or entry.again:
            return None
        told = wire.result_from_bytes(entry.payload).fingerprint
        return None if told and fingerprint and told != fingerprint else entry

    def keep(self, job: MeasurementJob, result: BenchResult) -> None:
        """Keep a result, unless it says that it was cancelled or that its lease ended.

        A full disk is logged and counted, not raised.
        """
        if result.error_code in _UNWANTED:
            return
        entry = Entry(
            job.request_id,
            job.question,
            wire.result_bytes(result),
            again=result.outcome == INFRASTRUCTURE_ERROR,
        )
        try:
            self._spool.put(entry)
        except AgentDiskFullError:
            # Those who listen still receive it; only a lost connection costs another measurement.
            logger.exception("a result is sent without being kept in the spool")
            self._metrics.spool_failed()

    def listed(self, after: str = "") -> list[bytes]:
        """Results as serialized messages, oldest first; as many as fit a message, at least one.

        Args:
            after: begin behind the result of this request; empty, or not in the spool: begin with
                the first one.
        """
        found: list[bytes] = []
        size_bytes = 0
        request_ids = self._spool.request_ids()
        begin = request_ids.index(after) + 1 if after in request_ids else 0
        for request_id in request_ids[begin:]:
            entry = self._spool.get(request_id)
            if entry is not None:
                size_bytes += len(entry.payload)
                if found and size_bytes > MAX_LISTED_BYTES:
                    break
                found.append(entry.payload)
        return found

    def acknowledge(self, request_ids: list[str]) -> int:
        """Drop results that their owner has stored; gives how many there were."""
        return self._spool.remove(request_ids)
