"""What the rows of the farm benchmark must show together, and by how much they miss it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.farm.figures import CALLED, DIALLING

MOST_CONTROLLER_MS = 3.0
"""Most CPU time of the controller's side for a measurement at 64 boards, in milliseconds."""
MOST_GROWTH = 1.3
"""How many times the CPU time at 8 boards the controller's side may use at 1,000."""
MOST_SCHEDULER_MS = 0.1
"""Most CPU time of the scheduler for a measurement at 1,000 boards, in milliseconds."""
MOST_WIRE_KB = 4.0
"""Most bytes on the wire for a measurement beyond its model, in kilobytes."""
MOST_CONTROLLER_MB = 800.0
"""Most memory of the controller's side at 1,000 boards, in megabytes."""
MOST_JOIN_S = 30.0
"""Longest time until 1,000 boards have joined, in seconds."""
MOST_FIRST_S = 3.0
"""Longest time to the first result beyond the measuring time, in seconds."""
MOST_DIFFERENCE = 0.02
"""Largest difference between boards that dial in and boards that are called, as a share."""

FEW, SOME, MANY = 8, 64, 1000
"""Numbers of boards that the figures are wanted at."""


@dataclass(frozen=True)
class Target:
    """One thing that must be shown.

    Attributes:
        what: the figure.
        row: the name of the row.
        found: the figure that was found.
        wanted: the bound.
        at_least: whether the bound is the lowest value; otherwise it is the highest.
        valid: whether the cores were left to the row.
    """

    what: str
    row: str
    found: float
    wanted: float
    at_least: bool = False
    valid: bool = True

    @property
    def met(self) -> bool:
        """Whether the figure keeps the bound, and counts."""
        kept = self.found >= self.wanted if self.at_least else self.found <= self.wanted
        return kept and self.valid

    def to_json(self) -> dict[str, Any]:
        """The target as plain JSON types."""
        return {
            "what": self.what,
            "row": self.row,
            "found": round(self.found, 4),
            "wanted": self.wanted,
            "at_least": self.at_least,
            "valid": self.valid,
            "met": self.met,
        }

    @property
    def sentence(self) -> str:
        """The target for people."""
        bound = f"{'at least' if self.at_least else 'at most'} {self.wanted:g}"
        if not self.valid:
            verdict = "INVALID: the cores were used by others"
        elif self.met:
            verdict = "met"
        else:
            verdict = f"MISSED by {abs(self.found - self.wanted):.4g}"
        return f"{self.row}: {self.what}: {self.found:.4g}, wanted {bound}: {verdict}"


def judged(rows: Sequence[Mapping[str, Any]]) -> list[Target]:
    """What rows show; a row that failed or was not run shows nothing.

    Args:
        rows: their figures, as `run.run_row` gives them.
    """
    ran = [row for row in rows if "error" not in row]
    return [target for row in ran for target in _of_row(row)] + [*_growth(ran), *_links(ran)]


def _of_row(row: Mapping[str, Any]) -> Iterator[Target]:
    def most(what: str, found: float, wanted: float) -> Target:
        return Target(what, str(row["name"]), found, wanted, valid=row["valid"])

    if row["target"]:
        name, found = str(row["name"]), row["utilisation"]
        yield Target("utilisation", name, found, row["target"], at_least=True, valid=row["valid"])
    if row.get("raylets"):
        # Whether the campaign ends does not depend on how busy the cores are.
        name = str(row["name"])
        yield Target("failures after the death of a raylet", name, row["failures"], 0.0)
        yield Target("raylets that were killed", name, float(row["killed"]), 1.0, at_least=True)
        return
    if row["boards"] == SOME:
        yield most("controller CPU, ms", row["controller_cpu_ms"], MOST_CONTROLLER_MS)
    if row["boards"] >= MANY:
        yield most("scheduler CPU, ms", row["scheduler_ms"], MOST_SCHEDULER_MS)
        yield most("controller memory, MB", row["controller_mb"], MOST_CONTROLLER_MB)
        yield most("joining, s", row["join_s"], MOST_JOIN_S)
    if row["wire_kb"] is not None:
        yield most("wire beyond the model, KB", row["wire_kb"], MOST_WIRE_KB)
    first_s = MOST_FIRST_S + row["measuring_ms"] / 1e3
    yield most("first result, s", row["first_result_s"], first_s)


def _growth(rows: Sequence[Mapping[str, Any]]) -> Iterator[Target]:
    """The CPU time at 1,000 boards, beside that at 8."""
    few = next((row for row in rows if row["boards"] == FEW and row["link"] == "plain"), None)
    for row in rows:
        if few is not None and row["boards"] >= MANY:
            times = row["controller_cpu_ms"] / few["controller_cpu_ms"]
            what = f"controller CPU, times that of {few['name']}"
            yield Target(what, row["name"], times, MOST_GROWTH, valid=row["valid"] and few["valid"])


def _links(rows: Sequence[Mapping[str, Any]]) -> Iterator[Target]:
    """Boards that dial in, beside as many that are called with certificates."""
    called = {(row["boards"], row["measuring_ms"]): row for row in rows if row["link"] == CALLED}
    for row in rows:
        other = called.get((row["boards"], row["measuring_ms"]))
        if row["link"] != DIALLING or other is None:
            continue
        for name in ("utilisation", "controller_cpu_ms", "wire_kb"):
            if row[name] and other[name]:
                worse = row[name] / other[name] - 1.0
                share = -worse if name == "utilisation" else worse
                what = f"{name}, worse than that of {other['name']} by a share of"
                valid = row["valid"] and other["valid"]
                yield Target(what, row["name"], share, MOST_DIFFERENCE, valid=valid)


def shown_targets(targets: Sequence[Target]) -> str:
    """The targets as lines for the terminal."""
    return "\n".join(target.sentence for target in targets)
