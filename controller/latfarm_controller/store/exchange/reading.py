"""What an import reads, whatever tool wrote it: graphs and measurements, one after the other.

A reader yields records in an order that is the same at every reading, each with the line or row of
its file, so that an import can be continued. A record that is none is a `Refused`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement
from pyarrow import parquet

from latfarm_controller.errors import UsageError
from latfarm_controller.store.exchange.form import SUFFIXES, Manifest, Origin, read_manifest
from latfarm_controller.store.exchange.records import BadRowError, Row, measurement_of

CHUNK_BYTES = 1 << 20
"""How much of a file is hashed at a time, in bytes."""
BATCH_ROWS = 5000
"""How many rows of a Parquet file are read at a time."""
LARGEST_GRAPH_LETTERS = 64 << 20
"""Most letters of one graph's JSON text."""
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, PredictorsError)


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is not taken, with its place in its file and the reason."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A graph of an import; `told_hash` is the hash by which its measurements name it."""

    line: int
    told_hash: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class MeasurementRecord:
    """A measurement of an import, with the campaign that it belonged to."""

    line: int
    campaign_id: str
    measurement: Measurement


Record = GraphRecord | MeasurementRecord | Refused


class Reader(Protocol):
    """Reads one kind of files."""

    @property
    def kind(self) -> str:
        """Name of the reader."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """All files that are read; their digests tell whether an import is the same."""
        ...

    @property
    def origin(self) -> Origin:
        """What the files say of their origin; empty texts where they say nothing."""
        ...

    def graphs(self) -> Iterator[GraphRecord | Refused]:
        """All graphs, before any measurement."""
        ...

    def measurements(self) -> Iterator[MeasurementRecord | Refused]:
        """All measurements, in the order of lines."""
        ...


class LatfarmReader:
    """Reads what `latfarm db export` wrote.

    Args:
        folder: the export.

    Raises:
        UsageError: it is no export.
    """

    kind = "latfarm"

    def __init__(self, folder: Path) -> None:
        self._manifest: Manifest = read_manifest(folder)
        suffix = SUFFIXES[self._manifest.form]
        self._graphs = folder / f"graphs{suffix}"
        self._measurements = folder / f"measurements{suffix}"
        for path in self.files:
            if not path.is_file():
                raise UsageError(f"{path}: this file of the export is missing")

    @property
    def files(self) -> Sequence[Path]:
        """The files with rows."""
        return (self._graphs, self._measurements)

    @property
    def origin(self) -> Origin:
        """What the manifest says."""
        return self._manifest.origin

    def graphs(self) -> Iterator[GraphRecord | Refused]:
        """All graphs; a graph whose hash differs from what its row says is refused."""
        for line, row in rows_of(self._graphs):
            try:
                yield _graph_record(line, row)
            except BadRowError as error:
                yield Refused(self._graphs.name, line, str(error))

    def measurements(self) -> Iterator[MeasurementRecord | Refused]:
        """All measurements."""
        for line, row in rows_of(self._measurements):
            try:
                yield _measurement_record(line, row)
            except BadRowError as error:
                yield Refused(self._measurements.name, line, str(error))


def _graph_record(line: int, row: Row) -> GraphRecord:
    _check_fields(row)
    told, graph = row.get("hash"), graph_of(row.get("graph"))
    if not isinstance(told, str) or hash_of(graph) != told:
        raise BadRowError(f"the graph has the hash {hash_of(graph)}, not {str(told)[:40]!r}")
    return GraphRecord(line, told, graph)


def _measurement_record(line: int, row: Row) -> MeasurementRecord:
    _check_fields(row)
    campaign_id = row.get("campaign_id")
    if not isinstance(campaign_id, str) or not campaign_id:
        raise BadRowError("campaign_id is missing")
    return MeasurementRecord(line, campaign_id, measurement_of(row))


def _check_fields(row: Row) -> None:
    if not row:
        raise BadRowError("it has more or fewer fields than the first line")


def graph_of(text: Any) -> Graph:
    """The graph in a JSON text.

    Raises:
        BadRowError: it is none: no JSON, too large, cyclic, or otherwise not a Graph.
    """
    if not isinstance(text, str) or not text:
        raise BadRowError("graph is missing")
    if len(text) > LARGEST_GRAPH_LETTERS:
        raise BadRowError(
            f"the graph has {len(text)} letters; {LARGEST_GRAPH_LETTERS} are the most"
        )
    try:
        return Graph.from_json(json.loads(text))
    except _UNREADABLE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadRowError(f"the graph is unreadable: {reason}") from None


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a CSV or Parquet file, with the line of the file, or the number of the row.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        yield from _csv_rows(path) if path.suffix == ".csv" else _parquet_rows(path)
    except (OSError, pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(min(sys.maxsize, LARGEST_GRAPH_LETTERS))
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        line = 2
        for row in reader:
            if None in row or None in row.values():
                yield line, {}  # nothing in it can be trusted
            else:
                yield line, row
            line = reader.line_num + 1


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    line = 1
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                yield line, row
                line += 1


def digest_of(files: Sequence[Path], *words: str) -> str:
    """A digest of files and words, 32 hex digits.

    Raises:
        UsageError: a file cannot be read.
    """
    found = hashlib.blake2b(digest_size=16)
    for word in words:
        found.update(len(word).to_bytes(8, "big") + word.encode())
    for path in files:
        try:
            found.update(path.stat().st_size.to_bytes(8, "big"))
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    found.update(chunk)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return found.hexdigest()
