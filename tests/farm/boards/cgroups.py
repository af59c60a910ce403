"""The control groups of one board, in every hierarchy that the host has mounted.

systemd in the board needs a group of its own; the memory and freezer controllers give a board as
little memory as a real one has, and hang it.
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


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy: its name, where it is mounted, and the group that holds the boards'."""

    name: str
    mount: Path
    parent: Path


def hierarchies() -> list[Hierarchy]:
    """Those of `_USED` that are mounted here.

    Version 1: boards' groups lie below this process's own, whose limits hold for them too. Version
    2: at the mount's root, as a group with processes in it may hand no controller down.
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
    """The groups of one board, by the name that all of them have.

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
        """Files that take the process that writes "0" to them into the board that it is to be."""
        return [folder / "cgroup.procs" for folder in self._folders.values()]

    @property
    def guests(self) -> list[Path]:
        """The same for a process that enters a running board: where systemd runs, not above it."""
        found = []
        for name, folder in self._folders.items():
            inside = folder / "payload" / "init.scope" if name in ("", "name=systemd") else folder
            found.append(inside / "cgroup.procs")
        return found

    def limit_memory(self, size_bytes: int) -> None:
        """Bound the board's memory, as the kernel's out-of-memory killer knows it.

        Raises:
            HostError: the host has no such controller to hand down.
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
            # Opened without creating: in these file systems a missing file cannot be made.
            with file.open("r+") as limit:
                limit.write(str(size_bytes))
        except OSError as error:
            raise HostError(f"the memory of a board cannot be bounded: {error}") from error

    def freeze(self, frozen: bool) -> None:
        """Stop all processes of the board where they stand, or let them go on.

        Raises:
            HostError: the host has no such controller.
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
        """Remove them, with what is left in them."""
        remove(self._folders.values())


def bounds_memory() -> bool:
    """Whether boards' memory can be bounded on this host."""
    probe = Cgroups(f"lfprobe{os.getpid()}")
    try:
        probe.limit_memory(1 << 30)
    except HostError:
        return False
    finally:
        probe.remove()
    return True


def stale(prefix: str) -> list[Path]:
    """All groups whose names start with `prefix`, wherever they lie."""
    return [
        folder
        for each in hierarchies()
        for folder in each.mount.rglob(f"{prefix}*")
        if folder.is_dir()
    ]


def remove(folders: Iterable[Path]) -> None:
    """Thaw, kill what is in them, and remove them with the groups below."""
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
    """Kill a group's processes; returns when they have ended."""
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
