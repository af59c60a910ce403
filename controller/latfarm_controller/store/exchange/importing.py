"""Takes measurements of others into a store: completely or not at all, and each only once.

Rows are first gathered in tables that answer nothing, so that an import that was interrupted goes
on where it stopped. One transaction then moves all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.store import rows
from latfarm_controller.store.duckdb_file import DuckDBFile, Rehearsal
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.reading import (
    MeasurementRecord,
    Reader,
    Refused,
    digest_of,
)
from latfarm_controller.store.exchange.units import UnitCheck

CHUNK_RECORDS = 2000
"""How many records are read, and then kept together."""
CHUNK_GRAPHS = 200
"""How many graphs are read, and then kept together: they are larger than measurements."""
MOST_TOLD = 50_000
"""Most refused rows that are told one by one; all are counted."""
_MEASURED = ", ".join(name for name in rows.MEASUREMENT_COLUMNS if name != "seq")
_GRAPHED = ", ".join(rows.GRAPH_COLUMNS)
# The gathered graphs that are kept: graphs of refused rows alone are not. It has two parameters,
# which are both the import.
_NEW_GRAPHS = (
    "import_id = ? AND hash NOT IN (SELECT hash FROM graphs) "
    "AND hash IN (SELECT graph_hash FROM staged_measurements WHERE import_id = ?)"
)
# A foreign row is known if the same campaign told the same request on the same board at the same
# time, here or in an earlier import.
_SAME = (
    "known.campaign_id = staged.campaign_id AND known.request_id = staged.request_id "
    "AND known.board_id = staged.board_id AND known.measured_at_s = staged.measured_at_s"
)


@dataclass
class Imported:
    """What an import did.

    Attributes:
        import_id: digest of the files and of how they were read.
        own: whether the rows count as this farm's own.
        told: number of measurements in the files.
        added: number of measurements that are new.
        known: number of measurements that were here already, or stand twice in the files.
        graphs: number of graphs that are new.
        refused: rows that were not taken, with the reasons, at most `MOST_TOLD`.
        refused_rows: number of rows that were not taken.
        warnings: what looks wrong about the rows that were taken.
        again: whether the same files were imported before, and nothing was done.
        rehearsed: whether the store was left as it is.
    """

    import_id: str
    own: bool
    told: int = 0
    added: int = 0
    known: int = 0
    graphs: int = 0
    refused: list[Refused] = field(default_factory=list)
    refused_rows: int = 0
    warnings: list[str] = field(default_factory=list)
    again: bool = False
    rehearsed: bool = False

    def refuse(self, refused: Refused) -> None:
        """Note a row that is not taken."""
        self.refused_rows += 1
        if len(self.refused) < MOST_TOLD:
            self.refused.append(refused)


class Importer:
    """Imports the files of one reader into a database that only this process has open.

    Args:
        file: the database.
        reader: reads the files.
        origin: what is known of their origin.
        own: the rows are this farm's own, for example from a backup. They answer questions like
            measurements that were taken here.
        rehearse: only tell what would be taken; the store is left as it is.
        on_progress: is told what is read, and how many were read; the last number is always 0. What
            it raises interrupts the import.
    """

    def __init__(
        self,
        file: DuckDBFile,
        reader: Reader,
        origin: Origin,
        *,
        own: bool = False,
        rehearse: bool = False,
        on_progress: Callable[[str, int, int], None] = lambda _what, _done, _all: None,
    ) -> None:
        self._file: DuckDBFile | Rehearsal = file
        self._store = file
        self._rehearse = rehearse
        self._reader = reader
        self._origin = origin
        self._own = own
        self._on_progress = on_progress
        words = (reader.kind, origin.source, origin.licence, origin.method, str(own))
        self._report = Imported(digest_of(reader.files, *words), own, rehearsed=rehearse)
        self._units = UnitCheck(file)

    @property
    def origin(self) -> Origin:
        """What is known of the origin of the rows."""
        return self._origin

    def run(self) -> Imported:
        """Import all rows.

        Raises:
            UsageError: the origin leaves something open, or a file cannot be read.
            StoreError: the store cannot be written; nothing has changed then.
        """
        if not self._own:
            self._origin.check()
        state = self._file.all(
            "SELECT state FROM imports WHERE import_id = ?", [self._report.import_id]
        )
        if state and state[0][0] == "done":
            self._report.again = True
            return self._report
        if self._rehearse:
            with self._store.rehearsal("rehearse an import") as self._file:
                self._gather()
                self._count()
            return self._report
        if not state:
            self._begin()
        self._gather()
        self._move()
        return self._report

    def _gather(self) -> None:
        """Read all files, and gather what they hold."""
        self._stage_measurements(self._stage_graphs())
        self._report.warnings.extend(self._units.warnings())

    def _count(self) -> None:
        """Count what would be new, without moving it."""
        report, named = self._report, [self._report.import_id]
        report.added = int(self._file.all(f"SELECT count(*) FROM ({self._chosen()})", named)[0][0])
        report.graphs = int(
            self._file.all(
                f"SELECT count(DISTINCT hash) FROM staged_graphs WHERE {_NEW_GRAPHS}",
                named * 2,
            )[0][0]
        )
        staged = "SELECT count(*) FROM staged_measurements WHERE import_id = ?"
        report.known = int(self._file.all(staged, named)[0][0]) - report.added

    def _begin(self) -> None:
        """Note that the import has begun."""
        reader, origin = self._reader, self._origin
        with self._file.transaction("begin the import") as cursor:
            cursor.execute(
                "INSERT INTO imports VALUES (?, ?, ?, ?, ?, ?, ?, 'running', 0, 0, 0, 0, ?)",
                [
                    *(self._report.import_id, reader.kind, str(reader.files[0].parent)),
                    *(origin.source, origin.licence, origin.method, self._own, time.time()),
                ],
            )

    def _stage_graphs(self) -> dict[str, str]:
        """Gather the graphs; the real hash of each by the hash that the files tell."""
        named = [self._report.import_id]
        staged = {
            str(row[0])
            for row in self._file.all("SELECT hash FROM staged_graphs WHERE import_id = ?", named)
        }
        hashes: dict[str, str] = {}
        read = 0
        records = self._reader.graphs()
        while chunk := list(islice(records, CHUNK_GRAPHS)):
            new = {}
            for record in chunk:
                if isinstance(record, Refused):
                    self._report.refuse(record)
                    continue
                found = hash_of(record.graph)
                hashes[record.told_hash] = found
                self._units.graph(found, record.graph)
                if found not in staged:
                    new[found] = record.graph
            if new:
                batch = _tagged(rows.graph_table(new.items()), self._report.import_id)
                with self._file.transaction("gather the graphs of an import") as cursor:
                    _insert(cursor, batch, "staged_graphs")
                staged.update(new)
            read += len(chunk)
            self._on_progress("graphs", read, 0)
        return hashes

    def _stage_measurements(self, hashes: dict[str, str]) -> None:
        """Gather the measurements; those that an interrupted run has gathered are only counted."""
        report = self._report
        done = self._file.all(
            "SELECT coalesce(max(line), -1) FROM staged_measurements WHERE import_id = ?",
            [report.import_id],
        )[0][0]
        records = self._reader.measurements()
        while chunk := list(islice(records, CHUNK_RECORDS)):
            taken = list(self._taken(chunk, hashes))
            new = [(record, m) for record, m in taken if record.line > done]
            if new:
                table = rows.measurement_table((0, r.campaign_id, m) for r, m in new)
                table = _tagged(table, report.import_id)
                lines = pa.array([record.line for record, _ in new], pa.int64())
                with self._file.transaction("gather the rows of an import") as cursor:
                    _insert(cursor, table.append_column("line", lines), "staged_measurements")
            self._on_progress("measurements", report.told, 0)

    def _taken(
        self, chunk: list[MeasurementRecord | Refused], hashes: dict[str, str]
    ) -> Iterator[tuple[MeasurementRecord, Measurement]]:
        """The records of a chunk that are taken; the others are noted."""
        for record in chunk:
            self._report.told += 1
            if isinstance(record, Refused):
                self._report.refuse(record)
                continue
            measurement = record.measurement
            if measurement.graph_hash not in hashes:
                reason = f"there is no graph {measurement.graph_hash[:40]}"
                self._report.refuse(Refused(self._reader.files[-1].name, record.line, reason))
                continue
            self._units.measurement(measurement)
            yield record, measurement

    def _chosen(self) -> str:
        """A query for the gathered rows that are new, each once; its parameter is the import."""
        tables = ("measurements",) if self._own else ("measurements", "foreign_measurements")
        same = (
            "known.campaign_id = staged.campaign_id AND known.request_id = staged.request_id"
            if self._own
            else _SAME
        )
        unknown = " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {table} AS known WHERE {same})" for table in tables
        )
        twice = same.replace("known.", "").replace("staged.", "").split(" AND ")
        keys = ", ".join(part.split(" = ")[0] for part in twice)
        return (
            f"SELECT * FROM staged_measurements AS staged WHERE import_id = ? AND {unknown} "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY ok DESC, line) = 1"
        )

    def _move(self) -> None:
        """Move all gathered rows to where they answer, in one transaction."""
        report, chosen = self._report, self._chosen()
        named = [report.import_id]
        target = "measurements" if self._own else "foreign_measurements"
        extra = "" if self._own else ", import_id"
        with self._file.transaction("finish the import") as cursor:
            found = cursor.execute(f"SELECT count(*) FROM ({chosen})", named).fetchone()
            report.added = int(found[0]) if found else 0
            first = self._store.take_seq(report.added)
            cursor.execute(
                f"INSERT INTO {target} (seq, {_MEASURED}{extra}) "
                f"SELECT {first - 1} + row_number() OVER (ORDER BY line), {_MEASURED}{extra} "
                f"FROM ({chosen})",
                named,
            )
            written = cursor.execute(
                f"INSERT INTO graphs ({_GRAPHED}) SELECT {_GRAPHED} FROM staged_graphs "
                # A window over whole graphs would need more memory than there may be.
                f"WHERE rowid IN (SELECT min(rowid) FROM staged_graphs WHERE {_NEW_GRAPHS} "
                "GROUP BY hash)",
                named * 2,
            ).fetchone()
            report.graphs = int(written[0]) if written else 0
            staged = cursor.execute(
                "SELECT count(*) FROM staged_measurements WHERE import_id = ?", named
            ).fetchone()
            report.known = (int(staged[0]) if staged else 0) - report.added
            cursor.execute("DELETE FROM staged_measurements WHERE import_id = ?", named)
            cursor.execute("DELETE FROM staged_graphs WHERE import_id = ?", named)
            cursor.execute(
                "UPDATE imports SET state = 'done', told = ?, added = ?, known = ?, refused = ?, "
                "at_s = ? WHERE import_id = ?",
                [report.told, report.added, report.known, report.refused_rows, time.time(), *named],
            )


def _tagged(table: Any, import_id: str) -> Any:
    """The table with a column that names the import."""
    return table.append_column("import_id", pa.array([import_id] * table.num_rows, pa.string()))


def _insert(cursor: Any, batch: Any, table: str) -> None:
    """Insert an Arrow table into a table with columns of the same names."""
    cursor.register("batch", batch)
    cursor.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")
    # This is not done after a failure, when the cursor is closed and the error would be hidden.
    cursor.unregister("batch")
