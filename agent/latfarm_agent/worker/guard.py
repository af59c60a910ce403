"""What a worker and all that it forked take of the board, and whether that is too much.

The kernel's limits hold for one process each: of a family, only the sum harms the board. Where no
control group is ours to write, as on most boards, the sum is looked at from outside, a few times a
second, while the worker measures. A measured process is not disturbed: only counters are read.
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
    """What a worker's family may take during one request; 0: no bound.

    `disk_bytes` also counts what it prints. `entries`: files and folders in its own folders.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    entries: int = 100_000
    processes: int = 64
    threads: int = 4096


@dataclass(frozen=True)
class Usage:
    """What a family has: private and shared memory, bytes written since each of them started."""

    processes: int = 0
    threads: int = 0
    memory_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class Excess:
    """Too much was taken; `code` is that of the measurement's result."""

    code: str
    message: str


class ProcessGuard:
    """Watches a worker's family during one request.

    Args:
        keeper_pid: ancestor of all; it is not counted.
        bounds: what is allowed.
        folders: what the worker may write to and nobody else does.
    """

    def __init__(self, keeper_pid: int, bounds: Bounds, folders: tuple[Path, ...]) -> None:
        self._pid = keeper_pid
        self._bounds = bounds
        self._folders = folders
        self._written = usage(keeper_pid).written_bytes
        self._free = _free(folders)

    def excess(self) -> Excess | None:
        """What is too much now, if anything is."""
        bounds = self._bounds
        now = usage(self._pid)
        if bounds.memory_bytes and now.memory_bytes > bounds.memory_bytes and now.processes > 1:
            # Pages that a fork shares with its parent were counted twice: count in earnest.
            now = Usage(now.processes, now.threads, _shared_out(self._pid), now.written_bytes)
        found = over(now, now.written_bytes - self._written, bounds)
        if found is None and bounds.disk_bytes:
            found = self._filled()
        return found

    def _filled(self) -> Excess | None:
        """Space that went without a write (reserved, or mapped): first how much is free at all."""
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
    """Judge what a family has, and what it wrote since the request began."""
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
    """What all processes below `keeper_pid` take now; zeros where there is no /proc."""
    processes = threads = memory = chars = blocks = 0
    for pid in family(keeper_pid):
        status = _fields(pid, "status")
        if not status:
            continue
        processes += 1
        threads += status.get("Threads", 0)
        # What is mapped from files can be dropped and counts for nobody. Kilobytes.
        private = status.get("RssAnon", status.get("VmRSS", 0))
        memory += (private + status.get("RssShmem", 0)) * 1024
        written = _fields(pid, "io")
        chars += written.get("wchar", 0)
        blocks += written.get("write_bytes", 0)
    return Usage(processes, threads, memory, max(chars, blocks))


def busy(keeper_pid: int) -> bool:
    """Whether a thread below `keeper_pid` runs, or would if it had a core."""
    for pid in family(keeper_pid):
        for task in _tasks(pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (task / "stat").read_text(errors="replace")
                if stat[stat.rindex(")") + 2] == "R":
                    return True
    return False


def family(root: int) -> set[int]:
    """Pids of all processes below `root`."""
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
                continue  # it ended while we looked
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
