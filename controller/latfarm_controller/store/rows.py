"""Domain objects <-> rows of the tables. Structured fields are JSON text."""

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

from latfarm_controller.store.base import BoardEvent, BundleRecord, CampaignRecord

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
)
BOARD_EVENT_COLUMNS = ("board", "board_id", "event", "reason", "actor", "at_s", "details")
BUNDLE_COLUMNS = ("platform", "version", "path", "created_at_s", "provenance")

_ENCODER = json.JSONEncoder(separators=(",", ":"))

# Fields whose value is the column's value.
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
"""What `measurement_from_row` wants, in order."""


def measurement_table(
    rows: Iterable[tuple[int, str, Measurement]],
) -> Any:
    """(seq, campaign id, measurement) rows as one Arrow table in the order of the columns."""
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


def plain_table(measurements: Iterable[Measurement]) -> Any:
    """Measurements as an Arrow table without the columns that only a store knows."""
    table = measurement_table((0, "", measurement) for measurement in measurements)
    return table.drop_columns(["seq", "campaign_id"])


def measurement_from_row(row: Sequence[Any]) -> Measurement:
    """Read a row of READ_COLUMNS."""
    plain = dict(zip(_PLAIN, row, strict=False))
    outcome, session_ms, layers, settings, conditions = row[len(_PLAIN) :]
    return Measurement(
        **plain,
        outcome=Outcome(outcome),
        session_ms=() if session_ms == "[]" else tuple(json.loads(session_ms)),
        layers=()
        if layers == "[]"
        else tuple(ProfiledLayer(**layer) for layer in json.loads(layers)),
        settings=_settings(settings),
        conditions=dict(_conditions(conditions)),
    )


def graph_table(graphs: Iterable[tuple[str, Graph]]) -> Any:
    """(hash, graph) rows as one Arrow table."""
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
    """Read the `graph` column.

    Raises:
        GraphError: it is no graph.
    """
    return Graph.from_json(json.loads(text))


def board_event_row(event: BoardEvent) -> list[Any]:
    """An event in the order of BOARD_EVENT_COLUMNS."""
    return [
        dumps(dict(event.details)) if name == "details" else getattr(event, name)
        for name in BOARD_EVENT_COLUMNS
    ]


def board_event_from_row(row: Sequence[Any]) -> BoardEvent:
    """Read a row of BOARD_EVENT_COLUMNS."""
    fields = dict(zip(BOARD_EVENT_COLUMNS, row, strict=True))
    return BoardEvent(**{**fields, "details": json.loads(fields["details"])})


def campaign_row(record: CampaignRecord) -> list[Any]:
    """A record in the order of CAMPAIGN_COLUMNS."""
    return [
        dumps(dict(getattr(record, name)))
        if name in {"config", "outcome"}
        else getattr(record, name)
        for name in CAMPAIGN_COLUMNS
    ]


def campaign_from_row(row: Sequence[Any]) -> CampaignRecord:
    """Read a row of CAMPAIGN_COLUMNS."""
    fields = dict(zip(CAMPAIGN_COLUMNS, row, strict=True))
    fields["config"] = json.loads(fields["config"])
    fields["outcome"] = json.loads(fields["outcome"])
    return CampaignRecord(**fields)


def bundle_row(record: BundleRecord) -> list[Any]:
    """A record in the order of BUNDLE_COLUMNS."""
    return [
        record.platform,
        record.version,
        record.path,
        record.created_at_s,
        dumps(dict(record.provenance)),
    ]


def bundle_from_row(row: Sequence[Any]) -> BundleRecord:
    """Read a row of BUNDLE_COLUMNS."""
    platform, version, path, created_at_s, provenance = row
    return BundleRecord(platform, version, path, created_at_s, json.loads(provenance))


def dumps(value: Any) -> str:
    """Compact JSON text."""
    return _ENCODER.encode(value)


@lru_cache(maxsize=1024)
def _settings_text(settings: Settings) -> str:
    return dumps(asdict(settings))


@lru_cache(maxsize=1024)
def _settings(text: str) -> Settings:
    return Settings(**json.loads(text))


@lru_cache(maxsize=1024)
def _conditions(text: str) -> dict[str, str]:
    """Shared: copy it before it leaves this module."""
    found: dict[str, str] = json.loads(text)
    return found


def _table(columns: dict[str, list[Any]], types: dict[str, Any]) -> Any:
    return pa.table(
        [pa.array(columns[name], type=kind) for name, kind in types.items()],
        names=list(types),
    )
