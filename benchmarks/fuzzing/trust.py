"""What comes from outside, damaged by the thousand: nothing of it may break the controller.

Each part is a module of this folder with a function `run(count, seed)` that returns a `PartReport`.
The bundles are shared by as many processes as there are cores; the report is the same for each
number of them, but for times and memory.

    python -m benchmarks.fuzzing.trust --seed 0 --write benchmarks/fuzz_trust.json
    python -m benchmarks.fuzzing.trust --part messages --count 5000

Prints the report of each part as JSON; the exit code is 1 if there is one violation or if a part
ran fewer cases than it was asked for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzzing.part import PartReport, Run


@dataclass(frozen=True)
class Part:
    """A part: its module, which has the function `run`, and the number of cases of a full run.

    Attributes:
        shared: whether several processes may share the cases.
    """

    module: str
    count: int
    shared: bool = False

    def run(self, count: int, seed: int, jobs: int) -> PartReport:
        """Run the part; a part that other parts do not need is imported only here."""
        run: Run = importlib.import_module(self.module).run
        return run(count, seed, jobs=jobs) if self.shared else run(count, seed)


PARTS: Mapping[str, Part] = {
    "messages": Part("benchmarks.fuzzing.messages", 100_000),
    "models": Part("benchmarks.fuzzing.outside", 20_000),
    "bundles": Part("benchmarks.fuzzing.bundles", 20_000, shared=True),
}
"""The parts by name, in the order in which they run."""


def _jobs(text: str) -> int:
    """A number of processes, at least one."""
    jobs = int(text)
    if jobs < 1:
        raise argparse.ArgumentTypeError("at least one process is needed")
    return jobs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--part", choices=[*PARTS], action="append", help="default: all parts")
    parser.add_argument("--count", type=int, help="cases of each part; default: those of each part")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=len(os.sched_getaffinity(0)),
        help="processes that share the bundles; default: one for each core",
    )
    parser.add_argument("--write", type=Path, help="file for the reports, beside the printed ones")
    options = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    failed = False
    for name in options.part or PARTS:
        count = PARTS[name].count if options.count is None else options.count
        started_s = time.monotonic()
        report = PARTS[name].run(count, options.seed, options.jobs)
        found[name] = report.to_json() | {"seconds": round(time.monotonic() - started_s, 1)}
        failed |= bool(report.violations) or report.outcomes.total() < count
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    if options.write is not None:
        options.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
