"""What a worker and its descendants use of the board, and whether that is too much.

The kernel's limits hold for single processes, but it is the sum over a family of processes that
harms the board. Most boards give the agent no control group to write to, so it reads the sum from
outside, a few times a second, while the worker measures. That reads counters only, and does not
disturb the measured process.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from latfarm_agent.files.folders import used
from latfarm_agent.worker import keeper

_GB = 1e9


@dataclass(frozen=True)
class Bounds:
    """What a worker's processes may use together during one request; 0: no bound.

    `disk_bytes` counts what they print too. `entries`: files and folders in the worker's folders.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    entries: int = 100_000
    processes: int = 64
    threads: int = 4096


@dataclass(frozen=True)
class Usage:
    """What a family of processes uses; `written_bytes` counts since each of them started."""

    processes: int = 0
    threads: int = 0
    memory_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class Excess:
    """A bound that was exceeded; `code` is the error code of the measurement's result."""

    code: str
    message: str


class ProcessGuard:
    """Watches the processes of a worker during one request.

    Args:
        keeper_pid: the common ancestor, which is not counted itself.
        bounds: what is allowed.
        folders: those that only this worker writes to.
    """

    def __init__(self, keeper_pid: int, bounds: Bounds, folders: tuple[Path, ...]) -> None:
        self._pid = keeper_pid
        self._bounds = bounds
        self._folders = folders
        self._written = usage(keeper_pid).written_bytes
        self._free = _free(folders)

    def excess(self) -> Excess | None:
        """The bound that is exceeded now; None: none is."""
        bounds = self._bounds
        now = usage(self._pid)
        if bounds.memory_bytes and now.memory_bytes > bounds.memory_bytes and now.processes > 1:
            # Pages that a fork shares with its parent were counted twice: count them exactly.
            now = Usage(now.processes, now.threads, _shared_out(self._pid), now.written_bytes)
        found = over(now, now.written_bytes - self._written, bounds)
        if found is None and bounds.disk_bytes:
            found = self._filled()
        return found

    def _filled(self) -> Excess | None:
        """Space that was taken without a write: reserved or mapped.

        The free space of the whole disk is cheap to read, so it is looked at first.
        """
        free = _free(self._folders)
        for before, now in zip(self._free, free):
            if before[0] - now[0] > self._bounds.disk_bytes or (
                before[1] - now[1] > self._bounds.entries
            ):
                break
        else:
            return None
        mine = [used(folder) for folder in self._folders]
        if sum(each.size_bytes for each in mine) > self._bounds.disk_bytes:
            return _too_much_disk(sum(each.size_bytes for each in mine), self._bounds)
        if sum(each.entries for each in mine) > self._bounds.entries:
            return Excess("LIMIT_EXCEEDED", f"it made over {self._bounds.entries} files")
        return None  # somebody else fills the disk


def over(now: Usage, written_bytes: int, bounds: Bounds) -> Excess | None:
    """The bound that a family exceeds, with `written_bytes` since the request began."""
    if bounds.memory_bytes and now.memory_bytes > bounds.memory_bytes:
        return Excess(
            "OUT_OF_MEMORY",
            f"it holds {now.memory_bytes / _GB:.2f} GB of memory in {now.processes} process(es); "
            f"{bounds.memory_bytes / _GB:.2f} GB are allowed",
        )
    if bounds.processes and now.processes > bounds.processes:
        return Excess(
            "LIMIT_EXCEEDED",
            f"it runs {now.processes} processes; {bounds.processes} are allowed",
        )
    if bounds.threads and now.threads > bounds.threads:
        return Excess(
            "LIMIT_EXCEEDED", f"it runs {now.threads} threads; {bounds.threads} are allowed"
        )
    if bounds.disk_bytes and written_bytes > bounds.disk_bytes:
        return _too_much_disk(written_bytes, bounds)
    return None


def usage(keeper_pid: int) -> Usage:
    """What all descendants of `keeper_pid` use now; zeros where there is no /proc."""
    processes = threads = memory = chars = blocks = 0
    for pid in family(keeper_pid):
        status = _fields(pid, "status")
        if not status:
            continue
        processes += 1
        threads += status.get("Threads", 0)
        # In kilobytes. Pages that are mapped from files are not counted: the kernel can drop them.
        private = status.get("RssAnon", status.get("VmRSS", 0))
        memory += (private + status.get("RssShmem", 0)) * 1024
        written = _fields(pid, "io")
        chars += written.get("wchar", 0)
        blocks += written.get("write_bytes", 0)
    return Usage(processes, threads, memory, max(chars, blocks))


def busy(keeper_pid: int) -> bool:
    """Whether a thread of a descendant of `keeper_pid` runs, or waits for a core."""
    for pid in family(keeper_pid):
        for task in _tasks(pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (task / "stat").read_text(errors="replace")
                if stat[stat.rindex(")") + 2] == "R":
                    return True
    return False


def family(root: int) -> set[int]:
    """Process ids of all descendants of `root`."""
    found: set[int] = set()
    ahead = [root]
    while ahead:
        pid = ahead.pop()
        for task in _tasks(pid):
            try:
                words = (task / "children").read_text().split()
            except FileNotFoundError:
                if task.exists():  # this kernel does not list children
                    return keeper.descendants(root)
                continue
            except OSError:
                continue  # the process has ended meanwhile
            new = {int(word) for word in words} - found
            found |= new
            ahead.extend(new)
    return found


def _tasks(pid: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from list(Path(f"/proc/{pid}/task").iterdir())


def _fields(pid: int, name: str) -> dict[str, int]:
    """Lines of `key: number` in a file of /proc; empty where it cannot be read."""
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{name}").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                fields[key] = int(words[0])
    return fields


def _shared_out(keeper_pid: int) -> int:
    """Memory of a family in bytes, each shared page divided among those that have it."""
    total = 0
    for pid in family(keeper_pid):
        rollup = _fields(pid, "smaps_rollup")
        if not rollup:
            status = _fields(pid, "status")
            total += status.get("RssAnon", status.get("VmRSS", 0)) + status.get("RssShmem", 0)
        elif "Pss_Anon" in rollup:
            total += rollup["Pss_Anon"] + rollup.get("Pss_Shmem", 0)
        else:
            total += rollup.get("Pss", 0)
    return total * 1024


def _free(folders: tuple[Path, ...]) -> list[tuple[int, int]]:
    """Free bytes and file slots where each folder lies; zeros where it is gone."""
    found = []
    for folder in folders:
        try:
            there = os.statvfs(str(folder))
            found.append((there.f_bavail * there.f_frsize, there.f_ffree))
        except OSError:
            found.append((0, 0))
    return found


def _too_much_disk(size_bytes: int, bounds: Bounds) -> Excess:
    return Excess(
        "LIMIT_EXCEEDED",
        f"it wrote {size_bytes / _GB:.2f} GB; {bounds.disk_bytes / _GB:.2f} GB are allowed",
    )
