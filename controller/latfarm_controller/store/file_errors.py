"""Errors of the database file, as messages that tell the file, the action and a remedy."""

from __future__ import annotations

import errno
from pathlib import Path

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.errors import StoreBusyError, StoreError, StoreFullError
from latfarm_controller.store.log_file import log_of

# A DuckDB file has these four bytes at this offset.
_MAGIC = b"DUCK"
_MAGIC_OFFSET = 8
# The main header is followed by two headers of the database. The blocks of data follow.
_HEADER_BYTES = 3 * 4096
_BLOCK_BYTES = 262_144
# Words in messages of DuckDB that mean a damaged file.
_DAMAGED = ("corrupt", "checksum", "not a valid", "deserializ", "could not read enough")
# Names of DuckDB's exceptions that mean a damaged file; this module does not import DuckDB.
# Words in messages of DuckDB that mean a full disk, or a user's full share of it (`man 3 errno`).
_FULL = ("No space left", "Disk quota exceeded")
_DAMAGING = frozenset({"FatalException", "InternalException", "SerializationException"})


def check_files(path: Path) -> None:
    """Refuse a file that is no DuckDB database, before DuckDB opens it.

    Raises:
        StoreError: the file is of another kind, or its write-ahead log exists without it.
    """
    log = log_of(path)
    if not path.exists():
        if log.exists():
            raise StoreError(
                f"{log.name} exists without its database: "
                "restore the database, or move the log away"
            )
        return
    for file_path in (path, log):
        # DuckDB would wait for ever for somebody to write into a FIFO.
        if file_path.exists() and not file_path.is_file():
            raise StoreError(f"{file_path.name} is no regular file; move it away")
    with path.open("rb") as file:
        head = file.read(_MAGIC_OFFSET + len(_MAGIC))
    if head and head[_MAGIC_OFFSET:] != _MAGIC:
        raise StoreError("it is no store, or a damaged one; move it away to begin a new one")
    if head:
        check_length(path, -1)


def check_length(path: Path, last_block: int) -> None:
    """Refuse a file that ends before its last block; DuckDB would notice only when it reads it.

    Args:
        path: the database file.
        last_block: the highest number of a block that a table uses; -1 if there is none.

    Raises:
        StoreError: the file is shorter than it must be.
    """
    needed = _HEADER_BYTES + (last_block + 1) * _BLOCK_BYTES
    size = path.stat().st_size
    if size < needed:
        raise StoreError(
            f"it is half written: it has {size} of {needed} bytes; latfarm db repair writes what "
            "is readable beside it, before you move it away"
        )


def as_store_error(path: Path, action: str, error: BaseException) -> StoreError:
    """The StoreError to raise for an error of the database, of Arrow, of a graph or of the system.

    Args:
        path: the database file.
        action: what was attempted, such as "write a graph".
        error: what was raised.
    """
    lines = str(error).splitlines()
    reason = lines[0] if lines else type(error).__name__
    text = f"{path}: cannot {action}: {reason}"
    if "Conflicting lock is held" in reason:
        return StoreBusyError(f"{text}; close that program first")
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if full or any(word in reason for word in _FULL):
        return StoreFullError(
            f"{text}; free space on the disk, then start again: all that was written before is kept"
        )
    if (
        isinstance(error, PredictorsError)
        or type(error).__name__ in _DAMAGING
        or any(word in reason.lower() for word in _DAMAGED)
    ):
        return StoreError(
            f"{text}; the file or its .wal may be damaged: run latfarm db repair, which writes all "
            "that is readable beside them, before you move it away"
        )
    return StoreError(text)
