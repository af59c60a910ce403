"""A rack: what the boards of one run share (a network, a folder, an SSH key).

Everything that a rack makes on the host is in its folder or has the rack's name in its own name.
The process of a rack locks a file in the folder for as long as it lives. When it is killed, a
process of `rack_cleaner` removes the rack. Whoever makes a rack first removes the racks whose locks
are free, in case that the cleaner was killed, too.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import TextIO

from tests.farm.boards import cgroups, network, rootfs
from tests.farm.boards.host import HostError, command, work_dir
from tests.farm.boards.network import Bridge, Cable
from tests.leftovers import MARK_VARIABLE

LOCK = "lock"
"""Name of the lock file in a rack's folder."""

_DISKS = "disks"
"""Name of the folder for boards' disks in a rack's folder."""


class Rack:
    """The bridge, the folder and the SSH key of some boards. Thread-safe.

    A rack is a context manager. All its boards must be closed before its `with` block ends.

    Raises:
        HostError: the host cannot make the bridge or the folder of disks.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._numbers = 0
        with rootfs.locked(work_dir() / ".lock"):
            reap()
            self.name = secrets.token_hex(3)
            self.folder = work_dir() / self.name
            self.folder.mkdir(mode=0o700)
            self._lock = _try_lock(self.folder)
            assert self._lock is not None
            self._cleaner = _start_cleaner(self.folder)
            try:
                self.disks = _make_disks(self.folder)
                self.bridge = Bridge(self.name)
            except BaseException:
                self.close()
                raise
        self.key = self.folder / "key"
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text("")
        make_key(self.key)

    @property
    def address(self) -> str:
        """IP address of the host in the network of the boards."""
        return self.bridge.address

    def cable(self) -> Cable:
        """Make the network namespace and the cable of a new board."""
        with self._guard:
            number = self._numbers
            self._numbers += 1
        return self.bridge.cable(number)

    def knows(self, address: str, host_key: str) -> None:
        """Add a board's host key to the file of known hosts."""
        with self._guard, self.known_hosts.open("a") as file:
            file.write(f"{address} {host_key}\n")

    def close(self) -> None:
        """Remove everything that the rack has made on the host. Idempotent."""
        if self._lock is not None:
            _remove(self.folder)
            self._lock.close()
            self._lock = None
            assert self._cleaner.stdin is not None
            self._cleaner.stdin.close()
            self._cleaner.wait()

    def __enter__(self) -> Rack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def make_key(path: Path) -> None:
    """Write an SSH key without a passphrase to `path`, and its public key to `path`.pub."""
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "board", "-f", path)


def reap() -> list[str]:
    """Remove the racks whose processes have ended; return their names.

    The caller holds the lock file of all racks.
    """
    found = []
    for folder in sorted(path for path in work_dir().iterdir() if path.is_dir()):
        lock = _try_lock(folder)
        if lock is not None:
            with lock:
                _remove(folder)
            found.append(folder.name)
    return found


def traces(name: str) -> list[str]:
    """Everything on this host that belongs to the rack with this name."""
    found = [path.name for path in Path("/run/netns").glob(f"lf{name}*")]
    found += [path.name for path in Path("/sys/class/net").glob(f"lf{name}*")]
    found += [str(path) for path in cgroups.stale(f"lf{name}")]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    found += [str(path) for path in work_dir().glob(name)]
    return found


def _start_cleaner(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that removes a rack when this process ends; see `rack_cleaner`."""
    # Without the mark of the test run, whose processes are ended together with it.
    environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.farm.boards.rack_cleaner", folder],
        cwd=Path(__file__).parents[3],
        env=environment,
        stdin=subprocess.PIPE,
        # The reader of the run's output must not wait for the cleaner.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _try_lock(folder: Path) -> TextIO | None:
    """Lock a rack's folder; None if the rack's process lives and holds the lock."""
    file = (folder / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _remove(folder: Path) -> None:
    """Remove a rack's folder, and everything whose name contains the rack's name."""
    cgroups.remove(cgroups.stale(f"lf{folder.name}-"))
    network.remove(folder.name)
    if os.path.ismount(folder / _DISKS):
        command("umount", "--lazy", folder / _DISKS)
    shutil.rmtree(folder)


def _make_disks(folder: Path) -> Path:
    """Make the folder of boards' disks, which are overlays over a shared tree.

    If the file system does not support that (because it is an overlay itself, as in containers),
    the folder becomes a file system in memory.
    """
    disks = folder / _DISKS
    disks.mkdir()
    probe = folder / "probe"
    for name in ("lower", "upper", "work", "root"):
        (probe / name).mkdir(parents=True)
    layers = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
    try:
        command(
            "unshare", "--mount", "mount", "-t", "overlay", "-o", layers, "none", probe / "root"
        )
    except HostError:
        command("mount", "-t", "tmpfs", "-o", "mode=700,size=80%", "tmpfs", disks)
    shutil.rmtree(probe)
    return disks
