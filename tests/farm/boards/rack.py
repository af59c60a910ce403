"""A rack: what the boards of one run share (a network, a folder, a key to log in with).

Everything that a rack makes on the host lies in its folder or carries its name. The folder holds a
lock for as long as the rack's process lives, so whoever makes the next rack first removes what a
killed process left behind, and only that.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import TextIO

from tests.farm.boards import cgroups, network, rootfs
from tests.farm.boards.host import HostError, command, work_dir
from tests.farm.boards.network import Bridge, Cable

_LOCK = "lock"
_DISKS = "disks"


class Rack:
    """Boards on one bridge. A context manager; all boards are off before it ends. Thread-safe.

    Raises:
        HostError: the host refuses.
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
        """Where boards find this host."""
        return self.bridge.address

    def cable(self) -> Cable:
        """A new board's way to the bridge."""
        with self._guard:
            number = self._numbers
            self._numbers += 1
        return self.bridge.cable(number)

    def knows(self, address: str, host_key: str) -> None:
        """Note a board's public key, for those who log in."""
        with self._guard, self.known_hosts.open("a") as file:
            file.write(f"{address} {host_key}\n")

    def close(self) -> None:
        """Remove all that it made. Idempotent."""
        if self._lock is not None:
            _remove(self.folder)
            self._lock.close()
            self._lock = None

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
    """Write an SSH key without a passphrase, and its public half beside it."""
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "board", "-f", path)


def reap() -> list[str]:
    """Remove the racks whose processes are gone; gives their names.

    The caller holds the lock of all racks.
    """
    found = []
    for folder in sorted(path for path in work_dir().iterdir() if path.is_dir()):
        lock = _try_lock(folder)
        if lock is not None:
            with lock:
                _remove(folder)
            found.append(folder.name)
    return found


def _try_lock(folder: Path) -> TextIO | None:
    """The rack's lock, or None: its process lives."""
    file = (folder / _LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _remove(folder: Path) -> None:
    """Remove a rack with everything that carries its name."""
    cgroups.remove(cgroups.stale(f"lf{folder.name}-"))
    network.remove(folder.name)
    if os.path.ismount(folder / _DISKS):
        command("umount", "--lazy", folder / _DISKS)
    shutil.rmtree(folder)


def _make_disks(folder: Path) -> Path:
    """The folder for boards' disks, in which they can be layers over a shared tree.

    Where its file system cannot (one that is layered itself, as containers have), it is memory.
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
