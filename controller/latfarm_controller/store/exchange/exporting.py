"""Writes measurements and their graphs for other farms; `form` describes the files."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.nearest_names import did_you_mean
from latfarm_controller.store.answers import USED
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.exchange.form import (
    COLUMNS,
    GRAPH_COLUMNS,
    MANIFEST,
    SUFFIXES,
    Manifest,
    Origin,
)
from latfarm_controller.store.snapshot import FORMATS


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of this farm's measurements are exported; empty filters select everything."""

    platform: str = ""
    campaign_id: str = ""
    purpose: str = ""


def export(
    file: DuckDBFile, folder: Path, origin: Origin, selection: Selection, form: str = "parquet"
) -> Manifest:
    """Write measurements that are not discarded, with their graphs, into a new folder.

    Measurements of other farms are left out: their own farm gives them, under its licence.

    Args:
        file: the database.
        folder: the new folder; it is there completely or not at all.
        origin: what is said about the measurements.
        selection: which measurements.
        form: `parquet` or `csv`.

    Raises:
        UsageError: the folder exists, something of the origin is missing, or a filter names what
            no measurement has.
        StoreError: the folder cannot be written.
    """
    origin.check()
    if form not in SUFFIXES:
        raise UsageError(f"there is no form {form!r}; known: {', '.join(SUFFIXES)}")
    if folder.exists():
        raise UsageError(f"{folder} exists: name a new folder")
    chosen = {
        "platform": selection.platform,
        "campaign_id": selection.campaign_id,
        "purpose": selection.purpose,
    }
    _refuse_unknown(file, chosen)
    where = " AND ".join(
        [USED, *(f"{name} = '{_quoted(value)}'" for name, value in chosen.items() if value)]
    )
    queries = {
        "measurements": f"SELECT {', '.join(COLUMNS)} FROM measurements WHERE {where} ORDER BY seq",
        "graphs": f"SELECT {', '.join(GRAPH_COLUMNS)} FROM graphs WHERE hash IN "
        f"(SELECT graph_hash FROM measurements WHERE {where}) ORDER BY hash",
    }
    suffix = SUFFIXES[form]
    place = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir()
        counts = {}
        with file.read(f"export to {folder}") as cursor:
            cursor.execute("BEGIN TRANSACTION")  # both files show the same moment
            for name, query in queries.items():
                to = _quoted(str(place / f"{name}{suffix}"))
                written = cursor.execute(f"COPY ({query}) TO '{to}' ({FORMATS[suffix]})").fetchone()
                counts[name] = int(written[0]) if written else 0
            cursor.execute("COMMIT")
        manifest = Manifest(origin, form, counts["measurements"], counts["graphs"], time.time())
        text = json.dumps(manifest.to_json(), indent=1) + "\n"
        (place / MANIFEST).write_text(text, encoding="utf-8")
        place.rename(folder)
    except OSError as error:
        raise StoreError(f"{folder}: cannot write the export: {error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return manifest


def _refuse_unknown(file: DuckDBFile, chosen: Mapping[str, str]) -> None:
    """Refuse a value of a column that no measurement has, and offer the nearest ones."""
    for name, value in chosen.items():
        if not value:
            continue
        found = file.all(f"SELECT DISTINCT {name} FROM measurements WHERE {USED} ORDER BY 1")
        known = [str(row[0]) for row in found if row[0]]
        if value not in known:
            word = name.removesuffix("_id")
            raise UsageError(
                f"no measurement has the {word} {value!r}; {did_you_mean(value, known)}"
            )


def _quoted(text: str) -> str:
    return text.replace("'", "''")
