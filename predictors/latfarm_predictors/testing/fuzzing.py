"""Read many damaged files in a child process with limits, and tell what became of each.

The child says which case it begins and how it ended. One that crashes, or is stopped because a case
takes too long, is noted with its case, and another child goes on behind it.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MEMORY_BYTES = 1024**3
SLOW_MS = 2000.0
_STOP_SECONDS = 20.0


@dataclass
class FuzzSummary:
    """What became of the cases: counts by outcome, the worst figures, and what must not be.

    An outcome is "read" or the name of the error; `slowest_ms` is CPU time; `peak_bytes` is the
    largest resident size of a child.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    slowest_case: int = -1
    peak_bytes: int = 0
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """As plain JSON types."""
        return {
            "cases": self.outcomes.total(),
            "outcomes": dict(self.outcomes.most_common()),
            "slowest_ms": round(self.slowest_ms, 1),
            "slowest_case": self.slowest_case,
            "peak_mib": round(self.peak_bytes / 2**20, 1),
            "violations": self.violations,
        }


def run_cases(command: Sequence[str], first: int, count: int) -> FuzzSummary:
    """Run cases `first` to `first + count - 1` in children: `command` followed by both numbers.

    The command must end in `report_cases`.
    """
    made, at, end = FuzzSummary(), first, first + count
    while at < end:
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                [*command, str(at), str(end - at)],
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
            status = child.wait()
            errors.seek(0)
            story = errors.read().decode(errors="replace").strip()[-2000:]
        if status == 0:
            return made
        if begun < at:
            raise RuntimeError(f"the child does not start: {story}")
        made.outcomes["crash or hang"] += 1
        made.violations.append(f"case {begun}: the reader ended with status {status}: {story}")
        at = begun + 1
    return made


def _note(made: FuzzSummary, said: dict[str, object], begun: int) -> int:
    """Note one line of the child; returns the case begun last."""
    if "begin" in said:
        return int(str(said["begin"]))
    if "peak_bytes" in said:
        made.peak_bytes = max(made.peak_bytes, int(str(said["peak_bytes"])))
        if made.peak_bytes > MEMORY_BYTES:
            made.violations.append(f"the reader took {made.peak_bytes} bytes")
        return begun
    cpu_ms = float(str(said["ms"]))
    made.outcomes[str(said["outcome"])] += 1
    if cpu_ms > made.slowest_ms:
        made.slowest_ms, made.slowest_case = cpu_ms, begun
    if cpu_ms > SLOW_MS:
        made.violations.append(f"case {begun}: took {cpu_ms:.0f} ms")
    if said["wrong"]:
        made.violations.append(f"case {begun}: {said['wrong']}")
    return begun


def report_cases(
    make: Callable[[int], bytes],
    read: Callable[[Path], object],
    expected: type[Exception],
    first: int,
    count: int,
) -> None:
    """The child: make each case, read it, and print what became of it.

    Args:
        make: a case's bytes.
        read: reads a file, or raises one of `expected`, whose message is one line.
        expected: the root of the errors that a bad file may end in.
        first: the first case.
        count: how many.
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
    """This program's largest resident size; getrusage would count its parent's before the exec."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _outcome(
    path: Path, read: Callable[[Path], object], expected: type[Exception]
) -> tuple[str, str]:
    """How reading ended, and what is wrong with that."""
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
