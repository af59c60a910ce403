"""Measure a folder, remove a folder, and write a file in one step."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from latfarm_agent.errors import AgentUsageError

_LONGEST_S = 60.0
"""How long the removal of a folder may take, as somebody may go on filling it."""


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
    longer than the kernel allows. What cannot be removed stays: files of other users, mount points,
    and what somebody goes on making for too long.

    Folders are opened once and then used by their descriptors. A process that is still running in
    the folder may put a link in the place of an inner folder at any moment, and must not be able
    to make this process move or open to others what the link names.
    """
    top = _opened(str(folder))
    if top is None:
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    until_s = time.monotonic() + _LONGEST_S
    moved = 0
    try:
        progress, before = True, [""]
        names = _names(top)
        while names and (progress or names != before) and time.monotonic() < until_s:
            progress = False
            for name in names:
                with contextlib.suppress(OSError):
                    moved = _remove_entry(top, name, moved)
                    progress = True
            before, names = names, _names(top)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_entry(top: int, name: str, moved: int) -> int:
    """Remove an entry of the top folder; gives how many entries of inner folders were moved there.

    Raises:
        OSError: it stays.
    """
    inner = _opened(name, top)
    if inner is None:
        os.unlink(name, dir_fd=top)
        return moved
    try:
        for child in _names(inner):
            kept = _opened(child, inner)  # to be moved, a folder must be writable itself
            if kept is not None:
                os.close(kept)
            moved += 1
            with contextlib.suppress(OSError):
                os.rename(child, f".removed-{moved}", src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _opened(name: str, parent: int | None = None) -> int | None:
    """Open a folder for its owner to read and write; None for a link and all that is no folder."""
    by_path = getattr(os, "O_PATH", os.O_RDONLY)
    plain = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        found = os.open(name, by_path | plain, dir_fd=parent)
    except OSError:
        return None
    try:
        with contextlib.suppress(OSError):
            # Its name in /proc stands for the folder that was opened, whatever its permissions are.
            Path(f"/proc/self/fd/{found}").chmod(stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | plain, dir_fd=found)
    except OSError:
        return None
    finally:
        os.close(found)


def _names(folder: int) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


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
