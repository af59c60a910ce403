"""Compiled graphs of a delegate, kept from one session, request and agent to the next.

A vendor's delegate may compile a graph for minutes and can write the outcome to a file. The file
that it writes is never the entry itself: it opens one before it compiles, so an aborted compilation
leaves a file that it later takes for a good one. So it writes to a scratch file, which becomes an
entry when the model has run. An entry is given out as a copy, checked against its sum; one with
which a worker died before the model had run is thrown away.
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
    """Hash of a file, as hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


def entry_key(*parts: str) -> str:
    """Name of an entry: what makes one compiled graph another (model, delegate, versions)."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class GraphCache:
    """Compiled graphs in a folder, the least recently used of them dropped.

    Only one process uses a folder at a time. What cannot be read or written is as if it were not
    there: a cache is never a reason to fail.

    Args:
        folder: made when the first entry comes.
        limit_bytes: bound on all entries together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def borrow(self, key: str, target: Path) -> bool:
        """Copy an entry to `target`; False where there is none that is sound.

        Call `returned` once the model has run; an entry that was not returned is dropped next time.
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
        """A borrowed entry did its work."""
        with contextlib.suppress(OSError):
            self._path(key, _TRYING).unlink()

    def add(self, key: str, source: Path) -> None:
        """Keep a file as an entry, and drop the oldest ones until all are within the limit.

        Nothing is kept of an empty file, or of one beyond the limit.
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
        """Forget an entry, if there is one."""
        for suffix in (_ENTRY, _SUM, _TRYING, ".new"):
            with contextlib.suppress(OSError):
                self._path(key, suffix).unlink()

    def size_bytes(self) -> int:
        """Of all entries together."""
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
        """Of each entry when it was last used (ns), its size, and its key."""
        found = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*" + _ENTRY):
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, path.name[: -len(_ENTRY)]))
        return found

    def _path(self, key: str, suffix: str) -> Path:
        return self._folder / (key + suffix)
