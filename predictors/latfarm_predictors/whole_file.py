"""A file that is written whole or not at all: beside its place, then moved there in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".part"
"""What unfinished files end in; who owns a folder may remove those that nobody writes any more."""


@contextmanager
def written_whole(
    path: Path, *, make_folder: bool = False, durable: bool = False, mode: int | None = None
) -> Iterator[Path]:
    """The name of a hidden file beside `path`, which takes its place when the block ends well.

    Whoever reads `path` finds what was there before or all that was written. When the block fails,
    and when the disk is full, `path` stays as it was and the hidden file goes; a process that is
    killed leaves the hidden file at most. Each call has a name of its own: several may write the
    same path, and the last one counts. A symbolic link at `path` is replaced, not followed.

    Args:
        path: the file to be.
        make_folder: make its folder, and those above, where they are missing.
        durable: on the disk before it takes its place: no cut of power leaves an empty file.
        mode: permissions from the first byte on, for what only some may read; None: the block makes
            the file, as the process' umask has it.

    Raises:
        OSError: it cannot be written or moved; the block's own errors pass as they are.
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
