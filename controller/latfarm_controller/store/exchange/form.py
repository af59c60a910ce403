"""The form in which measurements travel between farms: a folder with three files.

- `latfarm-export.json` says who measured, under which licence and how, and what else there is;
- `measurements.parquet` or `measurements.csv` has the columns of `COLUMNS`, a row for each one;
- `graphs.parquet` or `graphs.csv` has a row for each graph: its hash, its name, and the Graph as
  JSON text, which holds no weights.

docs/database.md describes every column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.errors import UsageError
from latfarm_controller.store import rows

MANIFEST = "latfarm-export.json"
"""Name of the file that describes an export."""
FORMAT = "latfarm-export"
"""How an export names its form."""
VERSION = 1
"""Version of the form."""
SUFFIXES: Mapping[str, str] = {"parquet": ".parquet", "csv": ".csv"}
"""Suffixes of the files with rows, by the name of the form."""
COLUMNS = tuple(name for name in rows.MEASUREMENT_COLUMNS if name != "seq")
"""The columns of measurements."""
GRAPH_COLUMNS = ("hash", "name", "graph")
"""The columns of graphs."""
LARGEST_MANIFEST_BYTES = 1 << 20
"""Largest manifest that is read."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where measurements come from.

    Attributes:
        source: who measured, for example the name of a farm or a citation.
        licence: under which licence the measurements may be used.
        method: how it was measured.
    """

    source: str
    licence: str
    method: str

    def check(self) -> None:
        """Refuse an origin that leaves something open.

        Raises:
            UsageError: it names what is missing.
        """
        for name, value in asdict(self).items():
            if not value.strip():
                raise UsageError(
                    f"measurements of others must name their {name}: give it with --{name}"
                )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an export says of itself.

    Attributes:
        origin: where the measurements come from.
        form: `parquet` or `csv`.
        measurements: number of rows.
        graphs: number of graphs.
        written_at_s: Unix time.
    """

    origin: Origin
    form: str
    measurements: int
    graphs: int
    written_at_s: float

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain JSON types."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **asdict(self.origin),
            "form": self.form,
            "measurements": self.measurements,
            "graphs": self.graphs,
            "written_at_s": self.written_at_s,
        }


def read_manifest(folder: Path) -> Manifest:
    """What an export says of itself.

    Raises:
        UsageError: the folder is no export, or one of a newer version.
    """
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(LARGEST_MANIFEST_BYTES))
        named, version, form = told["format"], told["version"], told["form"]
        manifest = Manifest(
            Origin(str(told["source"]), str(told["licence"]), str(told["method"])),
            str(form),
            int(told["measurements"]),
            int(told["graphs"]),
            float(told["written_at_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: this is no export of latfarm: {reason}") from error
    if named != FORMAT or form not in SUFFIXES:
        raise UsageError(f"{path}: this is no export of latfarm: {named!r} in the form {form!r}")
    if version != VERSION:
        raise UsageError(
            f"{path}: this export has version {version!r}, and version {VERSION} is known here; "
            "use a newer latfarm"
        )
    return manifest
