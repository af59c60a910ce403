"""sha256 of a stream, in a thread of its own: hashing is the slowest part of an upload."""

from __future__ import annotations

import hashlib
import queue
import threading
from pathlib import Path

ASIDE_BYTES = 64 << 10
"""Smallest chunk for which the thread starts: smaller ones are hashed faster than handed over."""

MAX_WAITING = 4
"""Most chunks that wait for the thread; this bounds the memory of an upload."""

READ_BYTES = 1 << 20
"""How much of a file is read at once."""


class StreamDigest:
    """Hashes chunks in their order. For one caller at a time, who must call `stop` in the end."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def update(self, data: bytes) -> None:
        """Add a chunk; it must not change afterwards."""
        if self._thread is None and len(data) < ASIDE_BYTES:
            self._hash.update(data)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="digest", daemon=True)
            self._thread.start()
        self._waiting.put(data)

    def update_from(self, path: Path) -> None:
        """Add a whole file."""
        buffer = memoryview(bytearray(READ_BYTES))
        with path.open("rb", buffering=0) as file:
            while True:
                count = file.readinto(buffer)
                if not count:
                    return
                self._hash.update(buffer[:count])

    def stop(self) -> None:
        """End the thread after it has hashed all chunks that it was given."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def hexdigest(self) -> str:
        """The digest of all chunks so far."""
        self.stop()
        return self._hash.hexdigest()

    def _work(self) -> None:
        while True:
            data = self._waiting.get()
            if data is None:
                return
            self._hash.update(data)


def file_digest(path: Path) -> str:
    """sha256 of a file in hex.

    Raises:
        OSError: it cannot be read.
    """
    digest = StreamDigest()
    digest.update_from(path)
    return digest.hexdigest()
