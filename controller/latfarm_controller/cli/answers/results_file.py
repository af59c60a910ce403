"""Results as CSV or Parquet: measurements with their networks, kernels and campaigns.

Parquet has nested fields as nested types. CSV knows no such types, so they are JSON text there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.slow_core import SlowCore
from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import StoreError, UsageError

if TYPE_CHECKING:
    from latfarm_predictors.measurement import Measurement

Result = tuple["Measurement", Mapping[str, Any]]
"""A measurement, and what the store knows of it besides (`app.result_details`)."""
SUFFIXES = (".csv", ".parquet")
"""Endings of the names of files that can be written."""
BATCH_ROWS = 10_000
"""How many measurements are written at a time."""
_ORIGIN = ("network", "kernel", "campaign", "campaign_id")
"""Text columns from the details."""
_NUMBERS = (
    *("batch", "in_h", "in_w", "in_channels", "out_h", "out_w", "out_channels"),
    *("in_features", "out_features", "matrices", "groups", "inputs", "contiguous"),
)
"""Sizes in the configuration of a kernel that are whole numbers."""
_WORDS = ("family", "kernel", "stride", "dilation")
"""Values in the configuration of a kernel that are texts, windows as "3x3"."""
_TIMES = ("measured_at", "received_at")
"""Columns with a point in time, beside which the Unix times `..._at_s` stay."""


def check_path(path: Path) -> None:
    """Check that a file of this name can be written.

    Raises:
        UsageError: its suffix is unknown, it is a folder, or its folder does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: the name of the file must end in .csv or .parquet")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: there is no such folder; create it first")


def write_results(path: Path, results: Iterable[Result]) -> int:
    """Write results to a file; returns the number of rows.

    Args:
        path: the file; its suffix says the format.
        results: what to write.

    Raises:
        UsageError: see `check_path`.
        StoreError: the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    check_path(path)
    nested = path.suffix.lower() == ".parquet"
    schema = _schema(nested=nested)
    make_writer: Any = parquet.ParquetWriter if nested else csv.CSVWriter
    rows, source = 0, iter(results)
    try:
        with written_whole(path) as part, make_writer(part, schema) as writer:
            while batch := list(islice(source, BATCH_ROWS)):
                told = [_row(measurement, details, nested=nested) for measurement, details in batch]
                writer.write_table(pa.Table.from_pylist(told, schema=schema))
                rows += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: cannot be written: {error}") from error
    return rows


def moment(unix_s: float) -> datetime | None:
    """A Unix time as a point in time; None where there is none, or none that a calendar has."""
    try:
        return datetime.fromtimestamp(unix_s, UTC) if unix_s > 0 else None
    except (OverflowError, OSError, ValueError):
        return None


def _schema(*, nested: bool) -> Any:
    """The columns: where it comes from, the kernel's sizes, the measurement, what corrects it."""
    import pyarrow as pa

    from latfarm_controller.store.rows import MEASUREMENT_COLUMNS

    structured = _nested_types() if nested else {}
    columns: list[tuple[str, Any]] = [(name, pa.string()) for name in _ORIGIN]
    columns += [(_column(name), pa.string()) for name in _WORDS]
    columns += [(_column(name), pa.int64()) for name in _NUMBERS]
    columns += [(name, pa.timestamp("us", tz="UTC")) for name in _TIMES]
    columns += [
        (name, structured.get(name, kind))
        for name, kind in MEASUREMENT_COLUMNS.items()
        if name not in ("seq", "campaign_id")
    ]
    columns += [(name, pa.float64()) for name in ("corrected_ms", "timed_ms")]
    return pa.schema(columns)


def _nested_types() -> dict[str, Any]:
    """Arrow types of the fields of a measurement that have parts."""
    from dataclasses import fields

    import pyarrow as pa
    from latfarm_predictors.measurement import ProfiledLayer, Settings

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}

    def struct_of(kind: Any) -> Any:
        return pa.struct([(entry.name, kinds[str(entry.type)]) for entry in fields(kind)])

    return {
        "session_ms": pa.list_(pa.float64()),
        "layers": pa.list_(struct_of(ProfiledLayer)),
        "settings": struct_of(Settings),
        "conditions": pa.map_(pa.string(), pa.string()),
    }


def _column(name: str) -> str:
    """The column of a value in a kernel's configuration; "kernel" is the type of the kernel."""
    return f"config_{name}"


def _row(measurement: Measurement, details: Mapping[str, Any], *, nested: bool) -> dict[str, Any]:
    """The values of one row by column."""
    core = SlowCore.told_by(measurement).latency(measurement)
    configuration = details.get("configuration", {})
    row: dict[str, Any] = {name: details.get(name, "") for name in _ORIGIN}
    row |= {_column(name): configuration.get(name) for name in (*_WORDS, *_NUMBERS)}
    row |= {name: moment(getattr(measurement, f"{name}_s")) for name in _TIMES}
    plain = asdict(measurement)
    row |= {**plain, "outcome": str(measurement.outcome), "ok": measurement.ok}
    row["tier"] = measurement.settings.tier
    row["conditions"] = dict(measurement.conditions)
    if nested:
        row["conditions"] = list(measurement.conditions.items())
    else:
        for name in ("session_ms", "layers", "settings", "conditions"):
            row[name] = json.dumps(row[name], separators=(",", ":"))
    row["corrected_ms"] = None if core is None else core.corrected_ms
    row["timed_ms"] = None if core is None else core.timed_ms
    return row
