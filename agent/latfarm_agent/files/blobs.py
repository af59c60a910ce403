"""The cache of models on disk, by their sha256: uploads can be resumed, old models make room.

```
blobs/<sha256>             a complete blob: its bytes had this hash when it was put there
blobs/partial/<sha256>     the bytes that have arrived; an upload resumes at its length
```

An upload is hashed while it is written, and renamed into place only if the hash matches. Nothing is
flushed to the disk: the kernel's page cache survives a killed agent, and damage by a power failure
is found because each blob is hashed again at its first use after a start.

Every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from latfarm_agent.errors import (
    AgentDiskFullError,
    BlobNotFoundError,
    BlobTooLargeError,
    DigestError,
    OffsetError,
)
from latfarm_agent.files.digests import file_digest
from latfarm_agent.files.uploads import BlobStatus, Upload, disk_errors

SHA256 = re.compile(r"[0-9a-f]{64}")
"""The name of a blob."""

DISK_RESERVE_BYTES = 64 << 20
"""Free space that uploads leave on the disk for results and logs."""

_READ_ONLY = 0o400
"""Permissions of a complete blob."""

logger = logging.getLogger(__name__)


def check_sha256(sha256: str) -> str:
    """The given name of a blob, if it is well-formed; then it is safe as a file name.

    Raises:
        DigestError: the name is not 64 lower-case hex digits.
    """
    if not SHA256.fullmatch(sha256):
        raise DigestError(f"{sha256[:80]!r} is not a sha256: 64 lower-case hex digits are needed")
    return sha256


@dataclass
class _Whole:
    """A complete blob. `used_at_ns`: the time of its last use, kept as the file's mtime too."""

    size_bytes: int
    used_at_ns: int
    users: int = 0
    verified: bool = False


class BlobStore:
    """The cache of one agent. The directory must belong to it alone.

    Args:
        directory: created if it is missing; blobs of an earlier agent are taken over.
        max_blob_bytes: size limit of one blob.
        max_total_bytes: size limit of all blobs and partial uploads together.
        reserve_bytes: free space that uploads leave on the disk.
        free_bytes: tells the free space on the disk of a directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_blob_bytes: int = 4 << 30,
        max_total_bytes: int = 4 << 30,
        reserve_bytes: int = DISK_RESERVE_BYTES,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(str(path)).free,
    ) -> None:
        self._directory = directory
        self._partial = directory / "partial"
        self._partial.mkdir(parents=True, exist_ok=True)
        self._max_blob_bytes = max_blob_bytes
        self._max_total_bytes = max_total_bytes
        self._reserve_bytes = reserve_bytes
        self._free_bytes = free_bytes
        self._lock = threading.RLock()
        self._uploads: dict[str, Upload] = {}
        self._evictions = 0
        self._whole = {
            path.name: _Whole(stat.st_size, stat.st_mtime_ns)
            for path, stat in _named_files(directory)
        }
        # Kept up to date, as a board that measured for weeks has a hundred thousand small models.
        self._whole_bytes = sum(whole.size_bytes for whole in self._whole.values())
        self._newest_ns = max((whole.used_at_ns for whole in self._whole.values()), default=0)

    @property
    def count(self) -> int:
        """How many complete blobs are here."""
        with self._lock:
            return len(self._whole)

    @property
    def evictions(self) -> int:
        """How many blobs and partial uploads were removed to make room, since the start."""
        return self._evictions

    @property
    def total_bytes(self) -> int:
        """Bytes on disk, partial uploads included."""
        with self._lock:
            partial = sum(stat.st_size for _, stat in _named_files(self._partial))
            return partial + self._whole_bytes

    @property
    def room_bytes(self) -> int:
        """Largest blob that would be accepted now: blobs that are not in use make room for it."""
        with self._lock:
            promised = sum(upload.remaining_bytes for upload in self._uploads.values())
            used = sum(whole.size_bytes for whole in self._whole.values() if whole.users)
            open_ = sum(upload.size_bytes for upload in self._uploads.values())
            evictable = self.total_bytes - used - (open_ - promised)
            free = self._free_bytes(self._directory) + evictable
            on_disk = free - promised - self._reserve_bytes
            under_limit = self._max_total_bytes - used - open_
            return max(0, min(self._max_blob_bytes, under_limit, on_disk))

    def status(self, sha256: str) -> BlobStatus:
        """How much of the blob is here.

        Raises:
            DigestError: `sha256` is malformed.
        """
        check_sha256(sha256)
        with self._lock:
            whole = self._whole.get(sha256)
            if whole is not None:
                return BlobStatus(sha256, whole.size_bytes, complete=True)
        try:
            size_bytes = (self._partial / sha256).stat().st_size
        except FileNotFoundError:
            size_bytes = 0
        return BlobStatus(sha256, size_bytes, complete=False)

    def begin(self, sha256: str, size_bytes: int, offset: int) -> Upload | None:
        """Start or resume an upload; None when the blob is complete already.

        An upload of the same blob that is still open is superseded: most likely its connection is
        broken, and the agent has not noticed it yet.

        Raises:
            DigestError: `sha256` is malformed.
            OffsetError: `offset` is not the number of bytes that are here.
            BlobTooLargeError: it is over the limit, or does not fit beside the blobs in use.
            AgentDiskFullError: the disk is full.
        """
        check_sha256(sha256)
        upload: Upload | None = None
        while upload is None:
            with self._lock:
                if sha256 in self._whole:
                    self._touch(sha256)
                    return None
                older = self._uploads.get(sha256)
                if older is None:
                    upload = self._open_upload(sha256, size_bytes, offset)
            # An upload may wait for the store, so the store must not wait for an upload.
            if older is not None:
                older.supersede()
        try:
            upload.hash_prefix()
        except BaseException:
            upload.close()
            raise
        return upload

    def _open_upload(self, sha256: str, size_bytes: int, offset: int) -> Upload:
        if size_bytes > self._max_blob_bytes:
            raise BlobTooLargeError(
                f"blob of {size_bytes} bytes is over this board's limit of "
                f"{self._max_blob_bytes} bytes"
            )
        received_bytes = self.status(sha256).received_bytes
        if offset != received_bytes or offset > size_bytes:
            raise OffsetError(
                f"upload starts at {offset} of {size_bytes} bytes, but {received_bytes} bytes "
                f"of {sha256} are here: resume there"
            )
        self._make_room(sha256, size_bytes - offset)
        with disk_errors(self._directory):
            upload = Upload(self, self._partial / sha256, sha256, size_bytes, offset)
        self._uploads[sha256] = upload
        return upload

    def acquire(self, sha256: str) -> Path:
        """Keep a complete blob from eviction until `release`; gives its file.

        Raises:
            DigestError: `sha256` is malformed.
            BlobNotFoundError: it is not here, not complete, or was damaged and is removed then.
        """
        check_sha256(sha256)
        with self._lock:
            whole = self._whole.get(sha256)
            if whole is None:
                raise BlobNotFoundError(f"blob {sha256} is not on this board: upload it first")
            whole.users += 1
            self._touch(sha256)
        path = self._directory / sha256
        with contextlib.suppress(OSError):
            path.chmod(_READ_ONLY)  # an older agent left it writable
        if whole.verified:
            return path
        try:
            sound = file_digest(path) == sha256
        except OSError:
            sound = False
        with self._lock:
            whole.verified = whole.verified or sound
            if not whole.verified:
                whole.users -= 1
                # Two callers may find the damage at once, and an upload may have replaced it.
                if self._whole.get(sha256) is whole and whole.users == 0:
                    self._remove(sha256)
                logger.warning("blob %s was damaged on disk and is removed", sha256)
                raise BlobNotFoundError(f"blob {sha256} was damaged on this board: upload it again")
        return path

    def distrust(self, sha256: str) -> None:
        """Hash a blob again at its next use, as somebody found other bytes in it."""
        with self._lock:
            whole = self._whole.get(sha256)
            if whole is not None:
                whole.verified = False

    def release(self, sha256: str) -> None:
        """End a use that began with `acquire`."""
        with self._lock:
            whole = self._whole[sha256]
            assert whole.users > 0, "released more often than acquired"
            whole.users -= 1

    def _touch(self, sha256: str) -> None:
        whole = self._whole[sha256]
        # Strictly growing, so that two uses in one tick of the clock keep their order.
        whole.used_at_ns = self._newest_ns = max(time.time_ns(), self._newest_ns + 1)
        with contextlib.suppress(OSError):
            os.utime(str(self._directory / sha256), ns=(whole.used_at_ns, whole.used_at_ns))

    def _remove(self, sha256: str) -> None:
        self._whole_bytes -= self._whole.pop(sha256).size_bytes
        with contextlib.suppress(FileNotFoundError):
            (self._directory / sha256).unlink()

    def _make_room(self, sha256: str, needed_bytes: int) -> None:
        """Evict the oldest blobs until `needed_bytes` fit under the limit and on the disk."""
        promised = sum(upload.remaining_bytes for upload in self._uploads.values())
        while True:
            over_limit = self.total_bytes + promised + needed_bytes - self._max_total_bytes
            wanted = promised + needed_bytes + self._reserve_bytes
            over_disk = wanted - self._free_bytes(self._directory) if needed_bytes else 0
            if over_limit <= 0 and over_disk <= 0:
                return
            if not self._evict_oldest(sha256):
                if over_limit > 0:
                    raise BlobTooLargeError(
                        f"blob needs {over_limit} bytes more than this board's limit of "
                        f"{self._max_total_bytes} bytes leaves beside the blobs in use"
                    )
                raise AgentDiskFullError(f"the board's disk lacks {over_disk} bytes for this blob")

    def _evict_oldest(self, keep: str) -> bool:
        oldest: list[tuple[int, Path]] = [
            (whole.used_at_ns, self._directory / sha256)
            for sha256, whole in self._whole.items()
            if not whole.users
        ]
        oldest += [
            (stat.st_mtime_ns, path)
            for path, stat in _named_files(self._partial)
            if path.name != keep and path.name not in self._uploads
        ]
        if not oldest:
            return False
        path = min(oldest)[1]
        if path.parent == self._partial:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        else:
            self._remove(path.name)
        self._evictions += 1
        logger.info("evicted blob %s to make room", path.name)
        return True

    def settle(self, upload: Upload) -> None:
        """Rename a finished upload into place."""
        with self._lock, disk_errors(self._directory):
            final = self._directory / upload.sha256
            upload.path.chmod(_READ_ONLY)
            upload.path.replace(final)
            older = self._whole.get(upload.sha256)
            self._whole_bytes += upload.size_bytes - (0 if older is None else older.size_bytes)
            self._whole[upload.sha256] = _Whole(upload.size_bytes, 0, verified=True)
            self._touch(upload.sha256)

    def forget(self, upload: Upload) -> None:
        """Forget an upload that takes no more bytes."""
        with self._lock:
            if self._uploads.get(upload.sha256) is upload:
                del self._uploads[upload.sha256]


def _named_files(directory: Path) -> list[tuple[Path, os.stat_result]]:
    """The files in a directory that are named like blobs."""
    found = []
    with os.scandir(str(directory)) as entries:
        for entry in entries:
            # A partial upload may be discarded between the two calls.
            with contextlib.suppress(FileNotFoundError):
                if SHA256.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append((directory / entry.name, entry.stat()))
    return found
