"""The tables of families left out on the page about graph networks, from the files of figures.

    python -m benchmarks.gnn.published

prints them. A test holds the page against these rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gnn.draws import FAMILIES
from benchmarks.gnn.records import BenchJob

FIGURES = Path(__file__).with_name("figures")
"""The folder that `make bench-gnn` writes a file of each source into."""


@dataclass(frozen=True)
class FamilyTable:
    """A table of one source: a row for each family that is left out, and one of their means.

    Attributes:
        source: name of the source, and of its file.
        seed: the random seed.
        methods: names of the methods, in the order of the columns.
        inside: the methods of which a column tells what 90 % intervals hold, and their width.
    """

    source: str
    seed: int
    methods: Sequence[str]
    inside: Sequence[str]

    def rows(self, folder: Path = FIGURES) -> list[str]:
        """The lines of the table, with its head: MAPE and share within 10 %, in per cent."""
        jobs = _jobs(folder, self.source)
        found = {
            (family, method): jobs[BenchJob("families", self.source, family, method, self.seed).key]
            for family in FAMILIES
            for method in self.methods
        }
        lines = _head(("family left out",), self.methods, self.inside)
        lines += [self._line(f, {m: found[f, m] for m in self.methods}, 0) for f in FAMILIES]
        means = {m: _mean([found[family, m] for family in FAMILIES]) for m in self.methods}
        return [*lines, self._line("mean", means, 1)]

    def _line(self, name: str, records: Mapping[str, Mapping[str, Any]], digits: int) -> str:
        """A row, from the records of its methods; shares have so many digits behind the point."""
        accuracy = [_accuracy(records[method], digits) for method in self.methods]
        return _row(name, *accuracy, *(_held(records[method], digits) for method in self.inside))


@dataclass(frozen=True)
class SeedTable:
    """Means over the families, with a row for each source and each seed that any method has.

    Attributes:
        sources: names of the sources.
        seeds: the random seeds.
        methods: names of the methods, in the order of the columns.
        inside: the methods of which a column tells what 90 % intervals hold, and their width.
    """

    sources: Sequence[str]
    seeds: Sequence[int]
    methods: Sequence[str]
    inside: Sequence[str]

    def rows(self, folder: Path = FIGURES) -> list[str]:
        """The lines of the table, with its head: MAPE and share within 10 %, in per cent."""
        lines = _head(("board", "seed"), self.methods, self.inside)
        for source in self.sources:
            jobs = _jobs(folder, source)
            for seed in self.seeds:
                keys = {
                    method: [BenchJob("families", source, f, method, seed).key for f in FAMILIES]
                    for method in self.methods
                }
                means = {
                    method: _mean([jobs[key] for key in own])
                    for method, own in keys.items()
                    if set(own) <= set(jobs)
                }
                if not means:
                    continue
                told = [_accuracy(means[m], 1) if m in means else "-" for m in self.methods]
                held = [_held(means[m], 1) if m in means else "-" for m in self.inside]
                lines.append(_row(f"`{source.removeprefix('sim-')}`", str(seed), *told, *held))
        return lines


_FIGURES = ("mape", "within10", "coverage", "width")
_PLAIN = ("flops_mac", "nn-meter", "tpu")
TABLES = (
    FamilyTable(
        "sim-overlap",
        0,
        (*_PLAIN, "nnlp", "nnlp-small", "sum", "sum-gp", "corrected"),
        ("sum-gp", "corrected"),
    ),
    FamilyTable(
        "sim-branches",
        0,
        (*_PLAIN, "nnlp-small", "sum", "sum-gp", "corrected"),
        ("sum-gp", "corrected"),
    ),
    FamilyTable(
        "sim-npu",
        0,
        (*_PLAIN, "sum", "sum-gp", "corrected"),
        ("sum", "sum-gp", "corrected"),
    ),
    FamilyTable(
        "store-local-ncnn20261020-fp32-1t",
        0,
        ("flops", "flops_mac", "nn-meter", "sum", "sum-gp"),
        ("sum",),
    ),
)
"""The tables, in the order of the page."""
SEEDS = SeedTable(
    ("sim-overlap", "sim-branches", "sim-npu"),
    (0, 1, 2),
    ("nn-meter", "tpu", "sum", "sum-gp", "corrected"),
    ("sum", "sum-gp", "corrected"),
)
"""The table of seeds."""


def _jobs(folder: Path, source: str) -> dict[str, dict[str, Any]]:
    """What each job of a source found."""
    found: dict[str, dict[str, Any]] = json.loads((folder / f"{source}.json").read_text("utf-8"))[
        "jobs"
    ]
    return found


def _head(first: Sequence[str], methods: Sequence[str], inside: Sequence[str]) -> list[str]:
    """The two lines above the rows of a table."""
    names = [f"`{method}`" for method in methods]
    cells = [*first, *names, *(f"intervals of `{method}` hold, width" for method in inside)]
    return [_row(*cells), "|---" * len(cells) + "|"]


def _mean(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: sum(float(each[name]) for each in records) / len(records) for name in _FIGURES}


def _accuracy(record: Mapping[str, Any], digits: int) -> str:
    return f"{100 * record['mape']:.1f}, {100 * record['within10']:.{digits}f} %"


def _held(record: Mapping[str, Any], digits: int) -> str:
    return f"{100 * record['coverage']:.{digits}f} %, {100 * record['width']:.{digits}f} %"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    for table in TABLES:
        print(f"\n{table.source}, seed {table.seed}", *table.rows(), sep="\n")
    print("\nseeds", *SEEDS.rows(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
