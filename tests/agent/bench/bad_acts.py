"""Bad acts of a runtime; the model file says which one, and when.

Stands alone: workers import it from a folder of the test.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

import bad_reach  # type: ignore[import-not-found]
import bad_writes  # type: ignore[import-not-found]
from bad_writes import MB, forever, held, in_thread
from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)

# Crashes and ends.


def segfault(job: Job) -> None:
    ctypes.string_at(0)


def segfault_in_thread(job: Job) -> None:
    in_thread(lambda: ctypes.string_at(0))
    forever()


def abort(job: Job) -> None:
    os.abort()


def leave(job: Job) -> None:
    os._exit(0)


def system_exit(job: Job) -> None:
    sys.exit(7)


def interrupt(job: Job) -> None:
    raise KeyboardInterrupt


def close_all(job: Job) -> None:
    os.closerange(0, 256)


def close_all_and_stay(job: Job) -> None:
    os.closerange(0, 256)
    forever()


# Hangs.


def hang(job: Job) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    forever()


def hang_with_gil(job: Job) -> None:
    ctypes.PyDLL(None).pause()


def spin(job: Job) -> None:
    while True:
        pass


def stop_itself(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_the_keeper(job: Job) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    forever()


# Acts that continue after the answer.


def leave_a_spinner(job: Job) -> None:
    in_thread(lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 31 - 1))


def hold_the_gil_afterwards(job: Job) -> None:
    def wait_and_hold() -> None:
        while job.scratch_dir.exists():  # the agent removes it once it has the answer
            time.sleep(0.001)
        ctypes.PyDLL(None).pause()

    in_thread(wait_and_hold)


# Memory.


def take_at_once(job: Job) -> None:
    held.append(bytearray(4 << 30))


def take_slowly(job: Job) -> None:
    held.append(bytearray(b"\1") * (128 * MB))


def take_shared(job: Job) -> None:
    for _ in range(64):
        block = mmap.mmap(-1, 64 * MB)
        block.write(b"\1" * len(block))
        held.append(block)
    forever()


def take_in_children(job: Job) -> None:
    for _ in range(4):
        if os.fork() == 0:
            held.append(bytearray(b"\1") * (300 * MB))
            forever()
    forever()


def share_with_children(job: Job) -> None:
    """Not too much memory, as children share their parent's pages."""
    held.append(bytearray(b"\1") * (300 * MB))
    for _ in range(3):
        if os.fork() == 0:
            forever()
    time.sleep(0.5)  # for the agent to look at it


# Processes.


def fork_on(job: Job) -> None:
    while True:
        if os.fork() == 0:
            forever()


def fork_daemons(job: Job) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            forever()


def fork_by_two(job: Job) -> None:
    for _ in range(8):
        os.fork()
    forever()


def start_threads(job: Job) -> None:
    threading.stack_size(64 * 1024)
    while True:
        in_thread(forever_asleep)


def forever_asleep() -> None:
    threading.Event().wait()


# Changes of the process's state, and a report of that state.


def meddle(job: Job) -> None:
    os.chdir("/")
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 3600.0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.nice(3)
    os.environ["OMP_NUM_THREADS"] = "99"
    os.environ.pop("TMPDIR", None)


def tell(job: Job) -> str:
    mask = os.umask(0)
    os.umask(mask)
    told = {
        "pid": os.getpid(),
        "folder": Path.cwd().name[:7],
        "umask": mask,
        "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "blocked": signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "omp": os.environ["OMP_NUM_THREADS"],
        "temporary": Path.cwd() in Path(tempfile.gettempdir()).parents,
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
    }
    return json.dumps(told)


def nothing(job: Job) -> None:
    pass


# Exceptions that are not proper failures.


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no words")


def raise_unspeakable(job: Job) -> None:
    raise Unspeakable


def raise_long(job: Job) -> None:
    raise ValueError("\x1b[2J\udc80" + "x" * (20 * MB))


def raise_unknown_code(job: Job) -> None:
    raise RuntimeFailure(None, "a failure of no kind")  # type: ignore[arg-type]


def raise_agents_code(job: Job) -> None:
    raise RuntimeFailure("CANCELLED", "who cancelled?")


class NoNumber:
    pass


ANSWERS: dict[str, Any] = {
    "nan": math.nan,
    "negative": -1.0,
    "infinite": math.inf,
    "huge": 1e300,
    "text": "2.5",
    "object": NoNumber(),
    "bool": True,
    "no layers": None,
    "nan layer": [LayerTime("a", "Conv", math.nan)],
    "negative layer": [LayerTime("a", "Conv", -1.0)],
    "nameless layer": [LayerTime(None, "Conv", 1.0)],  # type: ignore[arg-type]
    "no layer": [{"name": "a"}],
    "layer of objects": [LayerTime("a", "Conv", NoNumber())],  # type: ignore[arg-type]
}
"""Wrong answers of `run` (numbers) and `profile` (layers)."""


def act_named(name: str) -> Callable[[Job], Any]:
    """An act of this module, of `bad_writes` or of `bad_reach`."""
    for found in (globals(), vars(bad_writes), vars(bad_reach)):
        if name in found:
            act: Callable[[Job], Any] = found[name]
            return act
    raise LookupError(name)


class Acts:
    """Does what the model file says: {"at": "run", "act": "segfault"}, or "answer" for "act"."""

    def __init__(self, threads: int = 1) -> None:
        self._job: Job | None = None
        self._plan: dict[str, str] = {}

    def describe(self) -> Description:
        return Description("1.0", (PlatformSpec("acts1.0-fp32-1t", "any", "fp32"),))

    def prepare(self, job: Job) -> Prepared:
        self._plan = json.loads(job.model_path.read_text())
        self._job = job
        told = self._do("prepare")
        conditions = {"told": told} if isinstance(told, str) else {}
        clock = self._plan.get("clock", "none")
        return Prepared(cpu_clock=clock, settles=False, conditions=conditions)

    def run(self) -> Any:
        return self._do("run")

    def profile(self, job: Job, runs: int) -> Any:
        self._plan = json.loads(job.model_path.read_text())
        self._job = job
        return self._do("profile") or ([] if "answer" not in self._plan else None)

    def _do(self, at: str) -> Any:
        if self._plan.get("at") != at:
            return None
        if "answer" in self._plan:
            return ANSWERS[self._plan["answer"]]
        assert self._job is not None
        return act_named(self._plan["act"])(self._job)


class Steady:
    """A runtime that works, with a known answer."""

    def __init__(self, threads: int = 1) -> None:
        self._prepared = False

    def describe(self) -> Description:
        return Description("1.0", (PlatformSpec("steady1.0-fp32-1t", "any", "fp32"),))

    def prepare(self, job: Job) -> Prepared:
        return Prepared(cpu_clock="none", settles=False)

    def run(self) -> float:
        return 2.5

    def profile(self, job: Job, runs: int) -> list[LayerTime]:
        return [LayerTime("a", "Conv", 2.5)]


class ActsAtStart(Acts):
    """Does a bad act while it starts; `at` is "make" or "describe"."""

    def __init__(self, threads: int = 1, at: str = "", act: str = "") -> None:
        super().__init__(threads)
        self._at, self._act = at, act
        if at == "make":
            self._perform()

    def describe(self) -> Description:
        if self._at == "describe":
            self._perform()
        return super().describe()

    def _perform(self) -> None:
        act_named(self._act)(Job(Path("none"), {}, "fp32", Path.cwd()))


def described(version: Any, *names: str, **settings: Any) -> Description:
    specs = [PlatformSpec(name, "any", "fp32", settings) for name in names]
    return Description(version, tuple(specs))


DESCRIPTIONS: dict[str, Any] = {
    "none": None,
    "no version": described(None, "a"),
    "no platforms": described("1"),
    "too many": described("1", *(f"p{number}" for number in range(5000))),
    "nameless": described("1", ""),
    "escapes": described("1", "a \x1b[2J\udc80"),
    "no settings": described("1", "a", size=1),
    "not finite": described("1", "a", size=math.nan),
    "objects": described("1", "a", size=NoNumber()),
    "endless": described("1" * 100_000, "a"),
}


class Misdescribed(Acts):
    """Describes itself with values that make no sense."""

    def __init__(self, threads: int = 1, says: str = "") -> None:
        super().__init__(threads)
        self._says = says

    def describe(self) -> Description:
        made: Description = DESCRIPTIONS[self._says]
        return made
