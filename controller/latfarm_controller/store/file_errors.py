"""What went wrong with the database file, told with the file, the deed and the remedy."""

from __future__ import annotations

import errno
from pathlib import Path

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.errors import StoreBusyError, StoreError

_MAGIC = b"DUCK"
_MAGIC_OFFSET = 8
_DAMAGED = ("corrupt", "checksum", "not a valid", "deserializ", "could not read enough")
# By name, as the one door to the database library is not here.
_DAMAGING = frozenset({"FatalException", "InternalException", "SerializationException"})


def check_files(path: Path) -> None:
    """Refuse what is no database of ours before anything may touch it.

    Raises:
        StoreError: the file is of another kind, or its log lies there alone.
    """
    log = path.with_name(path.name + ".wal")
    if not path.exists():
        if log.exists():
            raise StoreError(
                f"{log.name} lies there without its database: bring that back, or move it away"
            )
        return
    with path.open("rb") as file:
        head = file.read(_MAGIC_OFFSET + len(_MAGIC))
    if head and head[_MAGIC_OFFSET:] != _MAGIC:
        raise StoreError("it is no store, or a damaged one; move it away to begin a new one")


def as_store_error(path: Path, action: str, error: BaseException) -> StoreError:
    """The error to raise for one of the database, of Arrow, of a graph, or of the system.

    Args:
        path: of the database.
        action: what was attempted, as "write a graph".
        error: what came of it.
    """
    lines = str(error).splitlines()
    reason = lines[0] if lines else type(error).__name__
    text = f"{path}: cannot {action}: {reason}"
    if "Conflicting lock is held" in reason:
        return StoreBusyError(f"{text}; close that program first")
    if "No space left" in reason or getattr(error, "errno", None) == errno.ENOSPC:
        return StoreError(
            f"{text}; free space on the disk, then start again: what was told is kept"
        )
    if (
        isinstance(error, PredictorsError)
        or type(error).__name__ in _DAMAGING
        or any(word in reason.lower() for word in _DAMAGED)
    ):
        return StoreError(
            f"{text}; the file may be damaged: start again, and if that does not help move it away "
            "with its .wal to begin a new one"
        )
    return StoreError(text)
