"""Runtimes that misbehave in ways that vendors' libraries have misbehaved."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from latfarm_agent.runtimes.base import Description, Job, LayerTime, PlatformSpec, Prepared


class Good:
    """Works, and computes nothing."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def describe(self) -> Description:
        return Description("1.0", (PlatformSpec("bad1.0-fp32-1t", "any", "fp32"),))

    def prepare(self, job: Job) -> Prepared:
        return Prepared()

    def run(self) -> float | None:
        sum(range(1000))
        return None

    def profile(self, job: Job, runs: int) -> list[LayerTime]:
        return []


class Segfault(Good):
    def run(self) -> float | None:
        os.kill(os.getpid(), signal.SIGSEGV)
        return None


class SegfaultWhenWorn(Good):
    """Crashes from its second model on."""

    prepared = 0

    def prepare(self, job: Job) -> Prepared:
        self.prepared += 1
        if self.prepared > 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return Prepared()


class SegfaultAtStart(Good):
    def describe(self) -> Description:
        os.kill(os.getpid(), signal.SIGSEGV)
        return super().describe()


class HangAtStart(Good):
    def describe(self) -> Description:
        signal.pause()
        return super().describe()


class Hang(Good):
    def prepare(self, job: Job) -> Prepared:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()


class HangInRun(Good):
    def run(self) -> float | None:
        while True:
            signal.pause()


class Exit(Good):
    def run(self) -> float | None:
        sys.exit(7)


class Chatty(Good):
    """Prints to standard output, from Python and from below Python."""

    def prepare(self, job: Job) -> Prepared:
        print("INFO: garbage on standard output")
        os.write(1, b"\x00\xff lf garbage " * 4096)
        os.write(2, b"warning " * 4096)
        sys.stdout.flush()
        return Prepared()


class Corrupting(Good):
    """Writes into every pipe that it finds."""

    def prepare(self, job: Job) -> Prepared:
        for fd in range(3, 64):
            try:
                os.write(fd, b"garbage on every descriptor")
            except OSError:
                continue
        return Prepared()


class Forking(Good):
    """Leaves two children running: a plain one, and one in a session of its own."""

    def prepare(self, job: Job) -> Prepared:
        for daemon in (False, True):
            child = os.fork()
            if child and daemon:
                os.waitpid(child, 0)
            if child == 0:
                if daemon:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    signal.pause()
        return Prepared()


class ForkingHang(Forking):
    def run(self) -> float | None:
        while True:
            signal.pause()


class ForkingCrash(Forking):
    def run(self) -> float | None:
        os.kill(os.getpid(), signal.SIGSEGV)
        return None


class RunawayFork(Good):
    """Forks a child that continues in the worker's own code."""

    def prepare(self, job: Job) -> Prepared:
        os.fork()
        return Prepared()


class Greedy(Good):
    held: list[bytearray]

    def run(self) -> float | None:
        self.held = [bytearray(1 << 28) for _ in range(16)]
        return None


class GreedyAbort(Good):
    """Ends as a C++ library does when memory runs out."""

    def run(self) -> float | None:
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()


class Leaking(Good):
    """Takes more memory with each model, and tells how many models it has seen."""

    held: list[bytearray]
    prepared = 0

    def prepare(self, job: Job) -> Prepared:
        self.prepared += 1
        self.held = [*getattr(self, "held", []), bytearray(b"\x01") * (1 << 22)]
        return Prepared(compile_ms=float(self.prepared))


class Raising(Good):
    def prepare(self, job: Job) -> Prepared:
        raise KeyError("something of its own")


class Slow(Good):
    """Sleeps instead of computing, so that every run loses the core."""

    def run(self) -> float | None:
        time.sleep(0.002)
        return None


class Own(Good):
    """Has its own clock, and tells no CPU time."""

    def prepare(self, job: Job) -> Prepared:
        return Prepared(cpu_clock="none", settles=False)

    def run(self) -> float | None:
        return 2.5


class Clocked(Good):
    """Takes the time that its model says: "1250 1.5" is a clock in MHz and a neighbour's slowdown.

    Its probe and its runs take 20 us and 2 ms at 2,000 MHz without a neighbour.
    """

    def prepare(self, job: Job) -> Prepared:
        mhz, slowdown = map(float, job.model_path.read_text().split())
        self._times = 2000.0 / mhz * slowdown
        return Prepared(cpu_clock="none", settles=False, probe_us=lambda: 20.0 * self._times)

    def run(self) -> float | None:
        return 2.0 * self._times


class Where(Good):
    """Tells on which core it runs, and which limits it has."""

    def prepare(self, job: Job) -> Prepared:
        import resource

        told: dict[str, Any] = {
            "cores": sorted(os.sched_getaffinity(0)),
            "data": resource.getrlimit(resource.RLIMIT_DATA)[0],
            "core_dump": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "scratch": sorted(path.name for path in job.scratch_dir.iterdir()),
            "omp": os.environ["OMP_NUM_THREADS"],
            "numpy": "numpy" in sys.modules,
        }
        (job.scratch_dir / "left behind").write_text("x")
        return Prepared(conditions={"told": repr(told)})
