"""How well a controller keeps many boards busy, and what each measurement costs it.

    make bench-farm

Each row starts simulated boards and a controller of its own on the same two cores, and runs one
campaign of small models: on one rack (`latfarm-agent rack`), or on real agent processes. Use a
quiet machine: a row is invalid if other programs, or the hypervisor, took more than 5 % of the two
cores. `--rows` chooses rows, `--seconds` says how long each campaign keeps its boards busy, and
`--quick` is a check of the benchmark itself.

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
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.farm.boards import StartedBoards, started_boards
from benchmarks.farm.figures import FarmRow, shares, shown, valid
from benchmarks.farm.machine import core_use, memory_bytes, pinned
from benchmarks.farm.sockets import carried_bytes

ROWS = (
    FarmRow("8x250-agents", 8, 250, processes=True, target=0.95),
    FarmRow("64x1000", 64, 1000, processes=False, target=0.98),
    FarmRow("64x250", 64, 250, processes=False, target=0.95),
    FarmRow("1000x5000", 1000, 5000, processes=False, target=0.95),
)
"""The rows of the table. Each board of the first one is an agent process of its own."""

QUICK_ROWS = (
    FarmRow("2x50-agents", 2, 50, processes=True, target=0.0),
    FarmRow("8x50", 8, 50, processes=False, target=0.0),
)
"""The rows of `--quick`, which show that the benchmark works and nothing else."""

CORES = 2
"""Number of cores that controller and boards share."""

SECONDS, QUICK_SECONDS = 60.0, 0.5
"""How long each campaign keeps its boards busy, in seconds."""


class ControllerProcess:
    """The process of the controller's side; see `controller_side`.

    Args:
        process: of it.
        log: what it prints besides its answers.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def say(self, word: str) -> None:
        """Let it do its next step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, float]:
        """What it found in this step.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise RuntimeError(f"the controller has ended: {self._log.read_text()[-2000:]}")


@contextmanager
def started_controller(
    row: FarmRow, count: int, folder: Path, *, inline: bool
) -> Iterator[ControllerProcess]:
    """Start the controller's side; it ends with the block."""
    command = [sys.executable, "-m", "benchmarks.farm.controller_side", str(folder)]
    command += [str(row.boards), str(count), str(row.measuring_ms)]
    command += ["--inline"] if inline else []
    log_path = folder / "controller.log"
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield ControllerProcess(process, log_path)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def run_row(row: FarmRow, seconds: float, cores: Sequence[int], *, inline: bool) -> dict[str, Any]:
    """Run one row; gives its figures."""
    count = row.measurements(seconds)
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="lf-") as name:
        folder = Path(name)
        with (
            started_boards(row, folder) as boards,
            started_controller(row, count, folder, inline=inline) as controller,
        ):
            return {
                "name": row.name,
                "boards": row.boards,
                "measuring_ms": row.measuring_ms,
                "processes": row.processes,
                "target": row.target,
                "measurements": count,
                **_figures(row, count, cores, boards, controller),
            }


def _figures(
    row: FarmRow,
    count: int,
    cores: Sequence[int],
    boards: StartedBoards,
    controller: ControllerProcess,
) -> dict[str, Any]:
    started = controller.hear()
    controller.say("join")
    joined = controller.hear()
    bytes_before = carried_bytes(boards.ports)
    before = core_use(cores, [controller.pid], boards.pids)
    controller.say("measure")
    found = controller.hear()
    after = core_use(cores, [controller.pid], boards.pids)
    bytes_after = carried_bytes(boards.ports)
    memory = memory_bytes([controller.pid]), memory_bytes(boards.pids)
    model_bytes = boards.model_bytes()
    load_1m = os.getloadavg()[0]
    controller.say("end")
    foreign_share, steal_share = shares(before, after, len(cores))
    wire_kb = None
    if bytes_before is not None and bytes_after is not None:
        wire_kb = round((bytes_after - bytes_before - model_bytes) / count / 1e3, 3)
    spent_s = after.controller_s - before.controller_s
    return {
        "failures": int(found["failures"]),
        "utilisation": round(found["utilisation"], 4),
        "controller_cpu_ms": round((spent_s - found["asking_s"]) * 1e3 / count, 3),
        "asking_ms": round(found["asking_s"] * 1e3 / count, 3),
        "scheduler_ms": round(found["scheduler_s"] * 1e3 / count, 4),
        "wire_kb": wire_kb,
        "model_kb": round(model_bytes / count / 1e3, 3),
        "controller_mb": round(memory[0] / 1e6, 1),
        "start_s": round(started["start_s"], 2),
        "join_s": round(joined["join_s"], 2),
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
    rows: Sequence[FarmRow], seconds: float, cores: Sequence[int], *, inline: bool = False
) -> dict[str, Any]:
    """Run rows one after the other; gives their figures, and the machine's."""
    found: list[Mapping[str, Any]] = []
    for row in rows:
        print(f"{row.name}: {row.measurements(seconds)} measurements", file=sys.stderr, flush=True)
        try:
            found.append(run_row(row, seconds, cores, inline=inline))
        except RuntimeError as error:
            # The other rows are worth their time all the same.
            found.append({"name": row.name, "boards": row.boards, "error": str(error)})
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": list(cores),
        "inline": inline,
        "rows": found,
    }


def main() -> int:
    """Run the rows; the exit code is 1 if a row fails, is invalid, or misses its utilisation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows", nargs="+", choices=[row.name for row in ROWS], help="rows to run; default: all"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="how long each campaign keeps its boards busy"
    )
    parser.add_argument("--quick", action="store_true", help="two small rows: a check")
    parser.add_argument(
        "--inline", action="store_true", help="run boards and builders in the controller, no Ray"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", type=Path, help="file for the figures, beside the printed ones")
    options = parser.parse_args()
    rows: Sequence[FarmRow] = QUICK_ROWS if options.quick else ROWS
    if options.rows:
        rows = [row for row in ROWS if row.name in options.rows]
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    found = run(rows, seconds, pinned(CORES), inline=options.inline)
    text = json.dumps(found, indent=1)
    print(text if options.json else shown(found["rows"]))
    if options.write is not None:
        options.write.write_text(text + "\n", encoding="utf-8")
    good = _works if options.quick else _reached
    return 0 if all(good(row) for row in found["rows"]) else 1


def _works(row: Mapping[str, Any]) -> bool:
    return "error" not in row and not row["failures"]


def _reached(row: Mapping[str, Any]) -> bool:
    return bool(
        "error" not in row
        and row["valid"]
        and not row["failures"]
        and row["utilisation"] >= row["target"]
    )


if __name__ == "__main__":
    sys.exit(main())
