"""A worker as the agent sees it: a child process that may crash, hang or leak without harm.

The agent talks to it over pipes and watches its patience; when the worker is silent for longer than
it announced, its keeper ends it with everything that it forked.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Mapping

from latfarm_agent.confinement import cgroups
from latfarm_agent.files.folders import remove
from latfarm_agent.worker import channel, replies
from latfarm_agent.worker.channel import ChannelError, Decoder, Message
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.guard import ProcessGuard, busy, family
from latfarm_agent.worker.launcher import Launcher
from latfarm_agent.worker.replies import ReplyError
from latfarm_agent.worker.start import WorkerStart, launch
from latfarm_agent.worker.talk import Talk

_POLL_S = 0.05
"""Longest wait before `cancelled` is asked again."""

_LOOK_S = 0.2
"""How often to check what the worker's processes use."""

_TAIL_BYTES = 4096
"""How much of what the worker printed last is kept for error messages."""

_SCRATCH = "scratch-"
"""Prefix of the folders in which models may write during one request."""

_READS_AT_ONCE = 16
"""How many times to read what the worker prints before looking at the clock again."""

END_TIMEOUT_S = 10.0
"""How long a worker may take to end."""

_ENDED_FROM_OUTSIDE = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""How a worker and its keeper end that somebody told to end. No fault of a model sends SIGTERM, but
systemd sends it to all processes of a service that it stops (systemd.kill(5))."""

_START_FAILURES = ("MODEL_CRASHED", "MODEL_TIMEOUT", "OUT_OF_MEMORY", "LIMIT_EXCEEDED")


class Worker:
    """The worker process of one runtime. Used by one thread at a time.

    It runs in a folder of its own, where its temporary files go too; the folder is removed with it.
    What it uses of the board is watched while it works. Processes that a request leaves running end
    with the request, and the worker with them.

    Args:
        launcher: starts the process.
        start: how to start it.
        cancelled: whether the start is no longer wanted.

    Raises:
        WorkerFailure: RUNTIME_MISSING when the runtime cannot be used here.
    """

    def __init__(
        self,
        launcher: Launcher,
        start: WorkerStart,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.requests = 0
        self._take_timeout_ms = start.take_timeout_ms
        self._bounds = start.bounds
        self._spoiled = False
        self._rss_bytes = 0
        self._oom_kills = _oom_kills()
        self._tail = bytearray()
        self._decoder = Decoder()
        self._folder, process, self._group = launch(launcher, start)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._requests_fd = process.stdin.fileno()
        self._replies_fd = process.stdout.fileno()
        self._errors_fd = process.stderr.fileno()
        os.set_blocking(self._replies_fd, False)
        os.set_blocking(self._errors_fd, False)
        try:
            self.hello = self._start(start.start_timeout_ms, cancelled)
        except WorkerFailure as failure:
            self.close()
            if failure.code in _START_FAILURES:
                raise WorkerFailure(
                    "RUNTIME_MISSING", f"the runtime does not load: {failure.message}"
                ) from failure
            raise
        except BaseException:
            self.close()
            raise

    @property
    def rss_bytes(self) -> int:
        """Resident memory after the last request, or at the start."""
        return self._rss_bytes or int(self.hello["rss_bytes"])

    @property
    def pid(self) -> int:
        """Process id of the worker's keeper."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None and not self._spoiled

    @property
    def busy(self) -> bool:
        """Whether something in it computes; nothing should while it waits for a request."""
        return busy(self.pid)

    def request(
        self,
        message: Message,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
    ) -> Message:
        """Send a request, pass on its events, and return its "done" message.

        Raises:
            WorkerFailure: the worker answered with a typed error (`alive`). Or it crashed, hung or
                was cancelled; then it has ended, and everything that it forked with it.
        """
        self.requests += 1
        self._read_errors()
        self._tail.clear()  # what earlier models printed does not explain this one
        guard = ProcessGuard(self.pid, self._bounds, (self._folder,))
        scratch = self._scratch()
        asked = dict(message, question=self.requests, scratch_dir=str(scratch))
        try:
            channel.send(self._requests_fd, asked)
        except OSError as error:
            raise self._crash() from error
        try:
            patience_ms = self._take_timeout_ms
            done = self._wait(patience_ms, on_event, cancelled, message["settings"], guard)
            done = self._checked(done, int(message["settings"]["sessions"]))
        except WorkerFailure:
            raise
        except BaseException:
            self.close()
            raise
        finally:
            # The agent removes this folder, as a worker that crashes removes nothing.
            remove(scratch)
            self._tidy()
        self._rss_bytes = int(done.get("rss_bytes", 0))
        return done

    def close(self) -> None:
        """End the process and all its descendants; returns when they have ended. Idempotent."""
        process = self._process
        if process.returncode is None and process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # The keeper does not end: it was stopped, or a process that it kills does not end.
                for pid in (process.pid, *family(process.pid)):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
        if self._group is not None:
            # Nothing is left in it, unless something has killed the keeper.
            cgroups.end(self._group)
        remove(self._folder)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _start(self, timeout_ms: float, cancelled: Callable[[], bool]) -> Message:
        guard = ProcessGuard(self.pid, self._bounds, (self._folder,))
        found = self._wait(timeout_ms, lambda _: None, cancelled, None, guard)
        try:
            return replies.hello(found)
        except ReplyError as error:
            raise WorkerFailure(
                "RUNTIME_MISSING", f"the runtime's description makes no sense: {error}"
            ) from error

    def _scratch(self) -> Path:
        """A new folder in which the model of a request may write, inside of the worker's own.

        Raises:
            WorkerFailure: an earlier model has made the worker's folder unusable.
        """
        try:
            return Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=str(self._folder)))
        except OSError as error:
            self.close()
            raise WorkerFailure(
                "MODEL_CRASHED", f"the worker's folder is no longer usable: {error.strerror}"
            ) from error

    def _checked(self, done: Message, sessions: int) -> Message:
        try:
            return replies.done(done, sessions)
        except ReplyError as error:
            self.close()
            raise WorkerFailure(
                "MODEL_FAILED", f"the runtime's answer makes no sense: {error}"
            ) from error

    def _tidy(self) -> None:
        """End the worker if processes of a request still run, as they would disturb the next."""
        if self._process.poll() is None and len(family(self.pid)) > 1:
            self.close()

    def _wait(
        self,
        patience_ms: float,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
        settings: Mapping[str, Any] | None,
        guard: ProcessGuard,
    ) -> Message:
        """Wait for the answer to the current request; `settings` None: for the first hello."""
        talk = Talk(self.requests, patience_ms, settings)
        looked_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies_fd, selectors.EVENT_READ)
            selector.register(self._errors_fd, selectors.EVENT_READ)
            while True:
                now_s = time.monotonic()
                if now_s >= talk.deadline_s:
                    self.close()
                    raise WorkerFailure(talk.late_code, f"{talk.late_message}{self._said()}")
                if now_s - looked_s >= _LOOK_S:
                    looked_s = now_s
                    self._judge(guard, talk)
                left_s = talk.deadline_s - now_s
                ready = {key.fd for key, _ in selector.select(min(left_s, _POLL_S))}
                if self._errors_fd in ready and not self._read_errors():
                    selector.unregister(self._errors_fd)
                if self._replies_fd in ready:
                    answer = self._read_replies(talk, on_event)
                    if answer is not None:
                        return answer
                if cancelled():
                    self.close()
                    raise WorkerFailure("CANCELLED", f"cancelled while {talk.doing}")

    def _judge(self, guard: ProcessGuard, talk: Talk) -> None:
        excess = guard.excess()
        if excess is not None:
            self.close()
            raise WorkerFailure(
                excess.code, f"ended while {talk.doing}: {excess.message}{self._said()}"
            )

    def _read_replies(self, talk: Talk, on_event: Callable[[Message], None]) -> Message | None:
        """Read what the worker sent; gives the answer if it is there."""
        data = os.read(self._replies_fd, 1 << 16)
        if not data:
            raise self._crash()
        try:
            for message in self._decoder.feed(data):
                talk.hear(message)
                if message["event"] in ("done", "error"):
                    self._spoiled = bool(message.get("lost"))
                if message["event"] == "done":
                    return message
                if message["event"] == "error":
                    code = replies.failure_code(message.get("code"))
                    raise WorkerFailure(code, str(message.get("message")), alive=True)
                if message["event"] == "stage":
                    on_event(message)
        except (ChannelError, ReplyError) as error:
            self.close()
            raise WorkerFailure(
                "MODEL_CRASHED", f"the worker's pipe was corrupted: {error}"
            ) from error
        return None

    def _read_errors(self) -> bool:
        """Read some of what the worker printed, and keep the end of it; False: the stream ended.

        Not everything is read at once: a runtime that prints without end must not keep the agent
        from looking at the clock.
        """
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._errors_fd, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._tail += data
            del self._tail[:-_TAIL_BYTES]
        return True

    def _crash(self) -> WorkerFailure:
        """The pipe was closed during a request: find out how the process ended."""
        try:
            # The keeper first ends what the worker left running, and then ends as the worker did.
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.close()
            return WorkerFailure(
                "MODEL_CRASHED", f"the worker closed its pipe and went on{self._said()}"
            )
        self._read_errors()
        code = self._process.returncode
        said = self._said()
        self.close()
        if code in _ENDED_FROM_OUTSIDE:
            told = "the worker was told to end by SIGTERM, as when the service that runs it stops"
            return WorkerFailure("WORKER_FAILED", f"{told}{said}")
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {_signal_name(-code)}"
        text = bytes(self._tail).decode(errors="replace")
        memory = "bad_alloc" in text or "MemoryError" in text or "Cannot allocate memory" in text
        if memory or (code == -signal.SIGKILL and _oom_kills() != self._oom_kills):
            return WorkerFailure("OUT_OF_MEMORY", f"memory ran out, worker ended by {how}{said}")
        return WorkerFailure("MODEL_CRASHED", f"the worker ended by {how}{said}")

    def _said(self) -> str:
        self._read_errors()
        lines = bytes(self._tail).decode(errors="replace").strip().splitlines()
        return "; it printed: " + " | ".join(lines[-3:])[-600:] if lines else ""


def _oom_kills() -> int | None:
    """How many processes the kernel has killed for memory since boot; None: it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
