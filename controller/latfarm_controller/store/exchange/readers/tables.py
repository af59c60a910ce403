"""Tables of measurements that others published, read as an import reads them.

A reader of one kind of files tells its networks and its rows (`TableFiles`). `TableReader` makes
records of them. A row whose network cannot be read is refused, and so is a row that stands twice:
which of two latencies is right cannot be known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, Settings

from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.reading import GraphRecord, MeasurementRecord, Refused
from latfarm_controller.store.exchange.records import BadRowError, checked_latency

PURPOSE = "network"
"""Purpose of the rows: they are whole networks, and answer questions about them."""
UNTOLD = Settings(
    tier="foreign",
    sessions=0,
    warmup_runs=0,
    warmup_ms=0.0,
    min_runs=0,
    max_runs=0,
    max_ms=0.0,
    compile_timeout_ms=0.0,
    run_timeout_ms=0.0,
    precision=0.0,
)
"""Settings of the rows: the tables do not tell them. What they tell stands in the method."""
MOST_NODES = 50_000
"""Largest number of nodes of a network that is taken."""
_UNREADABLE = (PredictorsError, ValueError, TypeError, KeyError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class TableNetwork:
    """A network that rows of a table name.

    Attributes:
        key: how the rows name it.
        file: name of the file that tells it.
        line: its line or row there.
        load: reads it; raises an error if it is none.
    """

    key: str
    file: str
    line: int
    load: Callable[[], Graph]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table.

    Attributes:
        file: name of its file.
        line: its line or row there.
        network: the key of its network.
        platform: on which it was measured.
        latency: the latency in milliseconds, as the file has it.
        board: the board, or whatever tells repeated measurements of a platform apart.
        runs: number of runs; 0 if it is not told.
        min_ms: the fastest run, as the file has it; None if it is not told.
        conditions: what else the file tells.
    """

    file: str
    line: int
    network: str
    platform: str
    latency: Any
    board: str = ""
    runs: int = 0
    min_ms: Any = None
    conditions: Mapping[str, str] = field(default_factory=dict)


class TableFiles(Protocol):
    """The files of one kind."""

    kind: str
    """Name of the kind."""
    origin: Origin
    """What is known of all files of this kind; empty texts where nothing is."""

    @property
    def paths(self) -> Sequence[Path]:
        """All files: first the table, or one that lies beside it."""
        ...

    def networks(self) -> Iterator[TableNetwork | Refused]:
        """All networks, each once."""
        ...

    def rows(self) -> Iterator[TableRow | Refused]:
        """All rows, in an order that is always the same."""
        ...


class TableReader:
    """Reads the files of one kind for an import.

    Args:
        files: the files.
    """

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._hashes: dict[str, str] = {}
        self._missing: dict[str, str] = {}

    @property
    def kind(self) -> str:
        """Name of the kind of files."""
        return self._files.kind

    @property
    def files(self) -> Sequence[Path]:
        """All files that are read."""
        return self._files.paths

    @property
    def origin(self) -> Origin:
        """What is known of the origin of such files."""
        return self._files.origin

    def graphs(self) -> Iterator[GraphRecord | Refused]:
        """All networks; one that cannot be read is refused, and later its rows are, too."""
        for network in self._files.networks():
            if isinstance(network, Refused):
                yield network
                continue
            try:
                graph = network.load()
                if len(graph.nodes) > MOST_NODES:
                    raise BadRowError(f"it has {len(graph.nodes)} nodes; {MOST_NODES} are the most")
                found = hash_of(graph)
            except _UNREADABLE as error:
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                self._missing[network.key] = reason
                yield Refused(network.file, network.line, f"the network is not taken: {reason}")
                continue
            self._hashes[network.key] = found
            yield GraphRecord(network.line, found, graph)

    def measurements(self) -> Iterator[MeasurementRecord | Refused]:
        """All rows. `graphs` must have been read before."""
        seen: dict[tuple[str, str, str], int] = {}
        for number, row in enumerate(self._files.rows(), 1):
            if isinstance(row, Refused):
                yield row
                continue
            try:
                yield self._record(number, row, seen)
            except BadRowError as error:
                yield Refused(row.file, row.line, str(error))

    def _record(
        self, number: int, row: TableRow, seen: dict[tuple[str, str, str], int]
    ) -> MeasurementRecord:
        """The record of a row; its line is its number among all rows of all files."""
        latency_ms = checked_latency(_number(row.latency, "the latency"))
        graph_hash = self._hashes.get(row.network)
        if graph_hash is None:
            raise BadRowError(
                f"there is no graph of {row.network[:100]}"
                + (f": {self._missing[row.network][:150]}" if row.network in self._missing else "")
            )
        key = (row.network, row.platform, row.board)
        before = seen.setdefault(key, row.line)
        if before != row.line:
            raise BadRowError(f"the same network and platform stand in line {before} already")
        min_ms = None if row.min_ms is None else _number(row.min_ms, "the least latency")
        campaign_id = f"{self.kind}-table"
        told = Measurement(
            _digest(self.kind, self.origin.source, *key, repr(latency_ms)),
            graph_hash,
            row.platform,
            PURPOSE,
            Outcome.OK,
            board_id=row.board or row.platform,
            latency_ms=latency_ms,
            min_ms=min_ms,
            runs=row.runs,
            settings=UNTOLD,
            conditions={"network": row.network, **row.conditions},
        )
        return MeasurementRecord(number, campaign_id, told)


def _number(value: Any, what: str) -> float:
    """A number in a field.

    Raises:
        BadRowError: it is none.
    """
    if isinstance(value, bool) or value is None:
        raise BadRowError(f"{what} is {value}, which is no number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadRowError(f"{what} is {str(value)[:40]!r}, which is no number") from None


def _digest(*words: str) -> str:
    """Identity of a row, 32 hex digits: the same row in another copy of the files has the same."""
    found = hashlib.blake2b(digest_size=16)
    for word in words:
        found.update(len(word).to_bytes(8, "big") + word.encode())
    return found.hexdigest()
