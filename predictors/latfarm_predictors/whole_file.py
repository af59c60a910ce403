"""Write a file completely or not at all: beside its path, then moved there in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".part"
"""How names of unfinished files end. The owner of a folder may remove those that are left over."""


@contextmanager
def written_whole(
    path: Path, *, make_folder: bool = False, durable: bool = False, mode: int | None = None
) -> Iterator[Path]:
    """Yield the name of a hidden file beside `path`, which replaces `path` if the block succeeds.

    A reader of `path` finds either the old content or the complete new one. If the block fails, or
    the disk is full, `path` stays as it was and the hidden file is removed; a process that is
    killed may leave the hidden file. Each call has its own hidden file, so several may write the
    same path; the last one to end wins. A symbolic link at `path` is replaced, not followed.

    Args:
        path: the file to write.
        make_folder: make missing folders above it.
        durable: flush the file to the disk before it replaces `path`, so that a power cut cannot
            leave an empty file.
        mode: permissions of the hidden file, which is then made before the block, for content that
            only some may read; None if the block makes the file with the umask of the process.

    Raises:
        OSError: the file cannot be written or moved; errors of the block are raised unchanged.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{SUFFIX}")
    try:
        if mode is not None:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield part
        if durable:
            _flush(part)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
