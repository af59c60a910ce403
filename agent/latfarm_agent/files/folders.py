"""Folders and files: how much lies in a folder, getting rid of it, writing a file whole."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from latfarm_agent.errors import AgentUsageError


@dataclass(frozen=True)
class Used:
    """What lies below a folder. `size_bytes`: what the disk holds, so holes in files count 0."""

    size_bytes: int = 0
    entries: int = 0


def used(folder: Path) -> Used:
    """Look at everything below a folder; links are not followed, what vanishes is not counted."""
    size_bytes = entries = 0
    ahead = [str(folder)]
    while ahead:
        try:
            with os.scandir(ahead.pop()) as found:
                for entry in found:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        entries += 1
                        size_bytes += status.st_blocks * 512
                        if stat.S_ISDIR(status.st_mode):
                            ahead.append(entry.path)
        except OSError:
            continue
    return Used(size_bytes, entries)


def remove(folder: Path) -> None:
    """Remove a folder, however deep and whatever its permissions; a link itself is removed.

    Folders are emptied into the top one before they go, so that no path grows beyond what the
    kernel takes. What cannot be removed (somebody else's, a mount point) stays.
    """
    if folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    moved = 0
    progress = True
    while progress:
        progress = False
        for entry in _entries(folder):
            with contextlib.suppress(OSError):
                if entry.is_symlink() or not entry.is_dir():
                    entry.unlink()
                    progress = True
                    continue
                for inner in _entries(entry):
                    moved += 1
                    inner.rename(folder / f".removed-{moved}")
                entry.rmdir()
                progress = True
    with contextlib.suppress(OSError):
        folder.rmdir()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds all of it, or what stood there before.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise AgentUsageError(f"cannot write {path}: {error.strerror or error}") from error


def _entries(folder: Path) -> list[Path]:
    """What a folder holds; it and the folders in it are made readable and writable first."""
    entries: list[Path] = []
    with contextlib.suppress(OSError):
        folder.chmod(stat.S_IRWXU)
        entries = list(folder.iterdir())
    for entry in entries:
        with contextlib.suppress(OSError):
            if not entry.is_symlink() and entry.is_dir():
                entry.chmod(stat.S_IRWXU)  # to be moved, a folder must be writable itself
    return entries
