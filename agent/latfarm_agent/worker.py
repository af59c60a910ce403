"""A worker as the agent sees it: a child process that may crash, hang or leak without harm.

The agent talks to it over pipes and watches its patience; when the worker is silent for longer than
it announced, its keeper ends it with everything that it forked. All workers are started by one
thread that lives as long as the agent: the kernel ties the parent-death signal to the thread that
forked, not to the process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Callable

from latfarm_agent import channel
from latfarm_agent.channel import ChannelError, Decoder, Message
from latfarm_agent.worker_main import Config

START_TIMEOUT_MS = 120_000.0
_POLL_S = 0.05
_TAIL_BYTES = 4096
_END_TIMEOUT_S = 10.0


class WorkerFailure(Exception):
    """A request did not end well; the codes are those of a measurement's result.

    The worker is gone, unless `alive`: then it answered with a typed error and goes on.
    """

    def __init__(self, code: str, message: str, *, alive: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.alive = alive


class Launcher:
    """The one thread that starts processes. Thread-safe."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[tuple[Callable[[], object], Future[object]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name="worker-launcher", daemon=True)
        self._thread.start()

    def popen(
        self, arguments: list[str], environment: dict[str, str], directory: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process with pipes on all three standard descriptors.

        Raises:
            OSError: it cannot be started.
        """
        done: Future[object] = Future()

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=str(directory),
                env=environment,
                bufsize=0,
            )

        self._tasks.put((start, done))
        started = done.result()
        assert isinstance(started, subprocess.Popen)
        return started

    def close(self) -> None:
        """End the thread, and with it every worker that is left. Idempotent."""
        self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            work, done = task
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)


class Worker:
    """One runtime's worker process. Used by one thread at a time.

    `python`: an interpreter with an environment of its own, which need not hold this distribution;
    empty: the agent's.

    Raises:
        WorkerFailure: on construction, RUNTIME_MISSING when the runtime cannot be used here.
    """

    def __init__(
        self,
        launcher: Launcher,
        config: Config,
        directory: Path,
        *,
        python: str = "",
        start_timeout_ms: float = START_TIMEOUT_MS,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.requests = 0
        self._rss_bytes = 0
        self._oom_kills = _oom_kills()
        self._tail = bytearray()
        self._decoder = Decoder()
        arguments = [python or sys.executable, "-m", "latfarm_agent.worker_main", config.dumps()]
        environment = dict(os.environ)
        if python:
            environment["PYTHONPATH"] = str(_only_the_agent(directory))
        # A runtime's own thread pools obey the platform's setting, not the host's core count.
        environment["OMP_NUM_THREADS"] = str(config.options.get("threads", 1))
        # The probe tells of one core: numpy's own matrix product must not spread over several.
        environment["OPENBLAS_NUM_THREADS"] = "1"
        environment["PYTHONUNBUFFERED"] = "1"
        if environment.get("PYTHONPATH"):
            # The worker runs in another directory: relative entries would point elsewhere.
            entries = environment["PYTHONPATH"].split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(e).absolute()) for e in entries)
        try:
            self._process = launcher.popen(arguments, environment, directory)
        except OSError as error:
            raise WorkerFailure("WORKER_FAILED", f"no worker could be started: {error}") from error
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._requests_fd = process.stdin.fileno()
        self._replies_fd = process.stdout.fileno()
        self._errors_fd = process.stderr.fileno()
        os.set_blocking(self._replies_fd, False)
        os.set_blocking(self._errors_fd, False)
        try:
            self.hello = self._wait(start_timeout_ms, lambda _: None, cancelled, "starting")
        except WorkerFailure as failure:
            self.close()
            if failure.code in ("MODEL_CRASHED", "MODEL_TIMEOUT", "OUT_OF_MEMORY"):
                raise WorkerFailure(
                    "RUNTIME_MISSING", f"the runtime does not load: {failure.message}"
                ) from failure
            raise
        except BaseException:
            self.close()
            raise

    @property
    def rss_bytes(self) -> int:
        """Resident memory after its last request, or at its start."""
        return self._rss_bytes or int(self.hello["rss_bytes"])

    @property
    def pid(self) -> int:
        """Pid of the worker's keeper: its ancestor."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None

    def request(
        self,
        message: Message,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
        patience_ms: float,
    ) -> Message:
        """Send a request, hand on its events, return its "done" message.

        Raises:
            WorkerFailure: a typed error (`alive`), or the worker crashed, hung or was cancelled:
                then it is gone, and whatever it forked with it.
        """
        self.requests += 1
        try:
            channel.send(self._requests_fd, message)
        except OSError as error:
            raise self._crash() from error
        try:
            done = self._wait(patience_ms, on_event, cancelled, "loading")
        except WorkerFailure:
            raise
        except BaseException:
            self.close()
            raise
        self._rss_bytes = int(done.get("rss_bytes", 0))
        return done

    def close(self) -> None:
        """End the process and all its descendants; returns when they are gone. Idempotent."""
        process = self._process
        if process.returncode is None and process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _wait(
        self,
        patience_ms: float,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
        doing: str,
    ) -> Message:
        deadline = time.monotonic() + patience_ms / 1e3
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies_fd, selectors.EVENT_READ)
            selector.register(self._errors_fd, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    self.close()
                    raise WorkerFailure(
                        "MODEL_TIMEOUT",
                        f"no answer within {patience_ms:.0f} ms while {doing}{self._said()}",
                    )
                ready = {key.fd for key, _ in selector.select(min(left, _POLL_S))}
                if self._errors_fd in ready and not self._drain():
                    selector.unregister(self._errors_fd)
                if self._replies_fd in ready:
                    data = os.read(self._replies_fd, 1 << 16)
                    if not data:
                        raise self._crash()
                    try:
                        messages = self._decoder.feed(data)
                    except ChannelError as error:
                        self.close()
                        raise WorkerFailure(
                            "MODEL_CRASHED", f"the worker's pipe was corrupted: {error}"
                        ) from error
                    for message in messages:
                        if message["event"] == "done":
                            return message
                        if message["event"] == "error":
                            raise WorkerFailure(message["code"], message["message"], alive=True)
                        if message["event"] == "stage":
                            patience_ms, doing = message["patience_ms"], message["name"]
                            on_event(message)
                        deadline = time.monotonic() + patience_ms / 1e3
                if cancelled():
                    self.close()
                    raise WorkerFailure("CANCELLED", f"cancelled while {doing}")

    def _drain(self) -> bool:
        """Take what the worker printed, keep the end of it; False at the stream's end."""
        while True:
            try:
                data = os.read(self._errors_fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._tail += data
            del self._tail[:-_TAIL_BYTES]
            if len(data) < 1 << 16:
                return True

    def _crash(self) -> WorkerFailure:
        """The pipe closed under a request: find out how the process ended."""
        try:
            # The keeper first ends what the worker left behind, then ends the same way.
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.close()
        self._drain()
        code = self._process.returncode
        said = self._said()
        self.close()
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {_signal_name(-code)}"
        text = bytes(self._tail).decode(errors="replace")
        memory = "bad_alloc" in text or "MemoryError" in text or "Cannot allocate memory" in text
        if memory or (code == -signal.SIGKILL and _oom_kills() != self._oom_kills):
            return WorkerFailure("OUT_OF_MEMORY", f"memory ran out, worker ended by {how}{said}")
        return WorkerFailure("MODEL_CRASHED", f"the worker ended by {how}{said}")

    def _said(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._drain()
        lines = bytes(self._tail).decode(errors="replace").strip().splitlines()
        return "; it printed: " + " | ".join(lines[-3:])[-600:] if lines else ""


def _only_the_agent(directory: Path) -> Path:
    """A folder from which another interpreter can import this distribution and nothing else.

    The folder that this distribution lies in may hold libraries built for another Python.
    """
    here = Path(__file__).absolute().parent
    folder = directory / "import"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / here.name
    if not link.is_symlink() or os.readlink(str(link)) != str(here):
        made = folder / f".{here.name}.{os.getpid()}.{threading.get_ident()}"
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        made.symlink_to(here)
        made.replace(link)
    return folder


def _oom_kills() -> int | None:
    """How many processes the kernel has ended for memory since boot; None where it does not say."""
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
