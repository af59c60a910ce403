"""One `Work` stream of a controller: its orders become jobs, and their results go back on it.

A thread reads what the controller sends, and gRPC's thread of the call sends what waits in the
outbox. Results come from the thread that measures. They are in the spool before they are sent, so
the stream may break, or be ended because its reader is too slow, at any time: the same order on the
next stream finds the running job or the finished result.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import Callable, Iterator

import grpc
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent import wire
from latfarm_agent.bench.records import BenchStage
from latfarm_agent.errors import LatfarmAgentError, LeaseLostError, RequestError, StoppingError
from latfarm_agent.service.conductor import Conductor
from latfarm_agent.service.jobs import JobEvent, JobRequest, LiveJob
from latfarm_agent.service.outbox import Outbox

CAPABILITY = "work-stream"
"""What `Describe` calls this stream."""

MOST_INLINE_BYTES = 64 << 10
"""Size of the largest model in an order; larger ones are uploaded before."""

OPENING_S = 30.0
"""How long a stream may be without its first message, in seconds."""

LONGEST_WAIT_S = 60.0
"""Longest pause between two looks at the lease of a stream, in seconds."""

logger = logging.getLogger(__name__)


def job_request(request: pb.MeasureRequest, token: int, profile: bool) -> JobRequest:
    """What a message asks under a lease; equal questions are equal on every way that they come."""
    return JobRequest(
        wire.request_from_pb(request),
        token,
        request.blob_sha256,
        profile,
        wire.question_of(request, profile),
    )


class ServedWork:
    """One stream, from its call to its end.

    Args:
        conductor: measures.
        receive: keeps a model, given its sha256 and its bytes.
        opening_s: how long the first message may take, in seconds.
    """

    def __init__(
        self,
        conductor: Conductor,
        receive: Callable[[str, bytes], None],
        opening_s: float = OPENING_S,
    ) -> None:
        self._conductor = conductor
        self._receive = receive
        self._outbox: Outbox[pb.FromBoard] = Outbox()
        self._open_until_s = time.monotonic() + opening_s
        self._token = 0
        self._watched = False
        self._lock = threading.Lock()
        self._ended = False
        self._heard: list[tuple[LiveJob, Callable[[JobEvent], None]]] = []

    def serve(self, messages: Iterator[pb.ToBoard]) -> Iterator[pb.FromBoard]:
        """What the board says, until the stream ends.

        Args:
            messages: what the controller says; read by another thread.

        Raises:
            LeaseLostError: the lease has ended, for example because no renewal came in time.
            RequestError: the controller sent what is no message, or nothing at all.
            BusyError: the controller does not read.
            StoppingError: the agent is shutting down.
        """
        threading.Thread(target=self._read, args=(messages,), name="work", daemon=True).start()
        try:
            while True:
                message = self._outbox.take(0.0)
                if message is None and not self._outbox.ended:
                    # The lease is looked at when nothing waits, so that results are sent first.
                    message = self._outbox.take(self._patience_s())
                if message is not None:
                    yield message
                elif self._outbox.ended:
                    return
        finally:
            self._leave()

    def stop(self) -> None:
        """End the stream after what waits in it, because the agent shuts down."""
        self._outbox.end(StoppingError("the agent is shutting down"))

    def abandon(self) -> None:
        """End the stream at once, because its controller is gone."""
        self._outbox.abandon()

    def _patience_s(self) -> float:
        """How long to wait for the next message before the lease is looked at, in seconds.

        Raises:
            LeaseLostError: the lease of the stream has ended.
            RequestError: the first message did not come.
        """
        if self._token:
            return min(self._conductor.lease_left_s(self._token) + 0.01, LONGEST_WAIT_S)
        left_s = self._open_until_s - time.monotonic()
        if left_s <= 0:
            raise RequestError("the stream was not opened: its first message must have a token")
        return min(left_s, 1.0)

    def _read(self, messages: Iterator[pb.ToBoard]) -> None:
        try:
            for message in messages:
                self._obey(message)
            self._outbox.end()  # the controller has nothing more to say
        except grpc.RpcError:
            self._outbox.abandon()  # gRPC tells only here that the call has ended
        except LatfarmAgentError as error:
            self._outbox.end(error)
        except Exception as error:
            logger.exception("a message of a work stream was not understood")
            self._outbox.end(error)

    def _obey(self, message: pb.ToBoard) -> None:
        """Do what one message says.

        Raises:
            LeaseLostError: its token is not the token of the lease now.
        """
        self._conductor.check_token(message.token)
        self._token = message.token
        if message.acknowledged:
            self._conductor.acknowledge(list(message.acknowledged))
        kind = message.WhichOneof("message")
        if kind == "order":
            self._order(message.order, message.token)
        elif kind == "withdrawal":
            self._conductor.withdraw(message.token, message.withdrawal.request_id)
        elif kind == "renewal":
            granted = self._conductor.renew(message.token, message.renewal.ttl_ms)
            lease = pb.Lease(token=granted.token, ttl_ms=granted.ttl_ms)
            self._send(pb.FromBoard(lease=lease))
        elif kind == "watch":
            self._watched = message.watch.stages

    def _order(self, order: pb.Order, token: int) -> None:
        request = order.request
        try:
            if order.model:
                if len(order.model) > MOST_INLINE_BYTES:
                    raise RequestError(
                        f"an order has a model of at most {MOST_INLINE_BYTES} bytes: upload it"
                    )
                self._receive(request.blob_sha256, order.model)
            live = self._conductor.measure(job_request(request, token, order.profile))
        except LeaseLostError:
            raise
        except LatfarmAgentError as error:
            logger.info("the order %s was refused: %s", request.request_id[:128], error)
            refusal = pb.Refusal(
                request_id=request.request_id, error_code=error.code, error_message=str(error)
            )
            self._send(pb.FromBoard(refusal=refusal))
            return
        self._listen(live)

    def _listen(self, live: LiveJob) -> None:
        hear = functools.partial(self._hear, live.job.request_id)
        with self._lock:
            if self._ended:
                return
            self._heard = [(job, heard) for job, heard in self._heard if not job.done]
            self._heard.append((live, hear))
        live.subscribe(hear)

    def _hear(self, request_id: str, event: JobEvent) -> None:
        if not isinstance(event, BenchStage):
            self._send(pb.FromBoard(result=wire.result_as_pb(event)))
        elif self._watched:
            stage = pb.OrderStage(request_id=request_id, stage=wire.stage_as_pb(event))
            self._send(pb.FromBoard(stage=stage), vital=False)

    def _send(self, message: pb.FromBoard, *, vital: bool = True) -> None:
        self._outbox.put(message, message.ByteSize(), vital=vital)

    def _leave(self) -> None:
        """Hear no more of the jobs, which go on."""
        self._outbox.abandon()
        with self._lock:
            self._ended = True
            heard, self._heard = self._heard, []
        for live, hear in heard:
            live.unsubscribe(hear)
