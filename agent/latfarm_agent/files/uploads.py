"""One upload of a blob: its bytes are written, hashed, and kept so that it can be resumed."""

from __future__ import annotations

import contextlib
import errno
import io
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Callable, Iterator, Protocol

from latfarm_agent.errors import (
    AgentDiskFullError,
    DigestError,
    ForbiddenFormatError,
    RequestError,
    UploadSupersededError,
)
from latfarm_agent.files.digests import StreamDigest

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers that mean a full disk, a full quota, or a file beyond the size limit."""

HEAD_BYTES = 41
"""First bytes of a blob that tell its format.

They hold the first header of a ZIP file with the name of its entry, as ncnn's models have it.
"""

_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_ZIP = b"PK\x03\x04"
FORBIDDEN: tuple[tuple[bytes, str], ...] = (
    # Serialized engines begin with one of two tags: that of old, or that of new releases.
    (b"ftrt", "a TensorRT engine: it holds machine code; send the ONNX model"),
    (b"ptrt", "a TensorRT engine: it holds machine code; send the ONNX model"),
    *((magic, "a pickle: reading it runs code; send the model itself") for magic in _PICKLES),
    (_ZIP, "a ZIP file, as PyTorch and Keras write pickles; send an ONNX model"),
    (b"PK\x05\x06", "an empty ZIP file; send an ONNX model"),
    (b"\x7fELF", "a program; send a model"),
    (b"MZ", "a program; send a model"),
    (b"#!", "a script; send a model"),
    (b"\x89HDF", "an HDF5 file, whose layers may hold code; send an ONNX model"),
)
"""First bytes of files that are never loaded, as no model of any platform begins with them."""

NCNN_ENTRY = b"model.param"
"""First file of the only ZIP that is a model: ncnn's two files, and nothing else of it is read."""


def check_format(head: bytes, whole: bool = True) -> None:
    """Refuse a blob that would run code when it is loaded.

    Args:
        head: the first `HEAD_BYTES` bytes of a blob, or all of a shorter one.
        whole: True: no more of these bytes are to come. False: a ZIP file is not judged yet.

    Raises:
        ForbiddenFormatError: the message says what the blob is, and what to send instead.
    """
    if head.startswith(_ZIP) and (not whole or _first_entry(head) == NCNN_ENTRY):
        return
    for magic, what in FORBIDDEN:
        if head.startswith(magic):
            raise ForbiddenFormatError(f"the blob is {what}")


def _first_entry(head: bytes) -> bytes:
    """Name of the first file in a ZIP; empty for other files (PKWARE APPNOTE.TXT, 4.3.7)."""
    if not head.startswith(_ZIP) or len(head) < 30:
        return b""
    size = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + size]


class Pace:
    """Limits the bytes per second of all its users together; one second's worth may come at once.

    Args:
        bytes_per_s: the limit.
        now_s: a clock in seconds.
        wait: sleeps for that many seconds.
    """

    def __init__(
        self,
        bytes_per_s: float,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._wait = wait
        self._lock = threading.Lock()
        self._free_s = now_s() - 1.0  # when the bytes so far are within the limit

    def spend(self, size_bytes: int) -> None:
        """Account for so many bytes, and wait until the limit allows them."""
        with self._lock:
            now_s = self._now_s()
            self._free_s = max(self._free_s, now_s - 1.0) + size_bytes / self._bytes_per_s
            early_s = self._free_s - now_s
        if early_s > 0:
            self._wait(early_s)


@dataclass(frozen=True)
class BlobStatus:
    """How much of a blob is here."""

    sha256: str
    received_bytes: int
    complete: bool


class UploadOwner(Protocol):
    """The store that an upload reports to. Both methods may be called from any thread."""

    def settle(self, upload: Upload) -> None:
        """Take over the file of an upload whose bytes are complete and have the right digest."""

    def forget(self, upload: Upload) -> None:
        """Forget an upload that takes no more bytes."""


class Upload:
    """An upload in progress. Use it as a context manager: leaving it keeps what has arrived."""

    def __init__(
        self, store: UploadOwner, path: Path, sha256: str, size_bytes: int, offset: int
    ) -> None:
        self.path = path
        self.sha256 = sha256
        self.size_bytes = size_bytes
        self.received_bytes = offset
        self._store = store
        self._lock = threading.Lock()
        self._superseded = False
        self._digest = StreamDigest()
        self._head = path.read_bytes()[:HEAD_BYTES] if 0 < offset < HEAD_BYTES else b""
        self._judged = offset >= HEAD_BYTES
        # Unbuffered: bytes that `write` took are in the kernel, and survive a killed agent.
        self._file = io.FileIO(str(path), "ab")

    @property
    def remaining_bytes(self) -> int:
        """How many bytes are still to come."""
        return self.size_bytes - self.received_bytes

    def hash_prefix(self) -> None:
        """Hash the bytes of earlier uploads."""
        if self.received_bytes:
            with self._lock:
                self._check_open()
                self._digest.update_from(self.path)

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            RequestError: there are more bytes than announced; the upload is discarded.
            ForbiddenFormatError: it would run code when it is loaded; the upload is discarded.
            AgentDiskFullError: no space is left; the upload is discarded to free some.
            UploadSupersededError: a newer upload of this blob took over.
        """
        with self._lock:
            self._check_open()
            if len(data) > self.remaining_bytes:
                self._discard()
                raise RequestError(
                    f"upload of {self.sha256} sends more than the {self.size_bytes} bytes announced"
                )
            self._judge(data)
            try:
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) or 0 :]
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._discard()
                raise AgentDiskFullError("the board's disk is full") from error
            self._digest.update(data)
            self.received_bytes += len(data)

    def _judge(self, data: bytes) -> None:
        """Check the first bytes before the blob can become complete."""
        if self._judged:
            return
        self._head = (self._head + bytes(data[:HEAD_BYTES]))[:HEAD_BYTES]
        self._judged = len(self._head) == HEAD_BYTES
        whole = self._judged or len(data) == self.remaining_bytes
        try:
            check_format(self._head, whole)
        except ForbiddenFormatError:
            self._discard()
            raise

    def finish(self) -> BlobStatus:
        """End the upload: complete if all bytes have arrived, otherwise it can be resumed.

        Raises:
            DigestError: all bytes have arrived and have another hash; the upload is discarded.
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
        """Write no more; the store calls this for a newer upload of the same blob."""
        with self._lock:
            self._superseded = True
            self._end()
            self._store.forget(self)

    def close(self) -> None:
        """Keep the bytes that have arrived for a later upload."""
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
    """Turn the error of a full disk into `AgentDiskFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise AgentDiskFullError(f"no space left on the disk of {path}") from error
        raise
