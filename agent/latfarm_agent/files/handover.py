"""Hands a model to a worker: what was checked is what the worker gets, and it can only read it.

A file is opened once. Its bytes are hashed by that descriptor, and what is linked into a folder
that workers cannot write to is the file behind that descriptor, whatever happened to its name
meanwhile. Runtimes open models by name, so that the descriptor itself is of no use to them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Mapping

from latfarm_agent.errors import BlobNotFoundError
from latfarm_agent.files.folders import remove

_SHA256 = re.compile(r"[0-9a-f]{64}")
"""Names of files whose bytes must have this hash."""

_READ_BYTES = 1 << 20
_READ_ONLY = 0o400


def hand_over(model: Path, folder: Path, companions: Mapping[str, str] | None = None) -> Path:
    """Put a model into a new folder below `folder`, under its own name; gives its new path.

    The caller removes the new folder.

    Args:
        model: the file of the model.
        folder: a folder to which workers cannot write.
        companions: the hash of each file that lies beside the model, by its name there; a file that
            is named by the hash lies in the folder of `model`.

    Raises:
        BlobNotFoundError: a file is missing, or it is named by a hash that its bytes do not have.
        OSError: the disk is full.
    """
    home = Path(tempfile.mkdtemp(dir=str(folder)))
    try:
        _lay_out(model, home / model.name)
        for name, sha256 in (companions or {}).items():
            _lay_out(model.parent / sha256, home / name, follow=False)
    except BaseException:
        remove(home)
        raise
    return home / model.name


def _lay_out(model: Path, target: Path, *, follow: bool = True) -> None:
    """Put a file under another name; without `follow`, it must not be a link."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        opened = os.open(str(model), flags)
    except OSError as error:
        raise BlobNotFoundError(f"the model is not here: {model.name}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise BlobNotFoundError(f"the model is not a file: {model.name}")
        named_by_hash = _SHA256.fullmatch(model.name) is not None
        if named_by_hash and _digest(opened) != model.name:
            raise BlobNotFoundError(f"blob {model.name} was damaged on this board: upload it again")
        if not _linked(opened, target):
            copied = _copied(opened, target)
            if named_by_hash and copied != model.name:
                raise BlobNotFoundError(f"blob {model.name} changed while it was copied")
    finally:
        os.close(opened)


def _linked(opened: int, target: Path) -> bool:
    """Link an open file to a name; False where that is impossible, as on another disk."""
    folder = os.open(str(target.parent), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The name in /proc stands for the open file itself: see AT_SYMLINK_FOLLOW in linkat(2).
        os.link(f"/proc/self/fd/{opened}", target.name, dst_dir_fd=folder, follow_symlinks=True)
    except (OSError, NotImplementedError):
        return False
    finally:
        os.close(folder)
    return True


def _copied(opened: int, target: Path) -> str:
    """Copy an open file; gives the hash of what was written."""
    digest = hashlib.sha256()
    made = os.open(str(target), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _READ_ONLY)
    with os.fdopen(made, "wb") as copy:
        position = 0
        while True:
            data = os.pread(opened, _READ_BYTES, position)
            if not data:
                return digest.hexdigest()
            digest.update(data)
            copy.write(data)
            position += len(data)


def _digest(opened: int) -> str:
    digest = hashlib.sha256()
    position = 0
    while True:
        data = os.pread(opened, _READ_BYTES, position)
        if not data:
            return digest.hexdigest()
        digest.update(data)
        position += len(data)
