"""Read many damaged files in a child process with limits, and summarise the outcomes.

The child prints which case it begins and how the case ended. If it crashes, or is stopped because a
case takes too long, the case is recorded and a new child continues with the next case.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import IO

MEMORY_BYTES = 1024**3
"""The largest memory that a child may use."""
SLOW_MS = 2000.0
"""The longest CPU time that a case may take, in milliseconds."""
_STOP_SECONDS = 20.0
"""A child is stopped when a case takes this time, in seconds."""


@dataclass
class FuzzSummary:
    """The outcomes of the cases.

    Attributes:
        outcomes: number of cases by outcome: "read", or the name of the error.
        slowest_ms: CPU time of the slowest case, in milliseconds.
        slowest_case: its number.
        peak_bytes: largest resident size of a child.
        violations: texts about outcomes that must not happen.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    slowest_case: int = -1
    peak_bytes: int = 0
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The summary as plain JSON types."""
        return {
            "cases": self.outcomes.total(),
            "outcomes": dict(self.outcomes.most_common()),
            "slowest_ms": round(self.slowest_ms, 1),
            "slowest_case": self.slowest_case,
            "peak_mib": round(self.peak_bytes / 2**20, 1),
            "violations": self.violations,
        }


def run_cases(command: Sequence[str], first: int, count: int, jobs: int = 1) -> FuzzSummary:
    """Run cases `first` to `first + count - 1` in child processes.

    The summary is the same for each number of jobs, but for what is measured: times and memory.

    Args:
        command: of a child, which gets the number of the first case and the number of cases as
            further arguments and calls `report_cases`.
        first: number of the first case.
        count: number of cases.
        jobs: how many children run at the same time; each gets one part of the cases.

    Raises:
        RuntimeError: a child does not start.
    """
    shares = [_Share(command, cases) for cases in _parts(range(first, first + count), jobs)]
    if not shares:
        return FuzzSummary()
    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            running = [pool.submit(share.run) for share in shares]
            for ended in wait(running, return_when=FIRST_EXCEPTION).done:
                ended.result()
            return _together([each.result() for each in running])
        except BaseException:
            for share in shares:
                share.stop()
            raise


def _parts(cases: range, jobs: int) -> list[range]:
    """At most `jobs` parts of nearly the same size, in order, none of them empty."""
    ends = [len(cases) * part // jobs for part in range(jobs + 1)]
    parts = [cases[begin:end] for begin, end in pairwise(ends)]
    return [part for part in parts if part]


def _together(summaries: Iterable[FuzzSummary]) -> FuzzSummary:
    """One summary of the parts of a run, which are given in the order of their cases."""
    made = FuzzSummary()
    for part in summaries:
        made.outcomes.update(part.outcomes)
        made.violations += part.violations
        made.peak_bytes = max(made.peak_bytes, part.peak_bytes)
        if part.slowest_ms > made.slowest_ms:
            made.slowest_ms, made.slowest_case = part.slowest_ms, part.slowest_case
    return made


class _Share:
    """Some cases that run one after the other, in one child after the other.

    Args:
        command: see `run_cases`.
        cases: the numbers of the cases, one after the other.
    """

    def __init__(self, command: Sequence[str], cases: range) -> None:
        self._command = command
        self._cases = cases
        self._child: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = Lock()

    def run(self) -> FuzzSummary:
        """Run all cases; a child that dies is followed by another one.

        Raises:
            RuntimeError: a child does not start.
        """
        made, at = FuzzSummary(), self._cases.start
        while at < self._cases.stop and not self._stopped:
            with tempfile.TemporaryFile() as errors:
                status, begun = self._follow(made, at, errors)
                errors.seek(0)
                story = errors.read().decode(errors="replace").strip()[-2000:]
            if status == 0 or self._stopped:
                return made
            if begun < at:
                raise RuntimeError(f"the child does not start: {story}")
            made.outcomes["crash or hang"] += 1
            made.violations.append(f"case {begun}: the reader ended with status {status}: {story}")
            at = begun + 1
        return made

    def stop(self) -> None:
        """End the child, and start no other one; `run` returns soon."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def _follow(self, made: FuzzSummary, at: int, errors: IO[bytes]) -> tuple[int, int]:
        """Run a child from case `at` on; returns its exit status and the case it began last."""
        with self._lock:
            if self._stopped:
                return 0, at - 1
            child = self._child = subprocess.Popen(
                [*self._command, str(at), str(self._cases.stop - at)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        assert child.stdout is not None
        begun = at - 1
        with child.stdout:
            for line in child.stdout:
                begun = _note(made, json.loads(line), begun)
        return child.wait(), begun


def _note(made: FuzzSummary, report: dict[str, object], begun: int) -> int:
    """Add one line of the child to the summary; returns the number of the current case."""
    if "begin" in report:
        return int(str(report["begin"]))
    if "peak_bytes" in report:
        made.peak_bytes = max(made.peak_bytes, int(str(report["peak_bytes"])))
        if made.peak_bytes > MEMORY_BYTES:
            made.violations.append(f"the reader took {made.peak_bytes} bytes")
        return begun
    cpu_ms = float(str(report["ms"]))
    made.outcomes[str(report["outcome"])] += 1
    if cpu_ms > made.slowest_ms:
        made.slowest_ms, made.slowest_case = cpu_ms, begun
    if cpu_ms > SLOW_MS:
        made.violations.append(f"case {begun}: took {cpu_ms:.0f} ms")
    if report["wrong"]:
        made.violations.append(f"case {begun}: {report['wrong']}")
    return begun


def report_cases(
    make: Callable[[int], bytes],
    read: Callable[[Path], object],
    expected: type[Exception],
    first: int,
    count: int,
) -> None:
    """Make each case, read it and print its outcome; this is what a child process does.

    Args:
        make: returns the bytes of a case.
        read: reads a file, or raises an error of type `expected` with a text of one line.
        expected: the root of the errors that a bad file may raise.
        first: number of the first case.
        count: number of cases.
    """
    out = sys.stdout
    size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = size_bytes + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case"
        for case in range(first, first + count):
            path.write_bytes(make(case))
            print(json.dumps({"begin": case}), file=out, flush=True)
            faulthandler.dump_traceback_later(_STOP_SECONDS, exit=True)
            start = time.process_time()
            outcome, wrong = _outcome(path, read, expected)
            spent_ms = (time.process_time() - start) * 1000
            faulthandler.cancel_dump_traceback_later()
            print(
                json.dumps({"outcome": outcome, "ms": spent_ms, "wrong": wrong}),
                file=out,
                flush=True,
            )
    print(json.dumps({"peak_bytes": _peak_bytes()}), file=out, flush=True)


def _peak_bytes() -> int:
    """Largest resident size of this process; getrusage would include its parent before the exec."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _outcome(
    path: Path, read: Callable[[Path], object], expected: type[Exception]
) -> tuple[str, str]:
    """The outcome of reading a file, and what is wrong with it; empty if nothing is."""
    try:
        read(path)
    except expected as error:
        text = str(error)
        wrong = "" if text and "\n" not in text and len(text) < 2000 else f"its message is {text!r}"
        return type(error).__name__, wrong[:300]
    except BaseException as error:
        name = type(error).__name__
        return name, f"{name}: {str(error)[:300]!r} at {_place(error)}"
    return "read", ""


def _place(error: BaseException) -> str:
    trace, at = error.__traceback__, ""
    while trace is not None:
        at = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return at
