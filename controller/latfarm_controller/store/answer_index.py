"""An index in memory of the measurements that may answer a question about a network's latency.

It is derived from the tables and never stored: it is built when it is first asked for, and the one
process that writes the store keeps it up to date. It only says which row to read; whoever reads the
row checks that it is of the network that was asked for.

A row takes 49 bytes: numbers in arrays that are sorted by the network's hash, and an order by the
graph's. Rows that came since the arrays were made lie in a small dictionary until it is merged.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latfarm_controller.store.base import AnswerQuery

HASH_DIGITS = 32
"""Number of hex digits of the hash of a graph."""
MARK_DIGITS = 16
"""Number of leading hex digits that are kept of a hash: 64 bits."""
MERGE_ROWS = 50_000
"""Number of new rows from which on they are merged into the arrays."""
FEW_ROWS = 64
"""Up to this number of rows, looking at each in turn is faster than numpy."""
MOST_QUESTIONS = 1024
"""Number of questions, without their networks, whose kinds of rows are remembered."""

Numbers = npt.NDArray[Any]

# The value of each ASCII code as a hex digit; 255 where it is none.
_DIGITS = np.full(256, 255, np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _DIGITS[_digit] = _value
_POWERS = np.array([16 ** (MARK_DIGITS - 1 - place) for place in range(MARK_DIGITS)], np.uint64)


class Kind(NamedTuple):
    """What rows have in common beside their network."""

    platform: str
    purpose: str
    tier: str
    fingerprint: str
    energy: bool
    foreign: bool

    def answers(self, wanted: AnswerQuery) -> bool:
        """Whether rows of this kind may answer a question."""
        return (
            self.platform == wanted.platform
            and self.purpose in wanted.purposes
            and wanted.tier in ("", self.tier)
            and wanted.fingerprint in ("", self.fingerprint)
            and (self.energy or not wanted.energy)
            and (wanted.foreign or not self.foreign)
        )


class IndexedRow(NamedTuple):
    """One row as the index keeps it; `network` and `graph` are marks of the hashes."""

    network: int
    graph: int
    seq: int
    told_at_s: float
    kind: int
    unstable: bool


@dataclass(frozen=True, slots=True)
class Indexed:
    """A row to add: a measurement that may answer questions."""

    network_hash: str
    graph_hash: str
    seq: int
    told_at_s: float
    kind: Kind
    unstable: bool


def mark(text: str) -> int:
    """The 64 bits that stand for a hash: its first 16 hex digits; of another text, its digest."""
    if len(text) == HASH_DIGITS:
        try:
            # int() also takes signs and underscores, and a negative number is no mark.
            if text.isascii() and text.isalnum() and text == text.lower():
                return int(text[:MARK_DIGITS], 16)
        except ValueError:
            pass
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def marks(column: Any) -> Numbers:
    """The marks of an Arrow column of texts, as an array of 64-bit numbers."""
    texts = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    count = len(texts)
    if count == 0:
        return np.empty(0, np.uint64)
    lengths = pc.binary_length(texts)
    if texts.null_count == 0 and pc.all(pc.equal(lengths, HASH_DIGITS)).as_py():
        flat = b"".join(texts.cast(pa.binary(HASH_DIGITS)).to_pylist())
        letters = np.frombuffer(flat, np.uint8).reshape(count, HASH_DIGITS)
        digits = _DIGITS[letters]
        if digits.max() < 16:
            found: Numbers = digits[:, :MARK_DIGITS].astype(np.uint64) @ _POWERS
            return found
    return np.array([mark(text or "") for text in texts.to_pylist()], np.uint64)


class _Columns(NamedTuple):
    """The rows in arrays of one length, sorted by the network's mark."""

    network: Numbers
    graph: Numbers
    seq: Numbers
    told_at_s: Numbers
    kind: Numbers
    unstable: Numbers
    graph_sorted: Numbers
    """The marks of the graphs in their own order."""
    by_graph: Numbers
    """The position of the row of each of them."""


def _sorted(parts: Sequence[Sequence[Any]]) -> _Columns:
    """Rows from several parts, each with the first six columns, in the order of networks."""
    kinds = (np.uint64, np.uint64, np.int64, np.float64, np.uint32, np.bool_)
    joined = [
        np.concatenate([np.asarray(part[place], kind) for part in parts])
        if parts
        else np.empty(0, kind)
        for place, kind in enumerate(kinds)
    ]
    order = np.argsort(joined[0], kind="stable")
    columns = [column[order] for column in joined]
    by_graph = np.argsort(columns[1], kind="stable").astype(np.uint32)
    return _Columns._make([*columns, columns[1][by_graph], by_graph])


class AnswerIndex:
    """Finds the row that answers a question. Thread-safe."""

    def __init__(self) -> None:
        self._changing = threading.RLock()  # one change at a time; taken before `_lock`
        self._lock = threading.Lock()
        self._kinds: dict[Kind, int] = {}
        self._answering: dict[AnswerQuery, dict[int, Kind]] = {}
        self._answering_of = 0  # number of kinds when _answering was begun
        self._columns = _sorted([])
        self._fresh: list[IndexedRow] = []
        self._places: dict[int, list[int]] = {}  # mark of a network or graph -> places in _fresh

    def __len__(self) -> int:
        with self._lock:
            return len(self._columns.seq) + len(self._fresh)

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in all rows of the tables, in place of everything before.

        Args:
            batches: with the columns network, graph, seq, told_at_s, platform, purpose, tier,
                fingerprint, energy, foreign and unstable, in this order. The last three are 0 or 1.
        """
        with self._changing:
            columns = _sorted([self._part(batch) for batch in batches if batch.num_rows])
            with self._lock:
                self._columns = columns
                self._forget_fresh(0)

    def add(self, rows: Iterable[Indexed]) -> None:
        """Take in new rows."""
        with self._lock:
            for row in rows:
                kind = self._kinds.setdefault(row.kind, len(self._kinds))
                network, graph = mark(row.network_hash or row.graph_hash), mark(row.graph_hash)
                place = len(self._fresh)
                self._fresh.append(
                    IndexedRow(network, graph, row.seq, row.told_at_s, kind, row.unstable)
                )
                for key in {network, graph}:
                    self._places.setdefault(key, []).append(place)
            due = len(self._fresh) >= MERGE_ROWS
        if due:
            self.merge()

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget rows."""
        gone = set(seqs)
        if not gone:
            return
        with self._changing:
            self.merge()
            before = self._columns
            kept = ~np.isin(before.seq, np.fromiter(gone, np.int64))
            columns = _sorted([[column[kept] for column in before[:6]]])
            with self._lock:
                self._columns = columns

    def merge(self) -> None:
        """Move new rows into the arrays. Questions are answered meanwhile."""
        with self._changing:
            with self._lock:
                fresh, before = list(self._fresh), self._columns
            if not fresh:
                return
            columns = _sorted([before[:6], list(zip(*fresh, strict=True))])
            with self._lock:
                self._columns = columns
                self._forget_fresh(len(fresh))

    def best(self, wanted: AnswerQuery) -> int | None:
        """The number (`seq`) of the row that answers a question best; None if there is none.

        The own rows come before those of others, stable ones before unstable ones, among those the
        rows of the same graph, among those the newest.
        """
        graph = mark(wanted.graph_hash) if wanted.graph_hash else None
        network = mark(wanted.network_hash) if wanted.network_hash else None
        with self._lock:
            kinds = self._kinds_for(wanted)
            if not kinds:
                return None
            rows = self._candidates(network, graph, kinds)
        best: tuple[bool, bool, bool, float, int] | None = None
        for row in rows:
            if row.told_at_s < wanted.since_s:
                continue
            rank = (
                not kinds[row.kind].foreign,
                not row.unstable,
                row.graph == graph,
                row.told_at_s,
                row.seq,
            )
            best = rank if best is None else max(best, rank)
        return None if best is None else best[-1]

    def platforms(self) -> set[str]:
        """Names of the platforms of all rows."""
        with self._lock:
            return {kind.platform for kind in self._kinds}

    def _kinds_for(self, wanted: AnswerQuery) -> dict[int, Kind]:
        """The kinds that may answer a question, by number. The lock is held."""
        if self._answering_of != len(self._kinds):
            self._answering, self._answering_of = {}, len(self._kinds)
        key = replace(wanted, graph_hash="", network_hash="", since_s=0.0)
        found = self._answering.get(key)
        if found is None:
            if len(self._answering) >= MOST_QUESTIONS:
                self._answering.clear()
            found = {number: kind for kind, number in self._kinds.items() if kind.answers(wanted)}
            self._answering[key] = found
        return found

    def _candidates(
        self, network: int | None, graph: int | None, kinds: dict[int, Kind]
    ) -> list[IndexedRow]:
        """The rows of some kinds that are of the network or of the graph."""
        columns = self._columns
        found: set[int] = set()
        if network is not None:
            start = np.searchsorted(columns.network, np.uint64(network), side="left")
            stop = np.searchsorted(columns.network, np.uint64(network), side="right")
            found.update(self._of_kinds(np.arange(start, stop), kinds))
        if graph is not None:
            low, high = self._graph_range(graph)
            found.update(self._of_kinds(columns.by_graph[low:high], kinds))
        rows = [
            IndexedRow(
                int(columns.network[place]),
                int(columns.graph[place]),
                int(columns.seq[place]),
                float(columns.told_at_s[place]),
                int(columns.kind[place]),
                bool(columns.unstable[place]),
            )
            for place in found
        ]
        fresh = {
            p for key in {network, graph} if key is not None for p in self._places.get(key, ())
        }
        return [*rows, *(self._fresh[p] for p in fresh if self._fresh[p].kind in kinds)]

    def _graph_range(self, graph: int) -> tuple[int, int]:
        marked, value = self._columns.graph_sorted, np.uint64(graph)
        low = np.searchsorted(marked, value, side="left")
        return int(low), int(np.searchsorted(marked, value, side="right"))

    def _of_kinds(self, places: Numbers, kinds: dict[int, Kind]) -> list[int]:
        """Those of the places whose row has one of the kinds."""
        kind = self._columns.kind
        if len(places) > FEW_ROWS:
            places = self._foremost(places[np.isin(kind[places], list(kinds))])
            return [int(place) for place in places]
        return [int(place) for place in places if int(kind[place]) in kinds]

    def _foremost(self, places: Numbers) -> Numbers:
        """The newest of some places for each graph, kind and stability."""
        columns = self._columns
        order = np.lexsort((columns.seq[places], columns.told_at_s[places]))
        newest: dict[tuple[int, int, bool], int] = {}
        ordered = places[order]
        keys = zip(
            columns.graph[ordered].tolist(),
            columns.kind[ordered].tolist(),
            columns.unstable[ordered].tolist(),
            strict=True,
        )
        newest.update(zip(keys, ordered.tolist(), strict=True))
        return np.fromiter(newest.values(), np.int64)

    def _forget_fresh(self, count: int) -> None:
        """Forget the first new rows; 0: all. The lock is held."""
        self._fresh = self._fresh[count:] if count else []
        self._places = {}
        for place, row in enumerate(self._fresh):
            for key in {row.network, row.graph}:
                self._places.setdefault(key, []).append(place)

    def _part(self, batch: pa.RecordBatch) -> list[Numbers]:
        """The columns of a batch as numbers; the kinds of its rows are noted."""
        network, graph, seq, told_at_s, *rest, unstable = batch.columns
        encoded = [pc.dictionary_encode(column) for column in rest]
        code = np.zeros(batch.num_rows, np.int64)
        for column in encoded:
            code = code * max(1, len(column.dictionary)) + np.asarray(column.indices)
        _, firsts, places = np.unique(code, return_index=True, return_inverse=True)
        known = []
        for first in firsts.tolist():
            platform, purpose, tier, fingerprint, energy, foreign = (
                column[first].as_py() for column in rest
            )
            kind = Kind(platform, purpose, tier, fingerprint, bool(energy), bool(foreign))
            with self._lock:
                known.append(self._kinds.setdefault(kind, len(self._kinds)))
        kinds = np.array(known, np.uint32)[places.reshape(-1)]
        return [
            marks(network),
            marks(graph),
            np.asarray(seq),
            np.asarray(told_at_s),
            kinds,
            np.asarray(unstable).astype(np.bool_),
        ]
