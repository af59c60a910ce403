"""Conversion between the controller's own types and rows of tables.

Fields with structure, such as settings, are stored as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import pyarrow as pa
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer, Settings

from latfarm_controller.store.base import BoardEvent, CampaignRecord, FoundResult

# Column name -> Arrow type, in the order of the table.
MEASUREMENT_COLUMNS: dict[str, Any] = {
    "seq": pa.int64(),
    "campaign_id": pa.string(),
    "request_id": pa.string(),
    "graph_hash": pa.string(),
    "platform": pa.string(),
    "purpose": pa.string(),
    "outcome": pa.string(),
    "ok": pa.bool_(),
    "unstable": pa.bool_(),
    "board_id": pa.string(),
    "fingerprint": pa.string(),
    "error_code": pa.string(),
    "error_message": pa.string(),
    "latency_ms": pa.float64(),
    "mad_ms": pa.float64(),
    "min_ms": pa.float64(),
    "p90_ms": pa.float64(),
    "p99_ms": pa.float64(),
    "cold_ms": pa.float64(),
    "load_ms": pa.float64(),
    "compile_ms": pa.float64(),
    "first_run_ms": pa.float64(),
    "runs": pa.int64(),
    "rejected_runs": pa.int64(),
    "memory_bytes": pa.uint64(),
    "board_ms": pa.float64(),
    "measured_at_s": pa.float64(),
    "protocol_version": pa.int32(),
    "tier": pa.string(),
    "session_ms": pa.string(),
    "layers": pa.string(),
    "settings": pa.string(),
    "conditions": pa.string(),
    "energy_mj": pa.float64(),
    "energy_gross_mj": pa.float64(),
    "energy_spread_mj": pa.float64(),
    "idle_mw": pa.float64(),
    "energy_source": pa.string(),
    "received_at_s": pa.float64(),
    "device_memory_bytes": pa.uint64(),
}
GRAPH_COLUMNS: dict[str, Any] = {
    "hash": pa.string(),
    "name": pa.string(),
    "graph": pa.string(),
    "ops": pa.int32(),
    "macs": pa.int64(),
    "network_hash": pa.string(),
}
CAMPAIGN_COLUMNS = (
    "campaign_id",
    "name",
    "kind",
    "platform",
    "config",
    "state",
    "stage",
    "stage_done",
    "stage_total",
    "measurements",
    "failures",
    "board_ms",
    "wall_ms",
    "started_at_s",
    "finished_at_s",
    "outcome",
    "error",
    "waiting_for",
    "unattended",
)
CAMPAIGN_JSON_COLUMNS = frozenset({"config", "outcome"})
"""Those of them that are JSON texts, of any size."""
CAMPAIGN_COLUMNS_BRIEFLY = tuple(
    f"'{{}}' AS {name}" if name in CAMPAIGN_JSON_COLUMNS else name for name in CAMPAIGN_COLUMNS
)
"""What is selected in the place of CAMPAIGN_COLUMNS where nobody reads these texts."""
FOUND_RESULT_COLUMNS = (
    *("request_id", "board_id", "platform", "fingerprint"),
    *("received_at_s", "payload"),
)
BOARD_EVENT_COLUMNS = ("board", "board_id", "event", "reason", "actor", "at_s", "details")

_ENCODER = json.JSONEncoder(separators=(",", ":"))

# The fields of a measurement that are stored as they are.
_PLAIN = tuple(
    name
    for name in MEASUREMENT_COLUMNS
    if name
    not in {
        "seq",
        "campaign_id",
        "ok",
        "tier",
        "outcome",
        "session_ms",
        "layers",
        "settings",
        "conditions",
    }
)
READ_COLUMNS = (*_PLAIN, "outcome", "session_ms", "layers", "settings", "conditions")
"""The columns that `measurement_from_row` reads, in order."""


def measurement_table(
    rows: Iterable[tuple[int, str, Measurement]],
) -> Any:
    """One Arrow table of measurements, with the columns of the database's table, in their order.

    Args:
        rows: for each measurement, its number (`seq`), its campaign's id, and itself.
    """
    columns: dict[str, list[Any]] = {name: [] for name in MEASUREMENT_COLUMNS}
    for seq, campaign_id, measurement in rows:
        columns["seq"].append(seq)
        columns["campaign_id"].append(campaign_id)
        for name in _PLAIN:
            columns[name].append(getattr(measurement, name))
        columns["outcome"].append(str(measurement.outcome))
        columns["ok"].append(measurement.ok)
        columns["tier"].append(measurement.settings.tier)
        columns["session_ms"].append(dumps(measurement.session_ms))
        columns["layers"].append(
            dumps([asdict(layer) for layer in measurement.layers]) if measurement.layers else "[]"
        )
        columns["settings"].append(_settings_text(measurement.settings))
        columns["conditions"].append(dumps(dict(measurement.conditions)))
    return _table(columns, MEASUREMENT_COLUMNS)


def measurement_from_row(row: Sequence[Any]) -> Measurement:
    """The measurement in a row with the columns READ_COLUMNS."""
    plain = dict(zip(_PLAIN, row, strict=False))
    outcome, session_ms, layers, settings, conditions = row[len(_PLAIN) :]
    return Measurement(
        **plain,
        outcome=Outcome(outcome),
        session_ms=() if session_ms == "[]" else tuple(_list(session_ms)),
        layers=() if layers == "[]" else tuple(ProfiledLayer(**layer) for layer in _list(layers)),
        settings=_settings(settings),
        conditions=dict(_conditions(conditions)),
    )


def graph_table(graphs: Iterable[tuple[str, Graph]]) -> Any:
    """One Arrow table of graphs, each given with its hash."""
    columns: dict[str, list[Any]] = {name: [] for name in GRAPH_COLUMNS}
    for graph_hash, graph in graphs:
        columns["hash"].append(graph_hash)
        columns["name"].append(graph.name)
        columns["graph"].append(graph.dumps())
        columns["ops"].append(len(graph.nodes))
        columns["macs"].append(graph_totals(graph).macs)
        columns["network_hash"].append(network_hash_of(graph))
    return _table(columns, GRAPH_COLUMNS)


def graph_from_text(text: str) -> Graph:
    """The graph in a value of the `graph` column.

    Raises:
        GraphError: the value is no graph.
    """
    return Graph.from_json(json.loads(text))


def board_event_row(event: BoardEvent) -> list[Any]:
    """The values of an event for the columns BOARD_EVENT_COLUMNS."""
    return [
        dumps(dict(event.details)) if name == "details" else getattr(event, name)
        for name in BOARD_EVENT_COLUMNS
    ]


def board_event_from_row(row: Sequence[Any]) -> BoardEvent:
    """The event in a row with the columns BOARD_EVENT_COLUMNS."""
    fields = dict(zip(BOARD_EVENT_COLUMNS, row, strict=True))
    return BoardEvent(**{**fields, "details": _object(fields["details"])})


def campaign_row(record: CampaignRecord) -> list[Any]:
    """The values of a campaign's record for the columns CAMPAIGN_COLUMNS."""
    return [
        dumps(dict(getattr(record, name)))
        if name in CAMPAIGN_JSON_COLUMNS
        else getattr(record, name)
        for name in CAMPAIGN_COLUMNS
    ]


def campaign_from_row(row: Sequence[Any]) -> CampaignRecord:
    """The campaign's record in a row with the columns CAMPAIGN_COLUMNS."""
    fields = dict(zip(CAMPAIGN_COLUMNS, row, strict=True))
    fields["config"] = _object(fields["config"])
    fields["outcome"] = _object(fields["outcome"])
    return CampaignRecord(**fields)


def found_result_from_row(row: Sequence[Any]) -> FoundResult:
    """The result of a board's spool in a row with the columns FOUND_RESULT_COLUMNS."""
    fields = dict(zip(FOUND_RESULT_COLUMNS, row, strict=True))
    return FoundResult(**{**fields, "payload": bytes(fields["payload"])})


def dumps(value: Any) -> str:
    """A value as JSON text without spaces."""
    return _ENCODER.encode(value)


@lru_cache(maxsize=1024)
def _settings_text(settings: Settings) -> str:
    return dumps(asdict(settings))


@lru_cache(maxsize=1024)
def _settings(text: str) -> Settings:
    return Settings(**_object(text))


@lru_cache(maxsize=1024)
def _conditions(text: str) -> dict[str, str]:
    """The conditions in JSON text. The dictionary is cached: copy it before returning it."""
    found: dict[str, str] = _object(text)
    return found


def _list(text: str) -> list[Any]:
    """The JSON list in a text.

    Raises:
        ValueError: the text is no JSON, or no list.
    """
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError(f"{type(found).__name__} where a list belongs")  # noqa: TRY004
    return found


def _object(text: str) -> dict[str, Any]:
    """The JSON object in a text.

    Raises:
        ValueError: the text is no JSON, or no object.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} where an object belongs")  # noqa: TRY004
    return found


def _table(columns: dict[str, list[Any]], types: dict[str, Any]) -> Any:
    return pa.table(
        [pa.array(columns[name], type=kind) for name, kind in types.items()],
        names=list(types),
    )
