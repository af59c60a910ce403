"""Finds the stored measurements that answer questions about networks.

With an index the cost of an answer does not depend on how many rows there are. Without one, as in a
command that asks a single question, the columns that tell rows apart are scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement

from latfarm_controller.store import rows
from latfarm_controller.store.answer_index import AnswerIndex, Indexed, Kind
from latfarm_controller.store.base import ANSWERING, FOREIGN, AnswerQuery
from latfarm_controller.store.duckdb_file import DuckDBFile, arrow_batches

USED = "seq NOT IN (SELECT seq FROM put_aside)"
"""Condition: the row is not discarded."""
GOOD = f"ok AND isfinite(latency_ms) AND latency_ms > 0 AND {USED} AND protocol_version = ?"
"""Condition: the row has a latency to use. Its parameter is the protocol version."""
TOLD = "CASE WHEN received_at_s > 0 THEN received_at_s ELSE measured_at_s END"
"""`Measurement.told_at_s`: a board's own clock orders only what no controller received."""
BATCH_ROWS = 100_000
"""How many rows are read at a time when the index is built."""
TABLES = {False: "measurements", True: "foreign_measurements"}
"""The table of this farm's own rows, and that of the rows of other farms."""
_READ = ", ".join(rows.READ_COLUMNS)

Convert = Callable[[Sequence[Any]], Measurement]


class AnswerReader:
    """Reads the answers from a database file. Thread-safe.

    Args:
        file: the open database.
        convert: makes a measurement of a row; raises a StoreError if the row is damaged.
    """

    def __init__(self, file: DuckDBFile, convert: Convert) -> None:
        self._file = file
        self._convert = convert
        self._index: AnswerIndex | None = None

    @property
    def indexed(self) -> bool:
        """Whether there is an index."""
        return self._index is not None

    def build_index(self) -> int:
        """Build the index, or build it anew; the number of its rows."""
        index = AnswerIndex()
        purposes = ", ".join(f"'{purpose}'" for purpose in ANSWERING)
        parts = [
            "SELECT coalesce(nullif(network_hash, ''), graph_hash) AS network, graph_hash, seq, "
            f"{TOLD} AS told_at_s, platform, purpose, tier, fingerprint, "
            f"CAST(energy_mj IS NOT NULL AS UTINYINT), CAST({int(foreign)} AS UTINYINT), "
            f"CAST(unstable AS UTINYINT) FROM {table} LEFT JOIN graphs ON hash = graph_hash "
            f"WHERE {GOOD} AND layers = '[]' AND purpose IN ({purposes})"
            for foreign, table in TABLES.items()
        ]
        action = "build the index of answers"
        with self._file.alone(), self._file.read(action) as cursor:
            query, values = " UNION ALL ".join(parts), [PROTOCOL_VERSION] * len(parts)
            index.load(arrow_batches(cursor, query, values, BATCH_ROWS))
            self._index = index
        return len(index)

    def added(
        self,
        measurements: Iterable[tuple[int, Measurement]],
        graphs: Mapping[str, Graph],
    ) -> None:
        """Note rows that were committed, each with its number (`seq`)."""
        if self._index is None:
            return
        self._index.add(
            Indexed(
                _network_of(m, graphs),
                m.graph_hash,
                seq,
                m.told_at_s,
                Kind(
                    m.platform,
                    m.purpose,
                    m.settings.tier,
                    m.fingerprint,
                    energy=m.energy_mj is not None,
                    foreign=False,
                ),
                m.unstable,
            )
            for seq, m in measurements
            if _answers(m)
        )

    def dropped(self, seqs: Iterable[int]) -> None:
        """Note rows that were discarded."""
        if self._index is not None:
            self._index.drop(seqs)

    def find(self, wanted: Sequence[AnswerQuery]) -> list[Measurement | None]:
        """For each question the best good measurement; None where there is none."""
        index = self._index
        found: list[tuple[int, AnswerQuery] | None] = []
        for query in wanted:
            quick = index is not None and query.purposes and set(query.purposes) <= set(ANSWERING)
            seq = index.best(query) if quick and index is not None else self._scan(query)
            found.append(None if seq is None else (seq, query))
        read = self._read({hit[0] for hit in found if hit is not None})
        return [None if hit is None else self._checked(read.get(hit[0]), hit[1]) for hit in found]

    def platforms(self) -> list[str]:
        """The names of all platforms that were measured, here or on other farms."""
        found = self._file.all(
            "SELECT DISTINCT platform FROM measurements UNION "
            "SELECT DISTINCT platform FROM foreign_measurements"
        )
        return sorted(str(row[0]) for row in found)

    def _checked(self, measurement: Measurement | None, query: AnswerQuery) -> Measurement | None:
        """The measurement, if it is of the network that was asked for: marks are only 64 bits."""
        if measurement is None or measurement.graph_hash == query.graph_hash:
            return measurement
        if query.network_hash and self._network(measurement.graph_hash) == query.network_hash:
            return measurement
        seq = self._scan(query)
        return None if seq is None else self._read({seq}).get(seq)

    def _read(self, seqs: set[int]) -> dict[int, Measurement]:
        """The measurements with these numbers."""
        found: dict[int, Measurement] = {}
        if not seqs:
            return found
        # A constant lets DuckDB skip all row groups but one, a joined list does not.
        which = "seq = ?" if len(seqs) == 1 else "seq IN (SELECT unnest(?))"
        value: Any = next(iter(seqs)) if len(seqs) == 1 else sorted(seqs)
        own = self._file.all(f"SELECT seq, {_READ} FROM measurements WHERE {which}", [value])
        for row in own:
            found[int(row[0])] = self._convert(row[1:])
        if len(found) < len(seqs):
            told = ", ".join(name.removeprefix("foreign_") for name in FOREIGN)
            others = self._file.all(
                f"SELECT seq, {told}, {_READ} FROM foreign_measurements "
                f"JOIN imports USING (import_id) WHERE {which}",
                [value],
            )
            for row in others:
                measurement = self._convert(row[1 + len(FOREIGN) :])
                found[int(row[0])] = with_origin(measurement, row[1:])
        return found

    def _hashes(self, network_hash: str) -> list[str]:
        """The hashes of all stored exports of a network."""
        found = self._file.all("SELECT hash FROM graphs WHERE network_hash = ?", [network_hash])
        return [str(row[0]) for row in found]

    def _network(self, graph_hash: str) -> str:
        """The hash of the network of a stored graph; empty if it is not known."""
        found = self._file.all("SELECT network_hash FROM graphs WHERE hash = ?", [graph_hash])
        return str(found[0][0] or "") if found else ""

    def _scan(self, query: AnswerQuery) -> int | None:
        """The number of the best row, found by looking at all rows."""
        others = self._hashes(query.network_hash) if query.network_hash else []
        hashes = sorted({query.graph_hash, *others})
        best: tuple[Any, ...] | None = None
        for foreign, table in TABLES.items():
            if foreign and (best is not None or not query.foreign):
                break
            where, values = _where(query)
            found = self._file.all(
                f"SELECT seq FROM {table} WHERE graph_hash IN ({_places(hashes)}) AND {where} "
                f"AND {GOOD} AND layers = '[]' "
                f"ORDER BY unstable, graph_hash != ?, {TOLD} DESC, seq DESC LIMIT 1",
                [*hashes, *values, PROTOCOL_VERSION, query.graph_hash],
            )
            best = found[0] if found else None
        return None if best is None else int(best[0])


def with_origin(measurement: Measurement, told: Sequence[Any]) -> Measurement:
    """A measurement of another farm with its origin among its conditions; an own one as it is.

    Args:
        measurement: the measurement.
        told: it begins with the values of `FOREIGN`, which are empty for an own measurement.
    """
    origin = dict(zip(FOREIGN, told, strict=False))
    if not any(origin.values()):
        return measurement
    return replace(measurement, conditions={**measurement.conditions, **origin})


def _where(query: AnswerQuery) -> tuple[str, list[object]]:
    """The conditions of a question but for its network, and their values."""
    parts: list[str] = ["platform = ?"]
    values: list[object] = [query.platform]
    if query.purposes:
        parts.append(f"purpose IN ({_places(query.purposes)})")
        values.extend(query.purposes)
    chosen: dict[str, object] = {
        "tier = ?": query.tier,
        "fingerprint = ?": query.fingerprint,
        f"{TOLD} >= ?": query.since_s,
    }
    for part, value in chosen.items():
        if value:
            parts.append(part)
            values.append(value)
    if query.energy:
        parts.append("energy_mj IS NOT NULL")
    return " AND ".join(parts), values


def _places(values: Sequence[object]) -> str:
    """A placeholder for each value."""
    return ", ".join("?" * len(values))


def _answers(measurement: Measurement) -> bool:
    """Whether a measurement may answer questions."""
    latency_ms = measurement.latency_ms
    return (
        measurement.ok
        and latency_ms is not None
        and 0.0 < latency_ms < float("inf")
        and not measurement.layers
        and measurement.purpose in ANSWERING
        and measurement.protocol_version == PROTOCOL_VERSION
    )


def _network_of(measurement: Measurement, graphs: Mapping[str, Graph]) -> str:
    graph = graphs.get(measurement.graph_hash)
    return "" if graph is None else network_hash_of(graph)
