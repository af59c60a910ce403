"""Rows of others as measurements: every field is checked, and a bad one is told by its line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer, Settings

LARGEST_TEXT = 100_000
"""Most letters of a text in a row."""
LEAST_LATENCY_MS = 1e-6
"""Least latency in milliseconds that is believed: a nanosecond."""
LARGEST_LATENCY_MS = 1e9
"""Largest latency in milliseconds that is believed: eleven days."""

_TEXTS = (
    *("request_id", "graph_hash", "platform", "purpose", "board_id", "fingerprint"),
    *("error_code", "error_message", "energy_source"),
)
_NEEDED = ("request_id", "graph_hash", "platform", "purpose")
_TIMES = (
    *("mad_ms", "min_ms", "p90_ms", "p99_ms", "cold_ms", "load_ms", "compile_ms", "first_run_ms"),
    *("energy_mj", "energy_gross_mj", "energy_spread_mj", "idle_mw"),
)
_COUNTS = ("runs", "rejected_runs", "memory_bytes", "device_memory_bytes", "protocol_version")
_CLOCKS = ("board_ms", "measured_at_s", "received_at_s")
_SETTINGS: Mapping[str, type[Any]] = {each.name: type(each.default) for each in fields(Settings)}

Row = Mapping[str, Any]
"""One row as a file has it: texts, or values of Parquet. An empty text is a missing value."""


class BadRowError(ValueError):
    """A row is no measurement; the message says why."""


def measurement_of(row: Row) -> Measurement:
    """The measurement in a row with the columns of an export.

    Raises:
        BadRowError: a field is missing, or has a value that no measurement has.
    """
    texts = {name: _text(row, name) for name in _TEXTS}
    for name in _NEEDED:
        if not texts[name]:
            raise BadRowError(f"{name} is missing")
    told = _text(row, "outcome")
    try:
        outcome = Outcome(told)
    except ValueError:
        raise BadRowError(f"outcome is {told!r}") from None
    latency_ms = _number(row, "latency_ms")
    if outcome is Outcome.OK:
        latency_ms = checked_latency(latency_ms)
    known: dict[str, Any] = {
        **texts,
        "outcome": outcome,
        "latency_ms": latency_ms,
        "unstable": _truth(row, "unstable"),
        "session_ms": tuple(_sessions(row)),
        "layers": tuple(_layers(row)),
        "settings": _settings(row),
        "conditions": _conditions(row),
        **{name: _number(row, name) for name in _TIMES},
        **{name: _count(row, name) for name in _COUNTS},
        **{name: max(0.0, _number(row, name) or 0.0) for name in _CLOCKS},
    }
    return Measurement(**known)


def checked_latency(latency_ms: float | None) -> float:
    """A latency in milliseconds that can be true.

    Raises:
        BadRowError: it is missing, no number, zero, negative, or beyond all bounds.
    """
    if latency_ms is None:
        raise BadRowError("latency_ms is missing")
    if not math.isfinite(latency_ms) or not LEAST_LATENCY_MS <= latency_ms <= LARGEST_LATENCY_MS:
        raise BadRowError(f"latency_ms is {latency_ms}")
    return latency_ms


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRowError(f"{name} is no text")
    if len(value) > LARGEST_TEXT:
        raise BadRowError(f"{name} has {len(value)} letters, and {LARGEST_TEXT} are the most")
    return value


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadRowError(f"{name} is {str(value)[:40]!r}, which is no number") from None
    if not math.isfinite(number):
        raise BadRowError(f"{name} is {number}")
    return number


def _count(row: Row, name: str) -> int:
    number = _number(row, name) or 0.0
    if number < 0 or number != int(number) or number > 2**63:
        raise BadRowError(f"{name} is {number}, which is no count")
    return int(number)


def _truth(row: Row, name: str) -> bool:
    value = row.get(name)
    told = {None: False, "": False, "false": False, "true": True, "0": False, "1": True}
    found = value if isinstance(value, bool) else told.get(_folded(value))
    if found is None:
        raise BadRowError(f"{name} is {str(value)[:40]!r}, which is neither true nor false")
    return found


def _folded(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _json(row: Row, name: str, kind: type[Any]) -> Any:
    text = _text(row, name)
    if not text:
        return kind()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRowError(f"{name} is no JSON") from None
    if not isinstance(value, kind):
        raise BadRowError(f"{name} is {type(value).__name__} where {kind.__name__} belongs")
    return value


def _sessions(row: Row) -> list[float]:
    return _each(_json(row, "session_ms", list), "session_ms", _finite)


def _layers(row: Row) -> list[ProfiledLayer]:
    return _each(_json(row, "layers", list), "layers", lambda told: ProfiledLayer(**told))


def _each(values: list[Any], name: str, read: Callable[[Any], Any]) -> list[Any]:
    try:
        return [read(value) for value in values]
    except (TypeError, ValueError) as error:
        raise BadRowError(f"{name} holds what does not belong there: {error}") from None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def _settings(row: Row) -> Settings:
    told = _json(row, "settings", dict)
    known: dict[str, Any] = {}
    for name, kind in _SETTINGS.items():
        if name not in told:
            continue
        value: Any = told[name]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind or (kind is float and not math.isfinite(value)):
            raise BadRowError(f"settings: {name} is {str(told[name])[:40]!r}")
        known[name] = value
    return Settings(**known)


def _conditions(row: Row) -> dict[str, str]:
    told = _json(row, "conditions", dict)
    if not all(isinstance(value, str) for value in told.values()):
        raise BadRowError("conditions: a value is no text")
    return dict(told)
