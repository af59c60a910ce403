"""The process that measures: a bench behind a Unix socket, with the devices and without a network.

It answers everybody who may open the socket; the permissions of the socket and its folder leave
that to the agent. Models arrive as open files and are copied, because runtimes read files by their
paths, and this process may not be allowed to read the agent's folders.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import Sequence

from latfarm_agent import wire
from latfarm_agent.bench.measuring import PARTS, MeasuringBench
from latfarm_agent.bench.records import BenchResult, BenchStage
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.files.folders import remove
from latfarm_agent.files.readiness import readable
from latfarm_agent.link.messages import MAX_PATH_BYTES, Link, LinkError, close_all, file_names
from latfarm_agent.worker.channel import Message

MOST_CONNECTIONS = 16
"""Most questions at once."""

_PREFIX = "model-"
"""Prefix of the folders with copied models."""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_QUESTION_S = 10.0
"""How long a connection may take to send its question."""

_MODE = 0o660
"""Permissions of the socket."""

logger = logging.getLogger(__name__)


class BenchServer:
    """Serves a bench, and ends it when the server is closed. Call `start` once.

    Args:
        bench: measures.
        path: the socket; an old one without a process is replaced.
        work_dir: folder that models are copied to.

    Raises:
        AgentUsageError: the socket cannot be made, or another process serves there.
    """

    def __init__(self, bench: MeasuringBench, path: Path, work_dir: Path) -> None:
        self._bench = bench
        self._path = Path(path).absolute()
        self._work_dir = Path(work_dir).absolute()
        self._closing = threading.Event()
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        for left in self._work_dir.glob(_PREFIX + "*"):
            remove(left)
        self._socket = _listen(self._path)
        self._made = self._path.stat().st_ino
        self._woken, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._accept, name="bench-accept", daemon=True)

    def start(self) -> None:
        """Answer questions, each in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Cancel what runs, end the bench, remove the socket. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._waker, b"!")
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._made:
                self._path.unlink()
        self._bench.close()
        for _ in range(MOST_CONNECTIONS):  # each thread releases its slot when it ends
            self._slots.acquire()
        os.close(self._woken)
        os.close(self._waker)

    def _accept(self) -> None:
        while not self._closing.is_set():
            if self._socket.fileno() not in readable([self._socket, self._woken]):
                continue
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                logger.warning("a connection broke: %s", error)
                continue
            if not self._slots.acquire(blocking=False):
                logger.warning("over %d questions at once: one is refused", MOST_CONNECTIONS)
                connection.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="bench-question", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # A model may have as many threads as this service may have, until it is ended.
                logger.warning("a question is refused: %s", error)
                self._slots.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        link = Link(connection)
        try:
            self._answer(link)
        except LinkError as error:
            logger.warning("a question came to nothing: %s", error)
        except Exception as error:
            logger.exception("a question failed")
            with contextlib.suppress(LinkError):
                link.send({"event": "failed", "message": f"{type(error).__name__}: {error}"})
        finally:
            link.close()
            self._slots.release()

    def _answer(self, link: Link) -> None:
        if not link.ready(_QUESTION_S):
            raise LinkError("nothing was asked")
        question, files = link.receive_with_files()
        try:
            if question is None:
                return
            if question.get("ask") == "describe":
                board, runtimes = self._bench.describe()
                packed = [wire.packed_runtime(runtime) for runtime in runtimes]
                told = {"event": "described", "board": wire.packed_board(board)}
                link.send({**told, "runtimes": packed})
            elif question.get("ask") == "measure" and files:
                result = self._measure(link, question, files)
                link.send({"event": "measured", "result": wire.packed_result(result)})
            elif question.get("ask") == "restart" and question.get("part") in PARTS:
                link.send({"event": "restarted", "done": self._bench.restart(question["part"])})
            else:
                raise LinkError("no description, measurement or restart is asked for")
        finally:
            close_all(files)

    def _measure(self, link: Link, question: Message, files: Sequence[int]) -> BenchResult:
        try:
            request = wire.unpacked_request(question.get("request"))
        except wire.MessageError as error:
            raise LinkError(str(error)) from error
        name = str(question.get("name"))
        names = file_names(request, name)
        if not all(_NAME.fullmatch(each) for each in names):
            raise LinkError("the model's name is not a file name")
        if len(names) != len(files):
            raise LinkError(f"{len(files)} files came with a model of {len(names)}")
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=str(self._work_dir)))
        model = folder / name
        try:
            try:
                for file, each in zip(files, names):
                    _copy(file, folder / each)
            except OSError as error:
                return BenchResult(
                    outcome="infrastructure_error",
                    error_code="DISK_FULL",
                    error_message=f"the model cannot be copied: {error.strerror or error}",
                )
            return self._bench.measure(
                request,
                model,
                profile=bool(question.get("profile")),
                on_stage=lambda stage: _tell(link, stage),
                cancelled=lambda: self._closing.is_set() or link.ended(),
            )
        finally:
            remove(folder)


def _tell(link: Link, stage: BenchStage) -> None:
    with contextlib.suppress(LinkError):  # if nobody listens any more, `cancelled` tells it
        link.send({"event": "stage", "stage": wire.packed_stage(stage)})


def _copy(file: int, target: Path) -> None:
    """Copy an open regular file; the copy is readable by this process and its workers only."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError("it is not a regular file")
    with os.fdopen(os.dup(file), "rb") as source, target.open("xb") as copy:
        source.seek(0)
        shutil.copyfileobj(source, copy, 1 << 20)


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(str(path))) > MAX_PATH_BYTES:
        raise AgentUsageError(
            f"--socket {path}: longer than {MAX_PATH_BYTES} bytes, the limit of a Unix socket"
        )
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as knock:
        if knock.connect_ex(str(path)) == 0:
            raise AgentUsageError(f"--socket {path}: another process serves there")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        # Made with its final permissions, so that nobody can connect before they are set.
        before = os.umask(0o777 & ~_MODE)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise AgentUsageError(f"--socket {path}: {error.strerror or error}") from error
    return listener
