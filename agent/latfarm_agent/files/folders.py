"""Measure a folder, remove a folder, and write a file in one step."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from latfarm_agent.errors import AgentUsageError


@dataclass(frozen=True)
class Used:
    """Everything below a folder. `size_bytes` counts disk blocks, so holes in files count 0."""

    size_bytes: int = 0
    entries: int = 0


def used(folder: Path) -> Used:
    """Count everything below a folder. Links are not followed; what vanishes is not counted."""
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
    """Remove a folder, however deep and whatever its permissions; of a link, the link itself.

    The content of each inner folder is first moved into the top folder, so that no path becomes
    longer than the kernel allows. What cannot be removed stays: files of other users, mount points.
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
    """Write a file in one step: a reader finds the old content or all of the new one.

    Raises:
        AgentUsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise AgentUsageError(f"cannot write {path}: {error.strerror or error}") from error


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; it and the folders in it are made readable and writable first."""
    entries: list[Path] = []
    with contextlib.suppress(OSError):
        folder.chmod(stat.S_IRWXU)
        entries = list(folder.iterdir())
    for entry in entries:
        with contextlib.suppress(OSError):
            if not entry.is_symlink() and entry.is_dir():
                entry.chmod(stat.S_IRWXU)  # to be moved, a folder must be writable itself
    return entries
