"""A measurement that is queued or running, and its listeners."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Callable, Iterator, Union

from latfarm_agent.bench.records import BenchRequest, BenchResult, BenchStage
from latfarm_agent.errors import RequestError
from latfarm_agent.files.blobs import check_sha256
from latfarm_agent.files.companions import check_companions
from latfarm_agent.session.messages import MeasurementJob

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""A request id: 1 to 128 printable ASCII characters without spaces."""

MAX_EVENTS = 1000
"""Events kept for each job: a late listener may miss the oldest stages, but never the result."""

JobEvent = Union[BenchStage, BenchResult]
"""What listeners hear: stages, and then exactly one result."""


@dataclass(frozen=True)
class JobRequest:
    """A measurement as a caller asks for it.

    Attributes:
        request: what the bench is asked.
        token: the caller's lease token.
        blob_sha256: name of the model's blob.
        profile: measure the times of kernels too.
        question: digest of everything above but the token; equal for equal questions.
    """

    request: BenchRequest
    token: int = 0
    blob_sha256: str = ""
    profile: bool = False
    question: str = ""

    @property
    def blobs(self) -> tuple[str, ...]:
        """Names of all blobs that it needs, each once: the model, then its companions."""
        return tuple(dict.fromkeys((self.blob_sha256, *self.request.companions.values())))

    def check(self) -> None:
        """Check what the caller named: the request and the files.

        Raises:
            RequestError: a malformed request id or name of a file.
            DigestError: a malformed hash.
        """
        if not REQUEST_ID.fullmatch(self.request.request_id):
            raise RequestError("request_id must be 1 to 128 printable ASCII characters, no spaces")
        check_sha256(self.blob_sha256)
        check_companions(self.request.companions, self.blob_sha256)


class LiveJob:
    """The events of one measurement, from its admission to its result, for all its listeners.

    Args:
        job: its identity in the session.
        asked: what the first caller asked.
        model_path: the blob, in use until the job ends.
    """

    def __init__(self, job: MeasurementJob, asked: JobRequest, model_path: Path) -> None:
        self.job = job
        self.asked = asked
        self.model_path = model_path
        self.admitted_s = time.monotonic()
        self.cancellation: tuple[str, str] | None = None
        self._sealed = False
        self._cancelled = threading.Event()
        self._condition = threading.Condition()
        self._events: deque[JobEvent] = deque()
        self._hearers: list[Callable[[JobEvent], None]] = []
        self._dropped = 0
        self._done = False

    @staticmethod
    def finished(job: MeasurementJob, result: BenchResult) -> LiveJob:
        """A job that was finished before it was asked for: its only event is the result."""
        live = LiveJob(job, JobRequest(BenchRequest()), Path())
        live.publish(result)
        return live

    def cancel(self, code: str, message: str) -> None:
        """Ask the bench to stop; its result is then replaced by this error."""
        with self._condition:
            if not self._sealed and self.cancellation is None:
                self.cancellation = (code, message)
                self._cancelled.set()

    @property
    def done(self) -> bool:
        """Whether its result was published."""
        return self._done

    def cancelled(self) -> bool:
        """Whether the bench is to stop."""
        return self._cancelled.is_set()

    def seal(self) -> tuple[str, str] | None:
        """End the time for cancellations; gives the code and message of one that came before."""
        with self._condition:
            self._sealed = True
            return self.cancellation

    def publish(self, event: JobEvent) -> None:
        """Send an event to all listeners; events after a result are dropped."""
        with self._condition:
            if self._done:
                return
            self._done = isinstance(event, BenchResult)
            self._events.append(event)
            if len(self._events) > MAX_EVENTS:
                self._events.popleft()
                self._dropped += 1
            self._condition.notify_all()
            for hear in self._hearers:
                hear(event)

    def subscribe(self, hear: Callable[[JobEvent], None]) -> None:
        """Have `hear` called with each event, in order: first with those that are kept already.

        `hear` is called by the thread of the event, and must neither wait nor call this job.
        """
        with self._condition:
            for event in self._events:
                hear(event)
            if not self._done:
                self._hearers.append(hear)

    def unsubscribe(self, hear: Callable[[JobEvent], None]) -> None:
        """Call `hear` no more; nothing happens if it was not to be called."""
        with self._condition:
            if hear in self._hearers:
                self._hearers.remove(hear)

    def listen(self, active: Callable[[], bool]) -> Iterator[JobEvent]:
        """All events from the first on, until the result or until the caller is not active.

        Blocks between events; after `wake` it calls `active` again.
        """
        position = 0
        while True:
            with self._condition:
                while position >= self._dropped + len(self._events) and active():
                    self._condition.wait()
                if not active():
                    return
                position = max(position, self._dropped)
                batch = list(islice(self._events, position - self._dropped, None))
                position += len(batch)
            for event in batch:
                yield event
                if isinstance(event, BenchResult):
                    return

    def wake(self) -> None:
        """Let all listeners call `active` again."""
        with self._condition:
            self._condition.notify_all()
