"""A bench whose measuring is done by another process, behind a Unix socket.

This process has the network and no devices; the other one has the devices and no network. As models
run in the other process, everything that comes from it is checked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, TypeVar

from latfarm_protos.error_codes import OUTCOMES

from latfarm_agent import wire
from latfarm_agent.bench.records import BenchRequest, BenchResult, BenchStage, Offer
from latfarm_agent.errors import AgentUsageError, StateError
from latfarm_agent.link.messages import (
    MAX_PATH_BYTES,
    Link,
    LinkError,
    NotTakenError,
    close_all,
    file_names,
)
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.replies import printable

START_TIMEOUT_MS = 180_000.0
"""How long the other process may take to start and to find its runtimes."""

RETURN_TIMEOUT_MS = 30_000.0
"""How long the other process may be away before systemd, for example, has started it again."""

_RETRY_S = 0.1
"""How long to wait before another attempt to connect."""

_POLL_S = 0.1
"""How often to ask whether the measurement is still wanted."""

_MOST_RUNTIMES = 200
"""Most runtimes in a description that is believed."""

_FAILED = "WORKER_FAILED"
_CANCELLED = "CANCELLED"
_Read = TypeVar("_Read")

logger = logging.getLogger(__name__)


class RemoteBench:
    """Asks the process behind a socket; see `measuring.MeasuringBench`. Thread-safe.

    Args:
        path: the socket, which may appear later.
        start_timeout_ms: how long the first description may take.
        return_timeout_ms: how long later questions wait for the process to return.

    Raises:
        AgentUsageError: on construction, the path is too long for a socket.
    """

    def __init__(
        self,
        path: Path,
        *,
        start_timeout_ms: float = START_TIMEOUT_MS,
        return_timeout_ms: float = RETURN_TIMEOUT_MS,
    ) -> None:
        self._path = str(Path(path).absolute())
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise AgentUsageError(
                f"--bench {path}: longer than {MAX_PATH_BYTES} bytes, the limit of a Unix socket"
            )
        self._start_timeout_ms = start_timeout_ms
        self._return_timeout_ms = return_timeout_ms
        self._closing = threading.Event()
        self._known: Offer | None = None

    def describe(self) -> Offer:
        """The board and its runtimes; while the other process is away, its last description.

        Raises:
            StateError: it has not described anything yet.
        """
        first = self._known is None
        timeout_ms = self._start_timeout_ms if first else self._return_timeout_ms
        deadline_s = time.monotonic() + timeout_ms / 1e3
        try:
            with contextlib.closing(self._connect(deadline_s)) as link:
                link.send({"ask": "describe"})
                answer = self._answer(link, lambda: time.monotonic() >= deadline_s)
            self._known = _description(answer)
        except LinkError as error:
            if self._known is None:
                raise StateError(f"nothing measures behind {self._path}: {error}") from error
            logger.warning("%s: %s", self._path, error)
        assert self._known is not None
        return self._known

    def measure(
        self,
        request: BenchRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[BenchStage], None],
        cancelled: Callable[[], bool],
    ) -> BenchResult:
        """Let the other process measure. If it ends, or if this one does, that is a result too.

        A question that a process did not take before it ended is asked again when it is back.
        """

        def stop() -> bool:
            return self._closing.is_set() or cancelled()

        deadline_s = time.monotonic() + self._return_timeout_ms / 1e3
        files: list[int] = []
        try:
            for name in file_names(request, model_path.name):
                files.append(os.open(str(model_path.parent / name), os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            close_all(files)
            text = f"the model is not here: {name}: {error.strerror}"
            return _failure("BLOB_MISSING", text)
        try:
            question: Message = {
                "ask": "measure",
                "request": wire.packed_request(request),
                "name": model_path.name,
                "profile": profile,
            }
            while True:
                with contextlib.closing(self._connect(deadline_s, stop)) as link:
                    try:
                        link.send(question, files)
                        return _result(self._answer(link, stop, on_stage))
                    except NotTakenError as error:
                        # It was being closed, and did not begin: ask again once it is back.
                        if time.monotonic() >= deadline_s:
                            raise
                        logger.info("%s: asked again: %s", self._path, error)
                self._closing.wait(_RETRY_S)
        except LinkError as error:
            if stop():
                return _failure(_CANCELLED, "cancelled")
            return _failure(_FAILED, f"the service that measures: {error}")
        finally:
            close_all(files)

    def restart(self, part: str) -> str:
        """Let the other process restart a part; see `MeasuringBench.restart`.

        Raises:
            StateError: it did not do it in time, or is too old for that.
        """
        deadline_s = time.monotonic() + self._start_timeout_ms / 1e3
        try:
            with contextlib.closing(self._connect(deadline_s)) as link:
                link.send({"ask": "restart", "part": part})
                answer = self._answer(link, lambda: time.monotonic() >= deadline_s)
        except LinkError as error:
            raise StateError(f"the service that measures did not restart: {error}") from error
        if answer.get("event") != "restarted":
            text = printable(answer.get("message", ""), 400)
            raise StateError(f"the service that measures did not restart: {text}")
        return printable(answer.get("done", ""), 400)

    def close(self) -> None:
        """Cancel what runs; the other process continues. Idempotent."""
        self._closing.set()

    def _connect(self, deadline_s: float, stop: Callable[[], bool] = lambda: False) -> Link:
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._path)
            except OSError as error:
                connection.close()
                if stop() or self._closing.is_set() or time.monotonic() >= deadline_s:
                    raise LinkError(f"not there: {error.strerror or error}") from error
                self._closing.wait(_RETRY_S)
                continue
            return Link(connection)

    def _answer(
        self,
        link: Link,
        stop: Callable[[], bool],
        on_stage: Callable[[BenchStage], None] = lambda _: None,
    ) -> Message:
        """The last message of a question; stages before it are passed to `on_stage`.

        Raises:
            LinkError: there is no such message, or it is no longer wanted.
        """
        while True:
            if stop():
                raise LinkError("no longer waited for")
            if not link.ready(_POLL_S):
                continue
            message = link.receive()
            if message is None:
                raise LinkError("it ended before it answered")
            if message.get("event") != "stage":
                return message
            on_stage(_stage(message))


def _stage(message: Message) -> BenchStage:
    stage = _unpacked(wire.unpacked_stage, message.get("stage"))
    return replace(stage, name=printable(stage.name, 40))


def _description(message: Message) -> Offer:
    runtimes = message.get("runtimes")
    if message.get("event") != "described" or not isinstance(runtimes, list):
        raise LinkError(f"no description: {printable(message.get('message', ''), 400)}")
    if len(runtimes) > _MOST_RUNTIMES:
        raise LinkError(f"{len(runtimes)} runtimes")
    board = _unpacked(wire.unpacked_board, message.get("board"))
    return board, [_unpacked(wire.unpacked_runtime, each) for each in runtimes]


def _result(message: Message) -> BenchResult:
    if message.get("event") != "measured":
        raise LinkError(f"no result: {printable(message.get('message', ''), 400)}")
    result = _unpacked(wire.unpacked_result, message.get("result"))
    if result.outcome not in OUTCOMES:
        raise LinkError(f"an outcome {printable(result.outcome, 40)!r}")
    result.error_message = printable(result.error_message)
    return result


def _unpacked(read: Callable[[object], _Read], text: object) -> _Read:
    try:
        return read(text)
    except wire.MessageError as error:
        raise LinkError(str(error)) from error


def _failure(code: str, message: str) -> BenchResult:
    return BenchResult(
        outcome="infrastructure_error",
        error_code=code,
        error_message=message,
        measured_at_s=time.time(),
        protocol_version=0,
    )
