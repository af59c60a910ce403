"""A control group for a worker: what is in it ends at once, however it was forked (cgroups(7)).

Version 2 of control groups alone can do that, since Linux 5.14. Few boards let the agent make one:
root may, and a user to whom systemd delegates one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

_PREFIX = "latfarm-worker-"
_END_S = 2.0
"""How long the processes of a group may take to end after they were killed."""


def own_group() -> Path | None:
    """The folder of the control group of this process; None where there is no version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    mine = next((line[3:] for line in lines if line.startswith("0::")), None)
    if mine is None:
        return None
    for mount in mounts:
        fields, _, rest = mount.partition(" - ")
        if rest.startswith("cgroup2 "):
            root, where = fields.split()[3:5]
            if root == "/" or mine == root or mine.startswith(root + "/"):
                inner = mine if root == "/" else mine[len(root) :]
                return Path(where) / inner.lstrip("/")
    return None


def make(name: str, tasks: int) -> Path:
    """Make a control group below our own one.

    Args:
        name: name of the group, which must begin with the number of this process and "-".
        tasks: most processes and threads in it, if the kernel counts them here; 0: no bound.

    Raises:
        OSError: it may not be made, or it could not end processes; the text says why.
    """
    parent = own_group()
    if parent is None:
        raise OSError(errno.ENOENT, "there are no control groups of version 2")
    group = parent / f"{_PREFIX}{name}"
    try:
        group.mkdir()
    except FileExistsError:
        pass
    except OSError as error:
        raise OSError(error.errno, f"no control group may be made: {error.strerror}") from error
    if not (group / "cgroup.kill").exists():
        remove(group)
        raise OSError(errno.ENOENT, "this kernel cannot end a control group")
    if tasks:
        with contextlib.suppress(OSError):
            (group / "pids.max").write_text(str(tasks))
    return group


def join(group: Path) -> None:
    """Move this process into a control group.

    Raises:
        OSError: the kernel refuses.
    """
    (group / "cgroup.procs").write_text(str(os.getpid()))


def end(group: Path) -> None:
    """Kill everything in a control group and remove it. Idempotent."""
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    remove(group)


def sweep() -> None:
    """End the control groups that agents left which were killed."""
    parent = own_group()
    if parent is None:
        return
    try:
        groups = [group for group in parent.iterdir() if group.name.startswith(_PREFIX)]
    except OSError:  # for example Android, where apps may not look at control groups
        return
    for group in groups:
        maker = group.name[len(_PREFIX) :].partition("-")[0]
        if maker.isdigit() and not Path("/proc", maker).exists():
            end(group)


def remove(group: Path) -> None:
    """Remove a control group as soon as it is empty; it stays if a process does not end."""
    until = time.monotonic() + _END_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() >= until:
                return
            time.sleep(0.01)
        else:
            return
