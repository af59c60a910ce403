"""A cache of the graphs that a delegate compiled, which outlives sessions, requests and agents.

A vendor's delegate may need minutes to compile a graph, and can write the result to a file. It
opens that file before it compiles, so that an aborted compilation leaves a broken file, which the
delegate would later load. Therefore it always writes to a scratch file, which becomes an entry of
the cache only after the model has run. An entry is handed out as a copy, after its checksum has
been verified. An entry with which a worker died before the model had run is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

_ENTRY, _SUM, _TRYING = ".graph", ".sha256", ".trying"
_CHUNK_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


def entry_key(*parts: str) -> str:
    """Return the key of an entry, from all that a compiled graph depends on (model, versions)."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class GraphCache:
    """Compiled graphs in a folder; the least recently used ones are removed.

    Only one process may use a folder at a time. A file that cannot be read or written is treated as
    missing: the cache never raises an error.

    Args:
        folder: the folder of the entries, which is made with the first entry.
        limit_bytes: bound on the size of all entries together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def borrow(self, key: str, target: Path) -> bool:
        """Copy an entry to `target`; return False if there is no valid entry.

        Call `returned` when the model has run. An entry that was not returned is removed the next
        time it is asked for.
        """
        entry, total, trying = (self._path(key, suffix) for suffix in (_ENTRY, _SUM, _TRYING))
        try:
            if trying.exists():
                self.drop(key)
                return False
            shutil.copyfile(str(entry), str(target))
            if file_sha256(target) != total.read_text(encoding="ascii").strip():
                self.drop(key)
                target.unlink()
                return False
            trying.write_text("")
            os.utime(str(entry))
        except OSError:
            with contextlib.suppress(OSError):
                target.unlink()
            return False
        return True

    def returned(self, key: str) -> None:
        """Note that the model of a borrowed entry has run."""
        with contextlib.suppress(OSError):
            self._path(key, _TRYING).unlink()

    def add(self, key: str, source: Path) -> None:
        """Add a copy of a file as an entry, and remove the oldest entries that exceed the limit.

        An empty file, or one larger than the limit, is not added.
        """
        try:
            size_bytes = source.stat().st_size
            if not 0 < size_bytes <= self._limit_bytes:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            self.drop(key)
            fresh = self._path(key, ".new")
            shutil.copyfile(str(source), str(fresh))
            self._path(key, _SUM).write_text(file_sha256(fresh), encoding="ascii")
            fresh.replace(self._path(key, _ENTRY))
            self._shrink()
        except OSError:
            self.drop(key)

    def drop(self, key: str) -> None:
        """Remove an entry, if it exists."""
        for suffix in (_ENTRY, _SUM, _TRYING, ".new"):
            with contextlib.suppress(OSError):
                self._path(key, suffix).unlink()

    def size_bytes(self) -> int:
        """Return the size of all entries together."""
        return sum(size for _, size, _ in self._entries())

    def _shrink(self) -> None:
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, key in entries:
            if total <= self._limit_bytes:
                return
            self.drop(key)
            total -= size

    def _entries(self) -> list[tuple[int, int, str]]:
        """Return for each entry when it was last used (ns), its size in bytes, and its key."""
        found = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*" + _ENTRY):
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, path.name[: -len(_ENTRY)]))
        return found

    def _path(self, key: str, suffix: str) -> Path:
        return self._folder / (key + suffix)
