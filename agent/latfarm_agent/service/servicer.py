"""Turns messages into calls of the conductor, and its answers and errors into messages.

Errors become gRPC status codes here and nowhere else. The code of an error travels in the trailing
metadata `latfarm-error`, its message in one line of the details.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Iterator, Mapping

import grpc
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

from latfarm_agent import PROTOCOL_VERSION, __version__, errors, wire
from latfarm_agent.files.uploads import BlobStatus, Pace, Upload
from latfarm_agent.service.conductor import Conductor
from latfarm_agent.service.monitoring.metrics import AgentMetrics
from latfarm_agent.service.served_work import CAPABILITY, ServedWork, job_request

STATUS_CODES: Mapping[type[errors.LatfarmAgentError], grpc.StatusCode] = {
    errors.LatfarmAgentError: grpc.StatusCode.INTERNAL,
    errors.StateError: grpc.StatusCode.INTERNAL,
    errors.AgentDiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OffsetError: grpc.StatusCode.OUT_OF_RANGE,
    errors.RequestConflictError: grpc.StatusCode.ALREADY_EXISTS,
    errors.LeaseRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LeaseHeldError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.BlobNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UploadSupersededError: grpc.StatusCode.ABORTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
}
"""The status of each error; an error that is missing has the status of its nearest ancestor."""

RESTART = "restart"
"""The capability of an agent that restarts a part of itself when it is asked to."""

ERROR_KEY = "latfarm-error"
"""Key of the trailing metadata that holds an error's code."""

MAX_DETAIL_CHARS = 1500
"""Longest error message that is sent, as HTTP/2 headers have a limit."""

MAX_LISTENERS = 32
"""Most calls that may listen to measurements at once."""

MAX_UPLOADS = 8
"""Most uploads at once."""

MAX_WORK_STREAMS = 8
"""Most `Work` streams at once: one of the holder, and those whose end is not noticed yet."""

MAX_UPLOAD_BYTES_PER_S = 256 << 20
"""Limit of all uploads together."""

logger = logging.getLogger(__name__)


def status_of(error: errors.LatfarmAgentError) -> grpc.StatusCode:
    """The status of an error: its own in `STATUS_CODES`, or that of its nearest ancestor."""
    for kind in type(error).__mro__:
        if kind in STATUS_CODES:
            return STATUS_CODES[kind]
    raise TypeError(f"{type(error).__name__} is not a LatfarmAgentError")


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """The agent's gRPC service.

    Listeners and uploads are limited, so that a thread is always left to renew a lease.
    """

    def __init__(
        self,
        conductor: Conductor,
        metrics: AgentMetrics,
        *,
        upload_bytes_per_s: float = MAX_UPLOAD_BYTES_PER_S,
    ) -> None:
        self._pace = Pace(upload_bytes_per_s)
        self._conductor = conductor
        self._metrics = metrics
        self._listeners = threading.BoundedSemaphore(MAX_LISTENERS)
        self._uploads = threading.BoundedSemaphore(MAX_UPLOADS)
        self._restarts = threading.BoundedSemaphore(1)
        self._work_slots = threading.BoundedSemaphore(MAX_WORK_STREAMS)
        self._work: set[ServedWork] = set()

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeResponse:
        """What the board is and offers."""
        del request
        with self._translated("Describe", context):
            found = self._conductor.describe()
            return pb.DescribeResponse(
                board=wire.board_as_pb(found.board),
                runtimes=[wire.runtime_as_pb(runtime) for runtime in found.runtimes],
                agent_version=__version__,
                protocol_version=PROTOCOL_VERSION,
                state=found.state.value,
                capabilities=[CAPABILITY, RESTART],
            )

    def AcquireLease(
        self, request: pb.AcquireLeaseRequest, context: grpc.ServicerContext
    ) -> pb.Lease:
        """Lease the board."""
        with self._translated("AcquireLease", context):
            granted = self._conductor.acquire(request.holder, request.ttl_ms, request.holder_id)
            return pb.Lease(token=granted.token, ttl_ms=granted.ttl_ms)

    def RenewLease(self, request: pb.RenewLeaseRequest, context: grpc.ServicerContext) -> pb.Lease:
        """Keep the lease."""
        with self._translated("RenewLease", context):
            granted = self._conductor.renew(request.token, request.ttl_ms)
            return pb.Lease(token=granted.token, ttl_ms=granted.ttl_ms)

    def ReleaseLease(
        self, request: pb.ReleaseLeaseRequest, context: grpc.ServicerContext
    ) -> pb.ReleaseLeaseResponse:
        """Give the board back."""
        with self._translated("ReleaseLease", context):
            self._conductor.release(request.token)
            return pb.ReleaseLeaseResponse()

    def GetBlob(self, request: pb.GetBlobRequest, context: grpc.ServicerContext) -> pb.BlobState:
        """How much of a blob has arrived."""
        with self._translated("GetBlob", context):
            return _as_pb(self._conductor.blobs.status(request.sha256))

    def UploadBlob(
        self, request_iterator: Iterator[pb.UploadBlobRequest], context: grpc.ServicerContext
    ) -> pb.BlobState:
        """Receive a blob, or the rest of one."""
        with self._translated("UploadBlob", context), self._slot(self._uploads, "uploads"):
            begun_s = time.monotonic()
            try:
                status = self._receive(request_iterator)
            except errors.LatfarmAgentError:
                self._metrics.uploaded("refused")
                raise
            except Exception:
                self._metrics.uploaded("cut")
                raise
            self._metrics.staged("upload", time.monotonic() - begun_s)
            return _as_pb(status)

    def Measure(
        self, request: pb.MeasureRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.MeasureEvent]:
        """Measure a model: stages, then the result."""
        return self._stream("Measure", request, context, profile=False)

    def Profile(
        self, request: pb.MeasureRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.MeasureEvent]:
        """Profile a model: stages, then the result with its layers."""
        return self._stream("Profile", request, context, profile=True)

    def ListResults(
        self, request: pb.ListResultsRequest, context: grpc.ServicerContext
    ) -> pb.ListResultsResponse:
        """Results that wait to be acknowledged: the oldest first, as many as fit a message."""
        with self._translated("ListResults", context):
            payloads = self._conductor.results(request.after)
            found = [pb.Result.FromString(payload) for payload in payloads]
            return pb.ListResultsResponse(results=found)

    def Acknowledge(
        self, request: pb.AcknowledgeRequest, context: grpc.ServicerContext
    ) -> pb.AcknowledgeResponse:
        """Drop results that the caller has stored."""
        with self._translated("Acknowledge", context):
            removed = self._conductor.acknowledge(list(request.request_ids))
            return pb.AcknowledgeResponse(removed=removed)

    def Work(
        self, request_iterator: Iterator[pb.ToBoard], context: grpc.ServicerContext
    ) -> Iterator[pb.FromBoard]:
        """Take orders and give results under one lease."""
        with self._translated("Work", context), self._slot(self._work_slots, "work streams"):
            work = ServedWork(self._conductor, self._keep)
            self._work.add(work)
            try:
                if not context.add_callback(work.abandon):
                    return  # the call has ended already
                yield from work.serve(request_iterator)
            finally:
                self._work.discard(work)

    def Restart(
        self, request: pb.RestartRequest, context: grpc.ServicerContext
    ) -> pb.RestartResponse:
        """Restart the workers, or the runtimes."""
        with self._translated("Restart", context), self._slot(self._restarts, "restarts"):
            return pb.RestartResponse(done=self._conductor.restart(request.token, request.part))

    def stop(self) -> None:
        """End the work streams, which would never end by themselves, after what they still say."""
        for work in tuple(self._work):
            work.stop()

    def _stream(
        self,
        method: str,
        request: pb.MeasureRequest,
        context: grpc.ServicerContext,
        *,
        profile: bool,
    ) -> Iterator[pb.MeasureEvent]:
        with self._translated(method, context), self._slot(self._listeners, "listeners"):
            live = self._conductor.measure(job_request(request, request.token, profile))
            # Without this, a listener would keep its thread after its client went away.
            context.add_callback(live.wake)
            for event in live.listen(context.is_active):
                yield wire.event_as_pb(event)

    def _receive(self, messages: Iterator[pb.UploadBlobRequest]) -> BlobStatus:
        first = next(messages, None)
        if first is None:
            raise errors.RequestError("an upload needs at least one message")
        self._conductor.check_token(first.token)
        blobs = self._conductor.blobs
        upload = blobs.begin(first.sha256, first.size_bytes, first.offset)
        if upload is None:
            self._metrics.uploaded("present")
            return blobs.status(first.sha256)
        with upload:
            self._write(upload, first.data)
            for message in messages:
                if message.sha256 not in ("", first.sha256):
                    raise errors.RequestError("one upload carries one blob")
                # Uploads under a lost lease must not compete with those of the next holder.
                self._conductor.check_token(first.token)
                self._write(upload, message.data)
            status = upload.finish()
        self._metrics.uploaded("complete" if status.complete else "partial")
        return status

    def _keep(self, sha256: str, data: bytes) -> None:
        """Keep a model that came with its order, unless it is here."""
        blobs = self._conductor.blobs
        here = blobs.status(sha256)
        upload = None if here.complete else blobs.begin(sha256, len(data), here.received_bytes)
        if upload is None:
            self._metrics.uploaded("present")
            return
        with upload:
            self._write(upload, data[here.received_bytes :])
            upload.finish()
        self._metrics.uploaded("complete")

    def _write(self, upload: Upload, data: bytes) -> None:
        if data:
            self._pace.spend(len(data))
            upload.write(data)
            self._metrics.received(len(data))

    @contextlib.contextmanager
    def _translated(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Turn our errors into statuses, and any other into INTERNAL without its details."""
        try:
            yield
        except errors.LatfarmAgentError as error:
            self._metrics.failed(method, error.code)
            logger.info("%s refused: %s", method, error)
            context.set_trailing_metadata(((ERROR_KEY, error.code),))
            context.abort(status_of(error), " ".join(str(error).split())[:MAX_DETAIL_CHARS])
        except Exception as error:
            if not context.is_active():
                # The client went away; grpc raises a bare RpcError from the request iterator.
                self._metrics.failed(method, "CLIENT_GONE")
                logger.info("%s ended: the client went away", method)
                raise
            self._metrics.failed(method, "INTERNAL")
            logger.exception("%s failed", method)
            text = f"the agent failed ({type(error).__name__}); its log tells more"
            context.abort(grpc.StatusCode.INTERNAL, text)

    @contextlib.contextmanager
    def _slot(self, slots: threading.BoundedSemaphore, name: str) -> Iterator[None]:
        if not slots.acquire(blocking=False):
            raise errors.BusyError(f"this board has too many {name} already; try again later")
        try:
            yield
        finally:
            slots.release()


def _as_pb(status: BlobStatus) -> pb.BlobState:
    return pb.BlobState(
        sha256=status.sha256, received_bytes=status.received_bytes, complete=status.complete
    )
