"""Seeded runs of small farms with faults: nothing may be lost, doubled, left over or need a hand.

    make test-faults

Each seed draws a small farm, a small campaign and one to four faults. Even seeds run on the real
`latfarm serve` with Ray, odd ones on a controller that builds models in its own process. Each run
prints one line; a table follows. `--seed N` runs one seed again, `--resume` leaves out the seeds
that have passed according to the file of `--json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests import leftovers
from tests.faults.checks import Values
from tests.faults.one_run import run_scenario, undisturbed_values
from tests.faults.programs.warm_start import WarmStart
from tests.faults.scenario import FULL, QUICK, Scenario, drawn
from tests.faults.summary import line, table

INTERRUPTED = 130
"""The exit code of a program that was interrupted."""


class FaultRuns:
    """Runs scenarios, tells each of them, and keeps their reports in a file.

    Args:
        path: the file; None: reports are not kept.
        known: reports of earlier runs, which stay in the file.
    """

    def __init__(self, path: Path | None, known: Sequence[Mapping[str, Any]]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.reports = {report["seed"]: report for report in known}

    def run(self, scenario: Scenario, warm: WarmStart, undisturbed: Mapping[str, Values]) -> None:
        """Run one scenario."""
        report = run_scenario(scenario, warm, undisturbed)
        with self._lock:
            self.reports[scenario.seed] = report
            print(line(report), flush=True)
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps([self.reports[seed] for seed in sorted(self.reports)], indent=1)
                self._path.write_text(text + "\n", "utf-8")


def chosen(options: argparse.Namespace, passed: frozenset[int]) -> list[Scenario]:
    """The scenarios that the options choose, without those of seeds that have passed."""
    sizes = QUICK if options.quick else FULL
    ray = False if options.quick or options.no_ray else None
    seeds = range(options.first, options.first + options.runs)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    return [drawn(seed, sizes, ray=ray) for seed in seeds if seed not in passed]


def earlier(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The reports of earlier runs that are gone on with."""
    if not options.resume or options.json is None or not options.json.exists():
        return []
    found: list[dict[str, Any]] = json.loads(options.json.read_text("utf-8"))
    return [report for report in found if report["passed"]]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="number of seeds (default: 200)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: 2)")
    parser.add_argument("--json", type=Path, help="file for the reports of all runs")
    parser.add_argument(
        "--resume", action="store_true", help="leave out seeds that passed according to --json"
    )
    parser.add_argument("--quick", action="store_true", help="the small runs of make test, no Ray")
    parser.add_argument("--no-ray", action="store_true", help="all seeds without Ray")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; the exit code is 1 if a run fails, and 130 if it is interrupted."""
    options = parsed(arguments)
    known = earlier(options)
    scenarios = chosen(options, frozenset(report["seed"] for report in known))
    runs = FaultRuns(options.json, known)
    guard = leftovers.start_guard()
    began_s = time.monotonic()
    with WarmStart() as warm:
        undisturbed = undisturbed_values(warm)
        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            try:
                started = [pool.submit(runs.run, each, warm, undisturbed) for each in scenarios]
                for ended in as_completed(started):
                    ended.result()
            except KeyboardInterrupt:
                if guard is not None:
                    leftovers.end_guard(guard)
                # The threads of the runs would wait for processes that have been ended now.
                os._exit(INTERRUPTED)
    if guard is not None:
        leftovers.end_guard(guard)
    reports = [runs.reports[seed] for seed in sorted(runs.reports)]
    load_1m = os.getloadavg()[0]
    print(f"\n{table(reports)}\n\n{time.monotonic() - began_s:.0f} s; load {load_1m:.1f}")
    return 0 if all(report["passed"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
