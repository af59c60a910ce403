"""The store in a DuckDB file: the queries and statements behind the methods of `Store`.

Each call that writes holds one lock and makes one transaction. Each read uses its own cursor, which
sees the last commit. When a call that writes returns, its data is on disk: a process that is killed
later loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement

from latfarm_controller.errors import StoreError
from latfarm_controller.store import rows, snapshot, writes
from latfarm_controller.store.answers import GOOD, TOLD, USED, AnswerReader
from latfarm_controller.store.base import AnswerQuery, BoardEvent, CampaignRecord, FoundResult
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.listing import listed, where_of
from latfarm_controller.store.lock import Holder
from latfarm_controller.store.migrate import schema_version

T = TypeVar("T")
MAX_REASON_LENGTH = 200
"""Most letters of the reason why a row cannot be read."""

_READ = ", ".join(rows.READ_COLUMNS)


class DuckDBStore:
    """A `Store` in one file, which one process at a time can open; `Store` tells of its methods.

    Args:
        path: the database file. If it does not exist, it is made, with its folder. The lock file
            lies beside it.
        lock_timeout_ms: how long to wait for another process that holds the file.
        on_wait: called once before such a wait, with the holder.
        index: build an index of answers, for a process that is asked many questions.

    Raises:
        StoreBusyError: another process holds the file.
        StoreError: the file is damaged, or written by another program or a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        lock_timeout_ms: float = 0.0,
        on_wait: Callable[[Holder | None], None] | None = None,
        index: bool = False,
    ) -> None:
        self.path = path
        self._file = DuckDBFile(path, lock_timeout_ms, on_wait)
        self._answers = AnswerReader(
            self._file, lambda row: self._read(rows.measurement_from_row, row)
        )
        if index:
            try:
                self._answers.build_index()
            except BaseException:
                self._file.close()
                raise
        # Hashes of graphs known to be in the file. Only this process writes it, and no graph is
        # ever deleted from it.
        self._graphs_kept: set[str] = set()

    @property
    def file(self) -> DuckDBFile:
        """The open file, for what concerns the store as a whole."""
        return self._file

    def refresh(self) -> None:
        """Learn anew what the file holds, after rows were imported or removed beside this object.

        Others may read and write meanwhile.
        """
        with self._file.alone():
            self._graphs_kept.clear()
            if self._answers.indexed:
                self._answers.build_index()

    def _read(self, convert: Callable[[Any], T], row: Any) -> T:
        """Make an object of a row.

        Raises:
            StoreError: a value of the row is none that this program writes.
        """
        try:
            return convert(row)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            what = " ".join(str(error).split())[:MAX_REASON_LENGTH]
            raise StoreError(
                f"{self.path}: a row is damaged ({type(error).__name__}: {what}); restore the "
                "store from a copy, or move it away to begin a new one"
            ) from error

    def get_graph(self, graph_hash: str) -> Graph | None:
        """The graph with that hash; None if the store does not have it."""
        with self._file.read("read a graph") as cursor:
            found = cursor.execute(
                "SELECT graph FROM graphs WHERE hash = ?", [graph_hash]
            ).fetchone()
            return self._read(rows.graph_from_text, found[0]) if found else None

    def add_measurements(
        self, campaign_id: str, measurements: Sequence[tuple[Measurement, Graph]]
    ) -> None:
        """Keep measurements of a campaign, each with its graph, in one transaction."""
        told: dict[str, Measurement] = {}
        graphs: dict[str, Graph] = {}
        for measurement, graph in measurements:
            graphs.setdefault(measurement.graph_hash, graph)
            before = told.get(measurement.request_id)
            if before is None or (measurement.ok and not before.ok):
                told[measurement.request_id] = measurement
        if not told:
            return
        with self._file.alone():
            self._write(campaign_id, told, graphs)

    def _write(
        self, campaign_id: str, told: dict[str, Measurement], graphs: dict[str, Graph]
    ) -> None:
        """Write measurements by request id, with their graphs by hash, and index them."""
        with self._file.transaction("write measurements") as cursor:
            writes.put_graphs(cursor, graphs, self._graphs_kept)
            known = {
                str(row[0]): (int(row[1]), bool(row[2]))
                for row in cursor.execute(
                    f"SELECT request_id, seq, ok AND {USED} FROM measurements "
                    "WHERE campaign_id = ? AND request_id IN (SELECT unnest(?))",
                    [campaign_id, list(told)],
                ).fetchall()
            }
            new = [measurement for name, measurement in told.items() if name not in known]
            mended = {
                seq: told[name]
                for name, (seq, was_ok) in known.items()
                if told[name].ok and not was_ok
            }
            # ON CONFLICT DO UPDATE would take three times as long as looking first.
            first = self._file.take_seq(len(new))
            writes.insert_measurements(cursor, first, campaign_id, new)
            writes.replace_measurements(cursor, campaign_id, list(mended.values()))
        self._answers.added([*enumerate(new, first), *mended.items()], graphs)

    def campaign_measurements(self, campaign_id: str) -> dict[str, Measurement]:
        """The measurements of a campaign by request id, in the order of writing."""
        found = self._file.all(
            f"SELECT {_READ} FROM measurements WHERE campaign_id = ? AND {USED} ORDER BY seq",
            [campaign_id],
        )
        read = (self._read(rows.measurement_from_row, row) for row in found)
        return {measurement.request_id: measurement for measurement in read}

    def measurements(
        self,
        *,
        platform: str = "",
        campaign_id: str = "",
        purpose: str = "",
        graph_hash: str = "",
        limit: int = 0,
        foreign: bool = False,
        discarded: bool = True,
    ) -> Iterator[Measurement]:
        """All measurements that match, the newest first."""
        filters = {
            "platform": platform,
            "campaign_id": campaign_id,
            "purpose": purpose,
            "graph_hash": graph_hash,
        }

        def convert(row: Sequence[Any]) -> Measurement:
            return self._read(rows.measurement_from_row, row)

        return listed(self._file, convert, filters, limit, foreign=foreign, discarded=discarded)

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
        """The best good measurement of a graph on this farm."""
        purposes = (purpose,) if purpose else ()
        wanted = AnswerQuery(
            graph_hash, platform, network_hash, purposes, tier, fingerprint, energy
        )
        return self.find_answers([wanted])[0]

    def find_answers(self, wanted: Sequence[AnswerQuery]) -> list[Measurement | None]:
        """For each question the best good measurement; None where there is none."""
        return self._answers.find(wanted)

    def platforms(self) -> list[str]:
        """The names of all platforms that were measured, here or on other farms."""
        return self._answers.platforms()

    def put_campaign(self, record: CampaignRecord) -> None:
        """Keep the record of a campaign, in the place of an earlier one."""
        with self._file.transaction("write a campaign") as cursor:
            row, take_seq = rows.campaign_row(record), self._file.take_seq
            writes.upsert(cursor, take_seq, "campaigns", rows.CAMPAIGN_COLUMNS, 1, row)

    def get_campaign(self, campaign_id: str) -> CampaignRecord | None:
        """The campaign with that id, else the newest campaign of that name, else None."""
        found = self._file.all(
            f"SELECT {', '.join(rows.CAMPAIGN_COLUMNS)} FROM campaigns "
            "WHERE campaign_id = $key OR name = $key "
            "ORDER BY campaign_id = $key DESC, started_at_s DESC, seq DESC LIMIT 1",
            {"key": campaign_id},
        )
        return self._read(rows.campaign_from_row, found[0]) if found else None

    def campaigns(self, *, brief: bool = False) -> list[CampaignRecord]:
        """All campaigns, the newest first; `brief`: without configurations and outcomes."""
        columns = rows.CAMPAIGN_COLUMNS_BRIEFLY if brief else rows.CAMPAIGN_COLUMNS
        found = self._file.all(
            f"SELECT {', '.join(columns)} FROM campaigns ORDER BY started_at_s DESC, seq DESC"
        )
        return [self._read(rows.campaign_from_row, row) for row in found]

    def add_board_event(self, event: BoardEvent) -> None:
        """Keep a decision about a board, or a notice."""
        with self._file.transaction("write a board's event") as cursor:
            row = rows.board_event_row(event)
            seq = self._file.take_seq()
            writes.insert(cursor, seq, "board_events", rows.BOARD_EVENT_COLUMNS, row)

    def board_events(self, board: str = "", limit: int = 0) -> list[BoardEvent]:
        """The events of a board, or of all boards, the newest first; `limit` 0 returns all."""
        where, values = where_of({"board": board})
        found = self._file.all(
            f"SELECT {', '.join(rows.BOARD_EVENT_COLUMNS)} FROM board_events WHERE {where} "
            f"ORDER BY seq DESC {f'LIMIT {limit}' if limit > 0 else ''}",
            values,
        )
        return [self._read(rows.board_event_from_row, row) for row in found]

    def standings(self) -> dict[str, BoardEvent]:
        """The last decision about each board, by its name."""
        found = self._file.all(
            f"SELECT {', '.join(rows.BOARD_EVENT_COLUMNS)} FROM board_events "
            "WHERE event IN "
            "('drained', 'reserved', 'maintenance', 'quarantined', 'resumed') "
            "QUALIFY row_number() OVER (PARTITION BY board ORDER BY seq DESC) = 1"
        )
        events = [self._read(rows.board_event_from_row, row) for row in found]
        return {event.board: event for event in events}

    def discard_measurements(
        self, board_id: str, since_s: float, reason: str
    ) -> list[tuple[str, str]]:
        """Discard what a board measured after `since_s`; campaign and request id of each."""
        with self._file.alone():
            with self._file.transaction("discard measurements") as cursor:
                chosen = f"board_id = ? AND {TOLD} > ? AND ok AND {USED}"
                found = cursor.execute(
                    "SELECT campaign_id, request_id, seq FROM measurements "
                    f"WHERE {chosen} ORDER BY seq",
                    [board_id, since_s],
                ).fetchall()
                cursor.execute(
                    f"INSERT INTO put_aside SELECT seq, ?, ? FROM measurements WHERE {chosen}",
                    [reason, time.time(), board_id, since_s],
                )
            self._answers.dropped(int(row[2]) for row in found)
        return [(str(row[0]), str(row[1])) for row in found]

    def add_found_results(self, results: Sequence[FoundResult]) -> None:
        """Keep results that boards had in their spools."""
        with self._file.transaction("keep results of a board") as cursor:
            for result in results:
                cursor.execute(
                    "DELETE FROM found_results WHERE request_id = ?", [result.request_id]
                )
                row = [getattr(result, name) for name in rows.FOUND_RESULT_COLUMNS]
                seq = self._file.take_seq()
                writes.insert(cursor, seq, "found_results", rows.FOUND_RESULT_COLUMNS, row)

    def found_results(self) -> list[FoundResult]:
        """The results of boards' spools for which no campaign has asked yet, the oldest first."""
        found = self._file.all(
            f"SELECT {', '.join(rows.FOUND_RESULT_COLUMNS)} FROM found_results ORDER BY seq"
        )
        return [self._read(rows.found_result_from_row, row) for row in found]

    def drop_found_results(self, request_ids: Sequence[str]) -> None:
        """Forget the results of boards' spools for these requests."""
        if request_ids:
            with self._file.transaction("forget results of boards") as cursor:
                cursor.execute(
                    "DELETE FROM found_results WHERE request_id IN (SELECT unnest(?))",
                    [list(request_ids)],
                )

    def sentinels(self, board_id: str, since_s: float = 0.0) -> list[Measurement]:
        """The good and stable sentinels of a board, the oldest first."""
        found = self._file.all(
            f"SELECT {_READ} FROM measurements WHERE board_id = ? AND {TOLD} > ? "
            f"AND purpose IN ('sentinel', 'check') AND NOT unstable AND {GOOD} "
            f"QUALIFY row_number() OVER (PARTITION BY request_id, {TOLD} ORDER BY seq) = 1 "
            f"ORDER BY {TOLD}, seq",
            [board_id, since_s, PROTOCOL_VERSION],
        )
        return [self._read(rows.measurement_from_row, row) for row in found]

    def revision(self, platform: str) -> str:
        """A text that changes whenever a platform's measurements or campaigns change."""
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
        """Write a table as CSV or Parquet, by the suffix of the path; the number of rows."""
        with self._file.read(f"export to {path}") as cursor:
            return snapshot.export_table(snapshot.copier(cursor), path, table)

    def snapshot(self, folder: Path) -> dict[str, int]:
        """Write all tables as Parquet, as of one point in time; the number of rows by table."""
        with self._file.read(f"write a snapshot to {folder}") as cursor:
            cursor.execute("BEGIN TRANSACTION")
            version = schema_version(cursor)
            counts = snapshot.export_all(snapshot.copier(cursor), folder, version)
            cursor.execute("COMMIT")
            return counts

    def origins(self, request_ids: Sequence[str]) -> dict[str, list[str]]:
        """For each request, the ids of the campaigns that were told an answer."""
        found: dict[str, list[str]] = {}
        for request_id, campaign_id in self._file.all(
            "SELECT request_id, campaign_id FROM measurements "
            f"WHERE request_id IN (SELECT unnest(?)) ORDER BY {TOLD} DESC, seq DESC",
            [list(request_ids)],
        ):
            found.setdefault(request_id, []).append(campaign_id)
        return found

    def graph_hashes(self, beginning: str, limit: int = 0) -> list[str]:
        """Exact hashes of stored graphs, whose exact or network hash begins like that."""
        most = f"LIMIT {limit}" if limit > 0 else ""
        found = self._file.all(
            "SELECT DISTINCT hash FROM graphs WHERE starts_with(hash, $start) "
            f"OR starts_with(network_hash, $start) ORDER BY hash {most}",
            {"start": beginning},
        )
        return [row[0] for row in found]

    def counts(self) -> dict[str, int]:
        """The number of rows in each table that grows with use."""
        tables = ("measurements", "graphs", "campaigns")
        return {table: self._file.number(f"SELECT count(*) FROM {table}") for table in tables}

    def close(self) -> None:
        """Close the store, so that another process can open it; a second call does nothing."""
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
