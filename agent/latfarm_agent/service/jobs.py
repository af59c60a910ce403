"""A measurement that is queued or running, and those who listen to it."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Callable, Iterator

from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent.session.messages import MeasurementJob

MAX_EVENTS = 1000  # a listener that comes late misses the oldest stages, never the result


class LiveJob:
    """One measurement's events, from its admission to its result, for any number of listeners.

    Args:
        job: its identity in the session.
        request: the first caller's message.
        profile: per-layer profile instead of a plain measurement.
        model_path: the blob, in use until the job ends.
    """

    def __init__(
        self, job: MeasurementJob, request: pb.MeasureRequest, profile: bool, model_path: Path
    ):
        self.job = job
        self.request = request
        self.profile = profile
        self.model_path = model_path
        self.admitted_s = time.monotonic()
        self.cancellation: tuple[str, str] | None = None
        self._sealed = False
        self._cancelled = threading.Event()
        self._condition = threading.Condition()
        self._events: deque[pb.MeasureEvent] = deque()
        self._dropped = 0
        self._done = False

    @staticmethod
    def finished(job: MeasurementJob, request: pb.MeasureRequest, result: pb.Result) -> LiveJob:
        """A job that was over before it was asked for: its only event is the result."""
        live = LiveJob(job, request, profile=False, model_path=Path())
        live.publish(pb.MeasureEvent(result=result))
        return live

    def cancel(self, code: str, message: str) -> None:
        """Ask the bench to stop; what it then answers is replaced by this error."""
        with self._condition:
            if not self._sealed and self.cancellation is None:
                self.cancellation = (code, message)
                self._cancelled.set()

    def cancelled(self) -> bool:
        """Whether to stop; asked by the bench."""
        return self._cancelled.is_set()

    def seal(self) -> tuple[str, str] | None:
        """The measurement has ended: a later cancellation is too late. Gives an earlier one."""
        with self._condition:
            self._sealed = True
            return self.cancellation

    def publish(self, event: pb.MeasureEvent) -> None:
        """Tell all listeners; nothing follows a result."""
        with self._condition:
            if self._done:
                return
            self._done = event.HasField("result")
            self._events.append(event)
            if len(self._events) > MAX_EVENTS:
                self._events.popleft()
                self._dropped += 1
            self._condition.notify_all()

    def listen(self, active: Callable[[], bool]) -> Iterator[pb.MeasureEvent]:
        """All events from the first on, until the result or until the caller is not active.

        Blocks between events; `wake` makes it look at `active` again.
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
                if event.HasField("result"):
                    return

    def wake(self) -> None:
        """A listener's `active` may have changed."""
        with self._condition:
            self._condition.notify_all()
