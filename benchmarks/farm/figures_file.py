"""The file with the figures of the farm benchmark: each row is written as soon as it has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole

from benchmarks.farm.targets import judged


class FiguresFile:
    """Keeps rows, so that a benchmark that was interrupted can be continued.

    Args:
        path: the file.
        again: run the rows that it has again.
    """

    def __init__(self, path: Path, *, again: bool = False) -> None:
        self._path = path
        self._again = again

    def valid_row(self, name: str, seconds: float) -> dict[str, Any] | None:
        """The figures of a row that was valid and as long; None if it is to be run."""
        if self._again:
            return None
        for row in self._read():
            same = row["name"] == name and row.get("seconds") == seconds
            if same and row.get("valid") and not row.get("failures"):
                return dict(row)
        return None

    def put(self, figures: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
        """Write a row, in the place of an earlier one of its name.

        Args:
            figures: of the row.
            machine: on which it was taken.
        """
        others = [row for row in self._read() if row["name"] != figures["name"]]
        rows = [*others, figures]
        told = {**machine, "rows": rows, "targets": [each.to_json() for each in judged(rows)]}
        with written_whole(self._path) as part:
            part.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")

    def _read(self) -> list[Mapping[str, Any]]:
        try:
            found: list[Mapping[str, Any]] = json.loads(self._path.read_text("utf-8"))["rows"]
        except FileNotFoundError:
            return []
        return found
