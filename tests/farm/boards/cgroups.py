"""The control groups of one board, one in every hierarchy that the host has mounted.

systemd on the board needs a group of its own. The memory controller limits the board's memory, and
the freezer stops all its processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.farm.boards.host import HostError

_USED = ("name=systemd", "", "memory", "freezer", "pids")
"""Hierarchies in which a board has a group; "" is the unified one (version 2)."""

_END_TIMEOUT_S = 10.0
"""How long to wait for the end of a killed process, in seconds."""


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy: its name, its mount point, and the parent group of boards' groups."""

    name: str
    mount: Path
    parent: Path


def hierarchies() -> list[Hierarchy]:
    """The hierarchies of `_USED` that this host has mounted.

    In version 1, boards' groups are below the group of this process, whose limits apply to them. In
    version 2 they are at the root of the mount, because a group that contains processes cannot
    enable controllers for groups below it.
    """
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            found.append(Hierarchy("", Path(mount), Path(mount)))
        elif kind == "cgroup":
            for name in sorted(set(options.split(",")) & set(_USED)):
                inner = os.path.relpath(own.get(name, root), root)
                parent = Path(mount) if inner.startswith("..") else Path(mount) / inner
                found.append(Hierarchy(name, Path(mount), parent))
    return found


class Cgroups:
    """The control groups of one board. All of them have the same name.

    Args:
        name: name of the groups.

    Raises:
        HostError: a group cannot be made.
    """

    def __init__(self, name: str) -> None:
        self._folders = {each.name: each.parent / name for each in hierarchies()}
        try:
            for folder in self._folders.values():
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise HostError(f"no control group can be made: {error}") from error

    @property
    def joins(self) -> list[Path]:
        """Files to which a process writes "0" to join the groups; the board is started from it."""
        return [folder / "cgroup.procs" for folder in self._folders.values()]

    @property
    def guests(self) -> list[Path]:
        """Files to which a process writes "0" to join the groups of the board's systemd."""
        found = []
        for name, folder in self._folders.items():
            inside = folder / "payload" / "init.scope" if name in ("", "name=systemd") else folder
            found.append(inside / "cgroup.procs")
        return found

    def limit_memory(self, size_bytes: int) -> None:
        """Limit the memory of all processes of the board together.

        The kernel's out-of-memory killer enforces the limit.

        Raises:
            HostError: the host offers no memory controller.
        """
        if "memory" in self._folders:
            file = self._folders["memory"] / "memory.limit_in_bytes"
        elif "" in self._folders:
            file = self._folders[""] / "memory.max"
            if not file.exists():
                with contextlib.suppress(OSError):
                    (file.parent.parent / "cgroup.subtree_control").write_text("+memory")
        else:
            raise HostError("no control group with a memory controller is mounted")
        try:
            # Mode r+ does not create the file, which is impossible in these file systems.
            with file.open("r+") as limit:
                limit.write(str(size_bytes))
        except OSError as error:
            raise HostError(f"the memory of a board cannot be limited: {error}") from error

    def freeze(self, frozen: bool) -> None:
        """Stop all processes of the board (True), or let them run again (False).

        Raises:
            HostError: the host offers no freezer.
        """
        if "freezer" in self._folders:
            file = self._folders["freezer"] / "freezer.state"
            text = "FROZEN" if frozen else "THAWED"
        else:
            file = self._folders.get("", Path("/nowhere")) / "cgroup.freeze"
            text = "1" if frozen else "0"
        try:
            with file.open("r+") as state:
                state.write(text)
        except OSError as error:
            raise HostError(f"a board cannot be frozen: {error}") from error

    def remove(self) -> None:
        """Remove the groups; processes that are still in them are killed."""
        remove(self._folders.values())


def can_limit_memory() -> bool:
    """Whether the memory of boards can be limited on this host."""
    probe = Cgroups(f"lfprobe{os.getpid()}")
    try:
        probe.limit_memory(1 << 30)
    except HostError:
        return False
    finally:
        probe.remove()
    return True


def stale(prefix: str) -> list[Path]:
    """All groups of all hierarchies whose names start with `prefix`."""
    return [
        folder
        for each in hierarchies()
        for folder in each.mount.rglob(f"{prefix}*")
        if folder.is_dir()
    ]


def remove(folders: Iterable[Path]) -> None:
    """Remove groups and the groups below them; their processes are thawed and killed."""
    for root in folders:
        for name, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with contextlib.suppress(OSError), (root / name).open("r+") as file:
                file.write(text)
        inner = [Path(folder) for folder, _, _ in os.walk(root, topdown=False)]
        for folder in inner:
            _end(folder / "cgroup.procs")
            with contextlib.suppress(OSError):
                folder.rmdir()


def _end(procs: Path) -> None:
    """Kill the processes of a group, and wait until they have ended."""
    try:
        pids = [int(pid) for pid in procs.read_text().split()]
    except OSError:
        return
    ends = []
    for pid in pids:
        with contextlib.suppress(OSError):
            ends.append(os.pidfd_open(pid))
            signal.pidfd_send_signal(ends[-1], signal.SIGKILL)
    for end in ends:
        select.select([end], [], [], _END_TIMEOUT_S)
        os.close(end)
