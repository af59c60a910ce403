"""How well a controller keeps many boards busy, and what each measurement costs it.

    make bench-farm

Each row starts simulated boards and a controller of its own on the same two cores, and runs one
campaign of small models: on one rack (`latfarm-agent rack`), or on real agent processes. Use a
quiet machine: a row is invalid if other programs, or the hypervisor, took more than 5 % of the two
cores. `--rows` chooses rows, `--seconds` says how long each campaign keeps its boards busy, and
`--quick` is a check of the benchmark itself. A campaign that takes three times as long as its
boards would need is cut short, so that the longest row takes ten minutes at most. With `--write`,
each row is written as soon as it has ended, and valid rows that the file has are not run again.

The columns: utilisation is the nominal measuring time divided by the number of boards and by the
time from the first to the last start of a measurement. The CPU time of the controller's side is
that of the controller, its shards, its builders and Ray for one measurement, without what the
campaign needs to make its graphs. The bytes on the wire are those of the connections between
controller and boards, without the models. Memory is that of all processes, shared pages once (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from latfarm_controller.errors import ControllerError

from benchmarks.farm.agents import HOST
from benchmarks.farm.boards import StartedBoards, started_boards
from benchmarks.farm.cluster import two_raylets
from benchmarks.farm.controller_process import ControllerProcess, started_controller
from benchmarks.farm.figures import CALLED, DIALLING, FarmRow, shares, shown, valid
from benchmarks.farm.figures_file import FiguresFile
from benchmarks.farm.machine import core_use, memory_bytes, pinned
from benchmarks.farm.sockets import carried_bytes
from benchmarks.farm.targets import judged, shown_targets

ROWS = (
    FarmRow("8x250-agents", 8, 250, processes=True, target=0.95),
    FarmRow("64x1000", 64, 1000, processes=False, target=0.98),
    FarmRow("64x250", 64, 250, processes=False, target=0.95),
    FarmRow("1000x5000", 1000, 5000, processes=False, target=0.95),
    FarmRow("8x250-called", 8, 250, processes=True, target=0.0, link=CALLED),
    FarmRow("8x250-dialling", 8, 250, processes=True, target=0.0, link=DIALLING),
    FarmRow("192x1000-two-raylets", 192, 1000, processes=False, target=0.0, raylets=2),
)
"""The rows of the table, and those that compare two links and kill a raylet. In rows whose names
end in `agents`, `called` and `dialling`, each board is an agent process of its own. The last row
has more boards than the controller's own shard takes, so that Ray carries boards, too."""

QUICK_ROWS = (
    FarmRow("2x50-agents", 2, 50, processes=True, target=0.0),
    FarmRow("2x50-called", 2, 50, processes=True, target=0.0, link=CALLED),
    FarmRow("2x50-dialling", 2, 50, processes=True, target=0.0, link=DIALLING),
    FarmRow("8x50", 8, 50, processes=False, target=0.0),
)
"""The rows of `--quick`, which show that the benchmark works and nothing else."""

CORES = 2
"""Number of cores that controller and boards share."""

SECONDS, QUICK_SECONDS = 90.0, 0.5
"""How long each campaign keeps its boards busy, in seconds."""


def run_row(row: FarmRow, seconds: float, cores: Sequence[int], *, inline: bool) -> dict[str, Any]:
    """Run one row; gives its figures."""
    # Ray's sockets need a short path.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lf-")))
        cluster = stack.enter_context(two_raylets()) if row.raylets else None
        address = "" if cluster is None else cluster.address
        controller = stack.enter_context(
            started_controller(row, seconds, folder, address, inline=inline)
        )
        started = controller.hear()
        boards = stack.enter_context(started_boards(row, folder, f"{HOST}:{started['port']:.0f}"))
        controller.say("join")
        joined = controller.hear()
        pids = [controller.pid]
        if cluster is not None:
            pids.append(cluster.pid)
            stack.enter_context(cluster.killed_after(seconds / 3))
        found = _figures(row, cores, boards, controller, pids)
        return {
            "name": row.name,
            "boards": row.boards,
            "measuring_ms": row.measuring_ms,
            "processes": row.processes,
            "link": row.link,
            "raylets": row.raylets,
            "killed": cluster is not None and cluster.killed,
            "target": row.target,
            "seconds": seconds,
            "asked": row.measurements(seconds),
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "start_s": round(started["start_s"], 2),
            "join_s": round(joined["join_s"], 2),
            **found,
        }


def _figures(
    row: FarmRow,
    cores: Sequence[int],
    boards: StartedBoards,
    controller: ControllerProcess,
    pids: Sequence[int],
) -> dict[str, Any]:
    bytes_before = carried_bytes(boards.ports)
    before = core_use(cores, pids, boards.pids)
    controller.say("measure")
    found = controller.hear()
    count = max(1, int(found["measurements"]))
    after = core_use(cores, pids, boards.pids)
    bytes_after = carried_bytes(boards.ports)
    memory = memory_bytes(pids), memory_bytes(boards.pids)
    model_bytes = boards.model_bytes()
    load_1m = os.getloadavg()[0]
    controller.say("end")
    foreign_share, steal_share = shares(before, after, len(cores))
    wire_kb = None
    if bytes_before is not None and bytes_after is not None:
        wire_kb = round((bytes_after - bytes_before - model_bytes) / count / 1e3, 3)
    spent_s = after.controller_s - before.controller_s
    return {
        "measurements": int(found["measurements"]),
        "failures": int(found["failures"]),
        "utilisation": round(found["utilisation"], 4),
        "controller_cpu_ms": round((spent_s - found["asking_s"]) * 1e3 / count, 3),
        "asking_ms": round(found["asking_s"] * 1e3 / count, 3),
        "scheduler_ms": round(found["scheduler_s"] * 1e3 / count, 4),
        "wire_kb": wire_kb,
        "model_kb": round(model_bytes / count / 1e3, 3),
        "controller_mb": round(memory[0] / 1e6, 1),
        "first_result_s": round(found["first_result_s"], 3),
        "wall_s": round(found["wall_s"], 2),
        "boards_cpu_ms": round((after.boards_s - before.boards_s) * 1e3 / count, 3),
        "board_mb": round(memory[1] / 1e6 / row.boards, 3),
        "foreign_share": round(foreign_share, 4),
        "steal_share": round(steal_share, 4),
        "load_1m": load_1m,
        "valid": valid(foreign_share, steal_share),
    }


def run(
    rows: Sequence[FarmRow],
    seconds: float,
    cores: Sequence[int],
    *,
    inline: bool = False,
    kept: FiguresFile | None = None,
) -> dict[str, Any]:
    """Run rows one after the other; gives their figures, and the machine's.

    Args:
        rows: the rows.
        seconds: how long each campaign keeps its boards busy.
        cores: those of the benchmark.
        inline: without Ray.
        kept: the file with the figures: a row that is there is not run again, and each row is
            written as soon as it has ended; None: there is none.
    """
    machine = {
        "processor": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": list(cores),
        "inline": inline,
    }
    found: list[Mapping[str, Any]] = []
    for row in rows:
        before = None if kept is None else kept.valid_row(row.name, seconds)
        if before is not None:
            print(f"{row.name}: is in the file already", file=sys.stderr, flush=True)
            found.append(before)
            continue
        print(f"{row.name}: {row.measurements(seconds)} measurements", file=sys.stderr, flush=True)
        try:
            figures = run_row(row, seconds, cores, inline=inline)
        except (RuntimeError, ControllerError) as error:
            # The other rows are worth their time all the same.
            figures = {"name": row.name, "boards": row.boards, "error": str(error)}
        found.append(figures)
        if kept is not None:
            kept.put(figures, machine)
    targets = [target.to_json() for target in judged(found)]
    return {**machine, "rows": found, "targets": targets}


def main() -> int:
    """Run the rows; the exit code is 1 if a row fails, is invalid, or misses a target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows", nargs="+", choices=[row.name for row in ROWS], help="rows to run; default: all"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="how long each campaign keeps its boards busy"
    )
    parser.add_argument("--quick", action="store_true", help="four small rows: a check")
    parser.add_argument(
        "--inline", action="store_true", help="run boards and builders in the controller, no Ray"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--write",
        type=Path,
        help="file for the figures; its valid rows are kept, so that a run can be continued",
    )
    parser.add_argument("--again", action="store_true", help="run the rows of that file again, too")
    options = parser.parse_args()
    rows: Sequence[FarmRow] = QUICK_ROWS if options.quick else ROWS
    if options.rows:
        rows = [row for row in ROWS if row.name in options.rows]
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    kept = None if options.write is None else FiguresFile(options.write, again=options.again)
    found = run(rows, seconds, pinned(CORES), inline=options.inline, kept=kept)
    targets = judged(found["rows"])
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{shown(found['rows'])}\n\n{shown_targets(targets)}")
    works = all("error" not in row and not row["failures"] for row in found["rows"])
    return 0 if works and (options.quick or all(target.met for target in targets)) else 1


if __name__ == "__main__":
    sys.exit(main())
