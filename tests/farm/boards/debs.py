"""Debian packages for boards, which cannot reach a mirror: the host fetches, the board installs.

The host's apt selects and fetches the packages that a board's root file system lacks. The board
gets them as a local repository, and its own apt installs from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.farm.boards import rootfs
from tests.farm.boards.host import NATIVE, cache_dir, command, fetch, unfinished
from tests.farm.boards.virtual_board import VirtualBoard

PLACE = "/srv/debian"
"""Folder of the repository on a board."""

MONITORING = ("chrony", "openssl", "prometheus", "prometheus-alertmanager", "python3-apt")
"""Packages that `ansible/monitoring.yml` installs on a monitoring machine, a time server, and what
makes certificates where the controller is on that machine."""

DEVICES = ("chrony", "udev")
"""Packages of boards that synchronise their clock and manage devices themselves."""

PHONES = ("adb",)
"""Packages of a host that drives phones."""

CONTROLLER = ("libgomp1", "openssl", "python3-apt")
"""Packages that the role of a controller installs, and what Ansible installs them with."""

OPERATOR = ("sudo",)
"""Packages of a board whose operator is not root."""

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""Keys that sign Debian's packages, on the host."""

_FETCH_S = 600.0
"""Limit of the time that one command of apt may take, in seconds."""

_RECIPE = 1
"""Version of `_fetch`. Increase it with each change, so that older repositories are not used."""


def repository(packages: Sequence[str]) -> Path:
    """A folder with packages, all packages that they depend on, and an index.

    Packages of a board's `rootfs.BASE` are left out.

    Args:
        packages: names of packages. Packages that they only recommend are left out.

    Raises:
        HostError: the packages cannot be fetched.
    """
    tree = rootfs.tree()
    folder = cache_dir() / "debs"
    folder.mkdir(exist_ok=True)
    key = json.dumps([_RECIPE, tree.name, sorted(packages)]).encode()
    place = folder / hashlib.sha256(key).hexdigest()[:16]
    with rootfs.locked(place.with_suffix(".lock")):
        if not place.exists():
            with unfinished(place) as scratch:
                _fetch(packages, tree, scratch).rename(place)
    return place


def offer(board: VirtualBoard, packages: Sequence[str]) -> None:
    """Make a repository of these packages the only source of a board's apt.

    Raises:
        HostError: the packages cannot be fetched.
    """
    board.push(repository(packages), PLACE)
    board.run("rm -f /etc/apt/sources.list.d/*")
    # nspawn mounts the host's file there, and a package replaces the board's.
    board.run("! mountpoint --quiet /etc/localtime || umount /etc/localtime")
    # The board's disk is removed after the test, so dpkg need not wait for writes to finish.
    board.write("/etc/dpkg/dpkg.cfg.d/board", "force-unsafe-io\n")
    board.write("/etc/apt/sources.list", f"deb [trusted=yes] file:{PLACE} ./\n")


def _fetch(packages: Sequence[str], tree: Path, scratch: Path) -> Path:
    found = scratch / "found"
    for path in (found / "partial", scratch / "state" / "lists" / "partial", scratch / "cache"):
        path.mkdir(parents=True, exist_ok=True)
    sources = scratch / "sources.list"
    signed = f"deb [signed-by={_KEYRING}] {rootfs.mirror()}"
    suites = (rootfs.SUITE, f"{rootfs.SUITE}-updates")
    sources.write_text("".join(f"{signed} {suite} main\n" for suite in suites))
    options = {
        "APT::Architecture": NATIVE,
        "Acquire::Retries": 3,
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
        "Dir::Cache": scratch / "cache",
        "Dir::Cache::archives": found,
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": scratch / "state",
        "Dir::State::status": tree / "var/lib/dpkg/status",
    }
    apt = ("apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()))
    # -eany: if an index cannot be fetched, apt fails instead of using an older one.
    fetch(*apt, "-eany", "update", source=rootfs.source(), timeout_s=_FETCH_S)
    install = ("install", "--yes", "--download-only", "--no-install-recommends")
    fetch(*apt, *install, *packages, source=rootfs.source(), timeout_s=_FETCH_S)
    shutil.rmtree(found / "partial")
    (found / "lock").unlink(missing_ok=True)
    entries = [_entry(path) for path in sorted(found.glob("*.deb"))]
    (found / "Packages").write_text("\n".join(entries))
    return found


def _entry(path: Path) -> str:
    """The paragraph of a package in the index."""
    data = path.read_bytes()
    about = command("dpkg-deb", "--field", path).rstrip("\n")
    digest = hashlib.sha256(data).hexdigest()
    return f"{about}\nFilename: ./{path.name}\nSize: {len(data)}\nSHA256: {digest}\n"
