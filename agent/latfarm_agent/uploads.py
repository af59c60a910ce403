"""One upload of a blob: what arrives is written, hashed, and kept for a later upload to resume."""

from __future__ import annotations

import contextlib
import errno
import io
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Iterator

from latfarm_agent.digests import StreamDigest
from latfarm_agent.errors import DigestError, DiskFullError, RequestError, UploadSupersededError

if TYPE_CHECKING:
    from latfarm_agent.blobs import BlobStore

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class BlobStatus:
    """How much of a blob is here."""

    sha256: str
    received_bytes: int
    complete: bool


class Upload:
    """One upload under way. Use as a context manager: leaving it keeps what has arrived."""

    def __init__(
        self, store: BlobStore, path: Path, sha256: str, size_bytes: int, offset: int
    ) -> None:
        self.path = path
        self.sha256 = sha256
        self.size_bytes = size_bytes
        self.received_bytes = offset
        self._store = store
        self._lock = threading.Lock()
        self._superseded = False
        self._digest = StreamDigest()
        # Unbuffered: what `write` took is the kernel's, and outlives a killed agent.
        self._file = io.FileIO(str(path), "ab")

    @property
    def remaining_bytes(self) -> int:
        """What is still to come."""
        return self.size_bytes - self.received_bytes

    def hash_prefix(self) -> None:
        """Take the bytes of earlier uploads into the hash."""
        if self.received_bytes:
            with self._lock:
                self._check_open()
                self._digest.update_from(self.path)

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            RequestError: more than was announced; the upload is discarded.
            DiskFullError: no room; the upload is discarded, for the disk needs the space.
            UploadSupersededError: a newer upload of this blob took over.
        """
        with self._lock:
            self._check_open()
            if len(data) > self.remaining_bytes:
                self._discard()
                raise RequestError(
                    f"upload of {self.sha256} sends more than the {self.size_bytes} bytes announced"
                )
            try:
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) or 0 :]
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._discard()
                raise DiskFullError("the board's disk is full") from error
            self._digest.update(data)
            self.received_bytes += len(data)

    def finish(self) -> BlobStatus:
        """End the upload: complete when all bytes are here, else to be resumed.

        Raises:
            DigestError: all bytes are here and hash to something else; the upload is discarded.
            UploadSupersededError: a newer upload of this blob took over.
        """
        with self._lock:
            self._check_open()
            self._end()
            if self.remaining_bytes:
                self._store.forget(self)
                return BlobStatus(self.sha256, self.received_bytes, complete=False)
            digest = self._digest.hexdigest()
            if digest != self.sha256:
                self._discard()
                raise DigestError(
                    f"{self.size_bytes} bytes arrived as {self.sha256}, but they hash to {digest}"
                )
            self._store.settle(self)
            self._store.forget(self)
            return BlobStatus(self.sha256, self.size_bytes, complete=True)

    def supersede(self) -> None:
        """Write no more: called by the store for a newer upload."""
        with self._lock:
            self._superseded = True
            self._end()
            self._store.forget(self)

    def close(self) -> None:
        """Leave what has arrived for a later upload."""
        with self._lock:
            self._end()
            self._store.forget(self)

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._superseded:
            raise UploadSupersededError(f"a newer upload of {self.sha256} took over")

    def _end(self) -> None:
        self._file.close()
        self._digest.stop()

    def _discard(self) -> None:
        self._end()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._store.forget(self)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk into its typed error."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFullError(f"no space left on the disk of {path}") from error
        raise
