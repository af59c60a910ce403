"""The store in a DuckDB file: what it keeps, and how it is asked for.

Writes go through one lock, in one transaction a call; reads take a cursor of their own and see
the last commit. A commit is on disk when the call returns: a killed process loses nothing told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import duckdb
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement

from latfarm_controller.store import rows, snapshot, writes
from latfarm_controller.store.base import BoardEvent, BundleRecord, CampaignRecord
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.lock import Holder
from latfarm_controller.store.migrate import schema_version

PAGE_ROWS = 2000
"""How many measurements a listing reads at a time."""

_USED = "seq NOT IN (SELECT seq FROM put_aside)"
_GOOD = f"ok AND isfinite(latency_ms) AND latency_ms > 0 AND {_USED} AND protocol_version = ?"
_READ = ", ".join(rows.READ_COLUMNS)


class DuckDBStore:
    """A `Store` in one file, held by one process at a time; see the protocol for its methods.

    Args:
        path: the database file; made with its folder when absent. Its lock lies beside it.
        lock_timeout_ms: how long to wait for another process that holds it.
        on_wait: called once, with the holder, before such a wait.

    Raises:
        StoreBusyError: another process holds the file.
        StoreError: the file is damaged, of another program, or of a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        lock_timeout_ms: float = 0.0,
        on_wait: Callable[[Holder | None], None] | None = None,
    ) -> None:
        self.path = path
        self._file = DuckDBFile(path, lock_timeout_ms, on_wait)
        # Hashes that were seen in the file: nobody else writes it, and no graph ever leaves it.
        self._graphs_kept: set[str] = set()

    def put_graph(self, graph: Graph) -> None:
        """Keep a graph by its hash; a second time is no change."""
        with self._file.transaction("write a graph") as cursor:
            writes.put_graphs(cursor, {hash_of(graph): graph}, self._graphs_kept)

    def get_graph(self, graph_hash: str) -> Graph | None:
        """The graph of that hash, if kept."""
        with self._file.read("read a graph") as cursor:
            found = cursor.execute(
                "SELECT graph FROM graphs WHERE hash = ?", [graph_hash]
            ).fetchone()
            return rows.graph_from_text(found[0]) if found else None

    def add_measurements(
        self, campaign_id: str, measurements: Sequence[tuple[Measurement, Graph]]
    ) -> None:
        """Keep measurements with their graphs in one transaction."""
        told: dict[str, Measurement] = {}
        graphs: dict[str, Graph] = {}
        for measurement, graph in measurements:
            graphs.setdefault(measurement.graph_hash, graph)
            before = told.get(measurement.request_id)
            if before is None or (measurement.ok and not before.ok):
                told[measurement.request_id] = measurement
        if not told:
            return
        with self._file.transaction("write measurements") as cursor:
            writes.put_graphs(cursor, graphs, self._graphs_kept)
            known = dict(
                cursor.execute(
                    f"SELECT request_id, ok AND {_USED} FROM measurements "
                    "WHERE campaign_id = ? AND request_id IN (SELECT unnest(?))",
                    [campaign_id, list(told)],
                ).fetchall()
            )
            new = [measurement for name, measurement in told.items() if name not in known]
            mended = [told[name] for name, was_ok in known.items() if told[name].ok and not was_ok]
            # Not ON CONFLICT DO UPDATE, which takes three times as long as looking first.
            writes.insert_measurements(cursor, self._file.take_seq(len(new)), campaign_id, new)
            writes.replace_measurements(cursor, campaign_id, mended)

    def campaign_measurements(self, campaign_id: str) -> dict[str, Measurement]:
        """The campaign's measurements by request id, in the order they were told."""
        found = self._file.all(
            f"SELECT {_READ} FROM measurements WHERE campaign_id = ? AND {_USED} ORDER BY seq",
            [campaign_id],
        )
        read = (rows.measurement_from_row(row) for row in found)
        return {measurement.request_id: measurement for measurement in read}

    def measurements(
        self,
        *,
        platform: str = "",
        campaign_id: str = "",
        purpose: str = "",
        graph_hash: str = "",
        limit: int = 0,
    ) -> Iterator[Measurement]:
        """Measurements, newest first; read page by page, each page as of its reading."""
        filters = {
            "platform": platform,
            "campaign_id": campaign_id,
            "purpose": purpose,
            "graph_hash": graph_hash,
        }
        where, values = _where(filters)
        left = limit if limit > 0 else -1
        after: list[object] = []
        while left != 0:
            page = PAGE_ROWS if left < 0 else min(PAGE_ROWS, left)
            beyond = " AND (measured_at_s, seq) < (?, ?)" if after else ""
            found = self._file.all(
                f"SELECT measured_at_s, seq, {_READ} FROM measurements WHERE {where}{beyond} "
                f"ORDER BY measured_at_s DESC, seq DESC LIMIT {page}",
                [*values, *after],
            )
            for row in found:
                yield rows.measurement_from_row(row[2:])
            if len(found) < page:
                return
            after = list(found[-1][:2])
            left = left - len(found) if left > 0 else left

    def latest(
        self,
        graph_hash: str,
        platform: str,
        purpose: str = "",
        *,
        network_hash: str = "",
        tier: str = "",
        fingerprint: str = "",
        energy: bool = False,
    ) -> Measurement | None:
        """The newest good measurement of a graph, a stable one before an unstable one."""
        filters = {
            "platform": platform,
            "purpose": purpose,
            "tier": tier,
            "fingerprint": fingerprint,
        }
        where, values = _where(filters)
        where += " AND energy_mj IS NOT NULL" if energy else ""
        graphs, hashes = "graph_hash = ?", [graph_hash]
        if network_hash:
            others = "SELECT hash FROM graphs WHERE network_hash = ?"
            graphs, hashes = f"({graphs} OR graph_hash IN ({others}))", [graph_hash, network_hash]
        found = self._file.all(
            f"SELECT {_READ} FROM measurements WHERE {where} AND {_GOOD} AND layers = '[]' "
            f"AND {graphs} "
            "ORDER BY unstable, graph_hash != ?, measured_at_s DESC, seq DESC LIMIT 1",
            [*values, PROTOCOL_VERSION, *hashes, graph_hash],
        )
        return rows.measurement_from_row(found[0]) if found else None

    def training_rows(
        self, platform: str, purpose: str, *, fingerprint: str = ""
    ) -> list[tuple[Measurement, Graph]]:
        """All good measurements of a purpose with their graphs, oldest first."""
        where, values = _where(
            {"platform": platform, "purpose": purpose, "fingerprint": fingerprint}
        )
        # First one row a physical measurement, then the unstable ones only where nothing is better.
        chosen = (
            f"WITH good AS (SELECT * FROM measurements WHERE {where} AND {_GOOD} "
            "QUALIFY row_number() OVER "
            "(PARTITION BY request_id, board_id, measured_at_s ORDER BY seq) = 1), "
            "chosen AS (SELECT * FROM good QUALIFY NOT unstable "
            "OR bool_and(unstable) OVER (PARTITION BY graph_hash)) "
        )
        with self._file.read("read training rows") as cursor:
            cursor.execute("BEGIN TRANSACTION")
            parameters = [*values, PROTOCOL_VERSION]
            found = cursor.execute(
                f"{chosen} SELECT {_READ} FROM chosen ORDER BY measured_at_s, seq", parameters
            ).fetchall()
            texts = cursor.execute(
                f"{chosen} SELECT hash, graph FROM graphs "
                "WHERE hash IN (SELECT graph_hash FROM chosen)",
                parameters,
            ).fetchall()
            cursor.execute("COMMIT")
            graphs = {graph_hash: rows.graph_from_text(text) for graph_hash, text in texts}
        read = [rows.measurement_from_row(row) for row in found]
        return [(measurement, graphs[measurement.graph_hash]) for measurement in read]

    def put_campaign(self, record: CampaignRecord) -> None:
        """Keep or replace a campaign's record."""
        with self._file.transaction("write a campaign") as cursor:
            row, take_seq = rows.campaign_row(record), self._file.take_seq
            writes.upsert(cursor, take_seq, "campaigns", rows.CAMPAIGN_COLUMNS, 1, row)

    def get_campaign(self, campaign_id: str) -> CampaignRecord | None:
        """The campaign of that id or name (the newest of that name)."""
        found = self._file.all(
            f"SELECT {', '.join(rows.CAMPAIGN_COLUMNS)} FROM campaigns "
            "WHERE campaign_id = $key OR name = $key "
            "ORDER BY campaign_id = $key DESC, started_at_s DESC, seq DESC LIMIT 1",
            {"key": campaign_id},
        )
        return rows.campaign_from_row(found[0]) if found else None

    def campaigns(self) -> list[CampaignRecord]:
        """All campaigns, newest first."""
        found = self._file.all(
            f"SELECT {', '.join(rows.CAMPAIGN_COLUMNS)} FROM campaigns "
            "ORDER BY started_at_s DESC, seq DESC"
        )
        return [rows.campaign_from_row(row) for row in found]

    def put_bundle(self, record: BundleRecord) -> None:
        """Keep or replace the record of a bundle."""
        with self._file.transaction("write a bundle") as cursor:
            row, take_seq = rows.bundle_row(record), self._file.take_seq
            writes.upsert(cursor, take_seq, "bundles", rows.BUNDLE_COLUMNS, 2, row)

    def latest_bundle(self, platform: str) -> BundleRecord | None:
        """The platform's newest bundle, if it has any."""
        return next(iter(self.bundles(platform)), None)

    def bundles(self, platform: str = "") -> list[BundleRecord]:
        """Bundles, newest first; of all platforms by default."""
        where, values = _where({"platform": platform})
        found = self._file.all(
            f"SELECT {', '.join(rows.BUNDLE_COLUMNS)} FROM bundles WHERE {where} "
            "ORDER BY created_at_s DESC, seq DESC",
            values,
        )
        return [rows.bundle_from_row(row) for row in found]

    def add_board_event(self, event: BoardEvent) -> None:
        """Keep what was decided about a board."""
        with self._file.transaction("write a board's event") as cursor:
            row = rows.board_event_row(event)
            seq = self._file.take_seq()
            writes.insert(cursor, seq, "board_events", rows.BOARD_EVENT_COLUMNS, row)

    def board_events(self, board: str = "", limit: int = 0) -> list[BoardEvent]:
        """What was decided about a board, or about any, newest first."""
        where, values = _where({"board": board})
        found = self._file.all(
            f"SELECT {', '.join(rows.BOARD_EVENT_COLUMNS)} FROM board_events WHERE {where} "
            f"ORDER BY seq DESC {f'LIMIT {limit}' if limit > 0 else ''}",
            values,
        )
        return [rows.board_event_from_row(row) for row in found]

    def standings(self) -> dict[str, BoardEvent]:
        """The last decision about each board, by its name."""
        found = self._file.all(
            f"SELECT {', '.join(rows.BOARD_EVENT_COLUMNS)} FROM board_events "
            "WHERE event IN ('drained', 'quarantined', 'resumed') "
            "QUALIFY row_number() OVER (PARTITION BY board ORDER BY seq DESC) = 1"
        )
        events = [rows.board_event_from_row(row) for row in found]
        return {event.board: event for event in events}

    def put_aside(self, board_id: str, since_s: float, reason: str) -> list[tuple[str, str]]:
        """Use no more what a board measured after a moment; campaign and request of each."""
        with self._file.transaction("put measurements aside") as cursor:
            chosen = f"board_id = ? AND measured_at_s > ? AND ok AND {_USED}"
            found = cursor.execute(
                f"SELECT campaign_id, request_id FROM measurements WHERE {chosen} ORDER BY seq",
                [board_id, since_s],
            ).fetchall()
            cursor.execute(
                f"INSERT INTO put_aside SELECT seq, ?, ? FROM measurements WHERE {chosen}",
                [reason, time.time(), board_id, since_s],
            )
            return [(str(row[0]), str(row[1])) for row in found]

    def sentinels(self, board_id: str, since_s: float = 0.0) -> list[Measurement]:
        """A board's good and stable sentinels that were not put aside, oldest first."""
        found = self._file.all(
            f"SELECT {_READ} FROM measurements WHERE board_id = ? AND measured_at_s > ? "
            f"AND purpose IN ('sentinel', 'check') AND NOT unstable AND {_GOOD} "
            "QUALIFY row_number() OVER (PARTITION BY request_id, measured_at_s ORDER BY seq) = 1 "
            "ORDER BY measured_at_s, seq",
            [board_id, since_s, PROTOCOL_VERSION],
        )
        return [rows.measurement_from_row(row) for row in found]

    def revision(self, platform: str) -> str:
        """Changes whenever a platform's measurements or campaigns do."""
        found = self._file.all(
            "SELECT (SELECT [count(*), sum(hash(seq, ok, latency_ms, measured_at_s, campaign_id, "
            "request_id))] FROM measurements WHERE platform = $platform), "
            "(SELECT [count(*), sum(hash(seq))] FROM put_aside), "
            "(SELECT [count(*), sum(hash(campaign_id, name, state, outcome, error, measurements))] "
            "FROM campaigns WHERE platform = $platform)",
            {"platform": platform},
        )
        return repr(found)

    def export(self, path: Path, table: str = "measurements") -> int:
        """Write a table as CSV or Parquet by the path's suffix; rows written."""
        with self._file.read(f"export to {path}") as cursor:
            return snapshot.export_table(_copier(cursor), path, table)

    def snapshot(self, folder: Path) -> dict[str, int]:
        """Write all tables as Parquet at one point in time; rows written by table."""
        with self._file.read(f"write a snapshot to {folder}") as cursor:
            cursor.execute("BEGIN TRANSACTION")
            version = schema_version(cursor)
            counts = snapshot.export_all(_copier(cursor), folder, version)
            cursor.execute("COMMIT")
            return counts

    def counts(self) -> dict[str, int]:
        """Rows by table."""
        tables = ("measurements", "graphs", "campaigns", "bundles")
        return {table: self._file.number(f"SELECT count(*) FROM {table}") for table in tables}

    def close(self) -> None:
        """Release the file; a second time is no change."""
        self._file.close()

    def __enter__(self) -> DuckDBStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _where(filters: dict[str, str]) -> tuple[str, list[object]]:
    chosen = {name: value for name, value in filters.items() if value}
    return " AND ".join(["true", *(f"{name} = ?" for name in chosen)]), list(chosen.values())


def _copier(cursor: duckdb.DuckDBPyConnection) -> snapshot.Copy:
    def copy(statement: str) -> int:
        written = cursor.execute(statement).fetchone()
        return int(written[0]) if written else 0

    return copy
