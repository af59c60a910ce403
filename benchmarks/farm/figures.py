"""What a row of the farm benchmark shows, computed from what was counted. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_FOREIGN = 0.05
"""A row is invalid if other programs, or the hypervisor, took more than this share of the cores."""

LONGEST_TIMES = 3.0
"""A campaign ends that takes so many times as long as boards that are never idle would need."""
MARGIN_S = 30.0
"""Time in seconds that is added to that, as a short campaign has a beginning and an end, too."""

PLAIN, CALLED, DIALLING = "plain", "called", "dialling"
"""How the controller reaches agents: without certificates, with them, or because they dial in."""


@dataclass(frozen=True)
class FarmRow:
    """One row of the table.

    Attributes:
        name: as `--rows` takes it.
        boards: number of boards.
        measuring_ms: real time that one measurement takes, in milliseconds.
        processes: True: each board is an agent process of its own; False: all are one rack.
        target: utilisation that the row must reach; 0: none.
        link: how agents as processes are reached: `plain`, `called` or `dialling`.
        raylets: number of raylets of the cluster that the controller joins, of which one is killed
            during the campaign; 0: the controller starts a Ray of its own.
    """

    name: str
    boards: int
    measuring_ms: int
    processes: bool
    target: float
    link: str = PLAIN
    raylets: int = 0

    def measurements(self, seconds: float) -> int:
        """How many measurements keep all boards busy for so many seconds, at least three each."""
        return self.boards * max(3, round(seconds * 1e3 / self.measuring_ms))

    def longest_s(self, seconds: float) -> float:
        """How long a campaign of `measurements(seconds)` may take, in seconds."""
        busy_s = self.measurements(seconds) / self.boards * self.measuring_ms / 1e3
        return LONGEST_TIMES * busy_s + MARGIN_S


@dataclass(frozen=True)
class CoreUse:
    """What the cores and the processes of the benchmark have used so far, in CPU seconds.

    Attributes:
        at_s: when it was read, by the monotonic clock.
        busy_s: user and system time of all programs on the cores of the benchmark.
        stolen_s: time of these cores that the hypervisor gave to other machines.
        controller_s: of the controller's process and all that it started.
        boards_s: of the rack, or of the agents and their workers.
        own_s: of the benchmark itself.
    """

    at_s: float
    busy_s: float
    stolen_s: float
    controller_s: float
    boards_s: float
    own_s: float


def utilisation(starts_s: Sequence[float], measuring_ms: float, boards: int) -> float:
    """Nominal measuring time / (boards x time from the first to the last start).

    Of each measurement, only the time before the last start counts, so that boards that are always
    busy give exactly 1, and no campaign gives more.

    Args:
        starts_s: when the measurements started, in seconds.
        measuring_ms: nominal time of one measurement, in milliseconds.
        boards: number of boards.

    Returns:
        A share from 0 to 1; 0 if all measurements started at once.
    """
    if not starts_s:
        return 0.0
    last_s = max(starts_s)
    span_s = last_s - min(starts_s)
    busy_s = sum(min(measuring_ms / 1e3, last_s - start_s) for start_s in starts_s)
    return busy_s / (boards * span_s) if span_s > 0 else 0.0


def shares(before: CoreUse, after: CoreUse, cores: int) -> tuple[float, float]:
    """Shares of the cores' time that other programs used, and that was stolen."""
    total_s = max(after.at_s - before.at_s, 1e-9) * cores
    ours_s = sum(
        getattr(after, name) - getattr(before, name)
        for name in ("controller_s", "boards_s", "own_s")
    )
    foreign_s = after.busy_s - before.busy_s - ours_s
    # The two accounts are read one after the other, and count in steps of 10 ms.
    return max(0.0, foreign_s / total_s), (after.stolen_s - before.stolen_s) / total_s


def valid(foreign_share: float, steal_share: float) -> bool:
    """Whether a row was measured on cores that were left to the benchmark."""
    return foreign_share <= MOST_FOREIGN and steal_share <= MOST_FOREIGN


COLUMNS = (
    ("row", "{name}"),
    ("boards", "{boards}"),
    ("each", "{measuring_ms} ms"),
    ("utilisation", "{utilisation:.3f}"),
    ("wanted", "{target:.2f}"),
    ("controller CPU", "{controller_cpu_ms:.2f} ms"),
    ("scheduler", "{scheduler_ms:.3f} ms"),
    ("wire", "{wire_kb} KB"),
    ("controller", "{controller_mb:.0f} MB"),
    ("join", "{join_s:.1f} s"),
    ("first", "{first_result_s:.2f} s"),
    ("boards' CPU", "{boards_cpu_ms:.2f} ms"),
    ("a board", "{board_mb:.2f} MB"),
    ("foreign", "{foreign_share:.1%}"),
    ("steal", "{steal_share:.1%}"),
    ("", "{verdict}"),
)
"""The columns of the printed table: their titles and how their values are shown."""


def shown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table for the terminal."""
    lines = [[title for title, _ in COLUMNS]]
    failed = [f"{row['name']}: FAILED: {row['error']}" for row in rows if "error" in row]
    for row in rows:
        if "error" in row:
            continue
        verdict = "valid" if row["valid"] else "INVALID: the cores were used by others"
        if row["failures"]:
            verdict += f"; {row['failures']} failures"
        if row["measurements"] < row.get("asked", 0):
            verdict += f"; CUT SHORT after {row['measurements']} of {row['asked']} measurements"
        wire_kb = "?" if row["wire_kb"] is None else f"{row['wire_kb']:.2f}"
        values = {**row, "wire_kb": wire_kb, "verdict": verdict}
        lines.append([form.format(**values) for _, form in COLUMNS])
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    table = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(table + failed)
