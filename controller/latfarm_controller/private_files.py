"""The home and everything in it belongs to its owner alone, whatever the umask of the caller is.

Folders get the mode 0700, and files and sockets 0600. Commands run with a private umask, because
libraries make files in the home too, such as the log of DuckDB. What was made by an older version,
or by another program, is put right once, and the log says so.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from latfarm_controller.errors import UsageError

FOLDER_MODE = 0o700
"""Permissions of a folder in the home."""
FILE_MODE = 0o600
"""Permissions of a file or socket in the home."""
OTHERS = 0o077
"""The permissions of the group and of all others."""
FOLDERS = ("tls", "bundles", "reports", "agents", "logs", "ray", "wheels")
"""The folders of the home."""
FILES = (
    *("store.duckdb", "boards.json", "audit.jsonl", "latfarm.toml"),
    *("controller.lock", "controller.sock", "holder"),
)
"""How the names of the home's files begin; the lock of `boards.json` is `boards.json.lock`."""

MAX_READ_BYTES = 16 << 20
"""Largest size of a file that is read as a whole, in bytes."""

logger = logging.getLogger(__name__)
_callers: list[int] = []
"""The umask of the caller, while `private_umask` is in force."""


@contextmanager
def private_umask() -> Iterator[None]:
    """Let the block make files that only their owner may read, also those of libraries."""
    before = os.umask(OTHERS)
    _callers.append(before)
    try:
        yield
    finally:
        _callers.pop()
        os.umask(before)


@contextmanager
def callers_umask() -> Iterator[None]:
    """Let the block make files with the umask of the caller: files that somebody asked for."""
    if not _callers:
        yield
        return
    before = os.umask(_callers[0])
    try:
        yield
    finally:
        os.umask(before)


def locked_file(path: Path) -> BinaryIO:
    """Wait until nobody else holds the lock of a file, and hold it until the result is closed.

    The file is made if it does not exist. Do not remove it: whoever waits for it would then hold
    the lock of a file that nobody else finds.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    file = os.fdopen(descriptor, "r+b")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path) -> bytes:
    """What is in a file that people may write; a FIFO is not waited for.

    Raises:
        OSError: it cannot be read; it is no regular file, or larger than `MAX_READ_BYTES`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(code, "it is no regular file", str(path))
        if found.st_size > MAX_READ_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_READ_BYTES} bytes", str(path))
        return file.read(MAX_READ_BYTES)


def private_file(path: Path) -> None:
    """Take a file or socket away from the group and all others.

    Raises:
        OSError: it does not exist, or its permissions cannot be changed.
    """
    if stat.S_IMODE(path.stat().st_mode) != FILE_MODE:
        path.chmod(FILE_MODE)


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may use, or take an existing one away from all others.

    Raises:
        UsageError: it cannot be made, belongs to another user, or is one that all users share.
    """
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        found = path.stat()
        if found.st_mode & stat.S_ISVTX:
            raise UsageError(
                f"{path} is a folder that all users share; set LATFARM_HOME to a folder of yours"
            )
        if os.geteuid() not in (0, found.st_uid):
            raise UsageError(
                f"{path} belongs to another user; set LATFARM_HOME to a folder of yours"
            )
        if stat.S_IMODE(found.st_mode) & OTHERS or not found.st_mode & stat.S_IRWXU:
            path.chmod(FOLDER_MODE)
    except OSError as error:
        raise UsageError(
            f"the folder {path} cannot be made ({error.strerror}); "
            "set LATFARM_HOME to a folder that you may write"
        ) from error


def private_home(home: Path) -> None:
    """Make the home, or take an existing one away from all other users; the log says so.

    Only what belongs to a home is changed, in case the folder holds other files as well.

    Raises:
        UsageError: see `private_folder`.
    """
    home = home.resolve()
    open_before = _mode(home) & OTHERS
    private_folder(home)
    parts = [
        path
        for path in sorted(home.iterdir())
        if path.name in FOLDERS or path.name.startswith(FILES)
    ]
    changed = sum(_close(path, everything=bool(open_before)) for path in parts)
    # Where all that is in it was closed, others could do nothing, unless they could exchange it.
    if changed or (parts and open_before & 0o022):
        could = "change" if open_before & 0o022 else "read"
        logger.warning(
            "other users of this machine could %s what is in %s; it is private now: the "
            "permissions of %d files and folders were changed",
            could,
            home,
            changed + bool(open_before),
        )


def _close(path: Path, *, everything: bool) -> int:
    """Take a part of the home away from all others; the number of files and folders changed.

    What is in a folder is looked at if others could reach it: with `everything`, or if the folder
    itself was open. The folder is closed before that, so that nobody can exchange its files.
    """
    mode = _mode(path)
    if stat.S_ISLNK(mode) or not (mode & OTHERS or everything):
        return 0
    changed = 0
    if mode & OTHERS:
        try:
            path.chmod(stat.S_IMODE(mode) & FOLDER_MODE)
        except OSError:  # it is gone already, or another user's, who is shut out by its folder
            return 0
        changed = 1
    if stat.S_ISDIR(mode):
        changed += sum(_close(child, everything=True) for child in sorted(path.iterdir()))
    return changed


def _mode(path: Path) -> int:
    """Kind and permissions of a file, not of what a symbolic link points to; 0 for none."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0
