"""Finished results on disk, until their owner acknowledges them.

Each result has one file, named by a hash of its request id. The first line is JSON (`version`,
`request_id`, `question`, `again`, `size_bytes`, `sha256`); the payload follows. A file is written
under another name and then renamed, so that a killed agent leaves a complete entry or none. Nothing
is flushed to the disk, as that would disturb the next measurement. An entry that a power failure
damaged is found by its checksum and moved to the folder `damaged`; its model is measured again.

Every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

from latfarm_agent.errors import AgentDiskFullError, SpoolFullError

VERSION = 1
"""Version of the files' format."""

SUFFIX = ".result"
"""Ending of the files' names."""

MAX_DAMAGED = 32
"""How many damaged files are kept, so that somebody can look at them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A finished result. `again`: a repeat of the request is measured once more."""

    request_id: str
    question: str
    payload: bytes
    again: bool = False


@dataclass(frozen=True)
class _SpooledResult:
    path: Path
    size_bytes: int


class Spool:
    """The spool of one agent. The directory must belong to it alone.

    Args:
        directory: created if it is missing; entries of an earlier agent are taken over.
        max_entries: how many results `check_room` allows.
        max_bytes: how many bytes `check_room` allows.
    """

    def __init__(
        self, directory: Path, *, max_entries: int = 10_000, max_bytes: int = 512 << 20
    ) -> None:
        self._directory = directory
        self._damaged = directory / "damaged"
        self._damaged.mkdir(parents=True, exist_ok=True)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._known: dict[str, _SpooledResult] = {}  # oldest first
        self._total_bytes = 0
        self._take_over()

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    @property
    def total_bytes(self) -> int:
        """Bytes of all entries."""
        with self._lock:
            return self._total_bytes

    def check_room(self, coming: int = 1) -> None:
        """Whether `coming` more results may be made.

        This is checked before a measurement: a result that exists is never refused.

        Raises:
            SpoolFullError: too many wait to be acknowledged.
        """
        with self._lock:
            if len(self) + coming > self._max_entries or self.total_bytes >= self._max_bytes:
                raise SpoolFullError(
                    f"{len(self)} results ({self.total_bytes} bytes) wait on this board: list and "
                    "acknowledge them"
                )

    def put(self, entry: Entry) -> None:
        """Keep a result; it replaces an older one of the same request.

        Raises:
            AgentDiskFullError: it cannot be written.
        """
        header = {
            "version": VERSION,
            "request_id": entry.request_id,
            "question": entry.question,
            "again": entry.again,
            "size_bytes": len(entry.payload),
            "sha256": hashlib.sha256(entry.payload).hexdigest(),
        }
        data = json.dumps(header).encode() + b"\n" + entry.payload
        with self._lock:
            path = self._directory / (_file_stem(entry.request_id) + SUFFIX)
            temporary = path.with_suffix(".tmp")
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                text = f"cannot keep the result of {entry.request_id}: {error.strerror or error}"
                raise AgentDiskFullError(text) from error
            self._forget(entry.request_id)
            self._add(entry.request_id, _SpooledResult(path, len(data)))

    def get(self, request_id: str) -> Entry | None:
        """The result of a request; None where there is none, or it is damaged."""
        with self._lock:
            known = self._known.get(request_id)
            if known is None:
                return None
            try:
                return _read(known.path)
            except (OSError, ValueError) as error:
                self._move_damaged(known.path, error)
                self._forget(request_id)
                return None

    def request_ids(self) -> list[str]:
        """The requests that have a result here, oldest first."""
        with self._lock:
            return list(self._known)

    def remove(self, request_ids: Iterable[str]) -> int:
        """Drop acknowledged results; unknown ones are no error. Gives how many there were."""
        removed = 0
        with self._lock:
            for request_id in request_ids:
                known = self._forget(request_id)
                if known is not None:
                    removed += 1
                    with contextlib.suppress(FileNotFoundError):
                        known.path.unlink()
        return removed

    def _take_over(self) -> None:
        found = []
        for path in self._directory.iterdir():
            if path.suffix == ".tmp":
                path.unlink()
            elif path.suffix == SUFFIX:
                try:
                    stat = path.stat()
                    entry = _read(path)
                    found.append(
                        (stat.st_mtime_ns, entry.request_id, _SpooledResult(path, stat.st_size))
                    )
                except (OSError, ValueError) as error:
                    self._move_damaged(path, error)
        for _, request_id, known in sorted(found, key=lambda item: item[:2]):
            self._add(request_id, known)

    def _add(self, request_id: str, known: _SpooledResult) -> None:
        self._known[request_id] = known
        self._total_bytes += known.size_bytes

    def _forget(self, request_id: str) -> _SpooledResult | None:
        known = self._known.pop(request_id, None)
        self._total_bytes -= known.size_bytes if known is not None else 0
        return known

    def _move_damaged(self, path: Path, error: Exception) -> None:
        logger.warning("spooled result %s is damaged and is moved away: %s", path.name, error)
        try:
            path.replace(self._damaged / f"{time.time_ns():020}-{path.name}")
            for old in sorted(self._damaged.iterdir())[:-MAX_DAMAGED]:
                old.unlink()
        except OSError as problem:
            logger.warning("cannot move %s away: %s", path, problem)


def _file_stem(request_id: str) -> str:
    # A request id comes from outside: it must not name a path.
    return hashlib.sha256(request_id.encode()).hexdigest()


def _read(path: Path) -> Entry:
    """Read one entry.

    Raises:
        ValueError: it is damaged, or of another version.
        OSError: it cannot be read.
    """
    head, _, payload = path.read_bytes().partition(b"\n")
    header = json.loads(head.decode())
    if not isinstance(header, dict) or header.get("version") != VERSION:
        raise ValueError("no header of this version")
    texts = header.get("request_id"), header.get("question")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("the header lacks a field")
    digest = hashlib.sha256(payload).hexdigest()
    if header.get("size_bytes") != len(payload) or header.get("sha256") != digest:
        raise ValueError("the payload does not match its checksum")
    if path.stem != _file_stem(str(texts[0])):
        raise ValueError("the name is not that of its request")
    return Entry(str(texts[0]), str(texts[1]), payload, bool(header.get("again")))
