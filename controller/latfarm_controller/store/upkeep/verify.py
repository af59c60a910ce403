"""Reads every row and every graph of a store, and tells what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.store import rows
from latfarm_controller.store.duckdb_file import DuckDBFile

PAGE_ROWS = 2000
"""How many rows are read at a time."""
MOST_FAULTS = 1000
"""How many faults are told one by one; the rest is counted."""
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, PredictorsError)
"""What reading a damaged value may raise."""

OnProgress = Callable[[str, int, int], None]
"""Is told what is checked, how much of it is done, and how much there is."""


@dataclass
class Findings:
    """What a check of a store found.

    Attributes:
        measurements: number of rows that were read, those of other farms included.
        graphs: number of graphs that were read.
        faults: what is wrong, one sentence for each row, at most `MOST_FAULTS`.
        more: number of further faults.
        losses: losses that were noticed when the store was opened, now or earlier.
    """

    measurements: int = 0
    graphs: int = 0
    faults: list[str] = field(default_factory=list)
    more: int = 0
    losses: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults and not self.losses

    def add(self, fault: str) -> None:
        """Note a fault."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)
        else:
            self.more += 1


def verify(file: DuckDBFile, on_progress: OnProgress = lambda *_: None) -> Findings:
    """Read every row, recompute every hash, and compare what belongs together.

    Raises:
        StoreError: the database itself cannot be read.
    """
    found = Findings()
    found.losses = [str(row[0]) for row in file.all("SELECT story FROM losses ORDER BY at_s")]
    known = _check_graphs(file, found, on_progress)
    for table in ("measurements", "foreign_measurements"):
        _check_measurements(file, table, known, found, on_progress)
    for seq, copies in file.all(
        "SELECT seq, count(*) FROM (SELECT seq FROM measurements UNION ALL "
        "SELECT seq FROM foreign_measurements) GROUP BY seq HAVING count(*) > 1"
    ):
        found.add(f"measurements: {copies} rows have the number {seq}")
    aside = "SELECT seq FROM put_aside WHERE seq NOT IN (SELECT seq FROM measurements)"
    for (seq,) in file.all(aside):
        found.add(f"put_aside: row {seq} discards a measurement that does not exist")
    return found


def _check_graphs(file: DuckDBFile, found: Findings, on_progress: OnProgress) -> set[str]:
    """Recompute the hashes of all graphs; returns the hashes in the table."""
    total = file.number("SELECT count(*) FROM graphs")
    known: set[str] = set()
    for name, text, network in _pages(
        file, "SELECT hash, graph, network_hash FROM graphs", "hash", ""
    ):
        known.add(name)
        found.graphs += 1
        if found.graphs % PAGE_ROWS == 0:
            on_progress("graphs", found.graphs, total)
        try:
            graph = Graph.from_json(json.loads(text))
        except UNREADABLE as error:
            found.add(f"graphs: {name} is unreadable: {_short(error)}")
            continue
        if hash_of(graph) != name:
            found.add(f"graphs: {name} holds the graph {hash_of(graph)}")
        if network and network_hash_of(graph) != network:
            found.add(f"graphs: {name} has a wrong network hash, {network}")
    on_progress("graphs", found.graphs, total)
    return known


def _check_measurements(
    file: DuckDBFile, table: str, known: set[str], found: Findings, on_progress: OnProgress
) -> None:
    """Read all measurements of a table."""
    total = file.number(f"SELECT count(*) FROM {table}")
    columns = ", ".join(rows.READ_COLUMNS)
    done = 0
    for row in _pages(file, f"SELECT seq, {columns} FROM {table}", "seq", -1):
        done += 1
        if done % PAGE_ROWS == 0:
            on_progress(table, done, total)
        try:
            measurement = rows.measurement_from_row(row[1:])
        except UNREADABLE as error:
            found.add(f"{table}: row {row[0]} is unreadable: {_short(error)}")
            continue
        latency_ms = measurement.latency_ms
        if measurement.ok and not (latency_ms and math.isfinite(latency_ms) and latency_ms > 0):
            found.add(f"{table}: row {row[0]} has the latency {latency_ms} ms")
        if measurement.ok and measurement.graph_hash not in known:
            found.add(f"{table}: row {row[0]} has no graph: {measurement.graph_hash}")
    found.measurements += done
    on_progress(table, done, total)


def _pages(file: DuckDBFile, query: str, key: str, first: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a query in the order of its first column, which is unique, page by page."""
    after = first
    while True:
        page = file.all(f"{query} WHERE {key} > ? ORDER BY {key} LIMIT {PAGE_ROWS}", [after])
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
