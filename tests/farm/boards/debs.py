"""Debian packages for boards that no mirror can be reached from: fetched here, installed there.

The host's apt chooses and fetches what a board's root file system lacks; the board gets the files
as a repository of its own, and its apt works as on any machine.
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
"""Where the repository lies on a board."""

MONITORING = ("chrony", "prometheus", "prometheus-alertmanager", "python3-apt")
"""What `ansible/monitoring.yml` installs on a machine that watches, and a server of time."""

DEVICES = ("chrony", "udev")
"""What boards have that keep time and devices themselves."""

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_FETCH_S = 600.0
_RECIPE = 1


def repository(packages: Sequence[str]) -> Path:
    """A folder with these packages and what they need beyond a board's `rootfs.BASE`, and an index.

    Args:
        packages: names; what they only recommend is left out.

    Raises:
        HostError: they cannot be had.
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
    """Let a board's apt install these packages, and know of no other source.

    Raises:
        HostError: as `repository`.
    """
    board.push(repository(packages), PLACE)
    board.run("rm -f /etc/apt/sources.list.d/*")
    # nspawn mounts the host's over it, and a package wants to replace it.
    board.run("! mountpoint --quiet /etc/localtime || umount /etc/localtime")
    # The board's disk lives no longer than the test: nothing waits for it to be written.
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
    # An index that cannot be had is an error, not a warning with an old one in its place.
    fetch(*apt, "-eany", "update", source=rootfs.source(), timeout_s=_FETCH_S)
    install = ("install", "--yes", "--download-only", "--no-install-recommends")
    fetch(*apt, *install, *packages, source=rootfs.source(), timeout_s=_FETCH_S)
    shutil.rmtree(found / "partial")
    (found / "lock").unlink(missing_ok=True)
    entries = [_entry(path) for path in sorted(found.glob("*.deb"))]
    (found / "Packages").write_text("\n".join(entries))
    return found


def _entry(path: Path) -> str:
    """A package's paragraph of the index."""
    data = path.read_bytes()
    about = command("dpkg-deb", "--field", path).rstrip("\n")
    digest = hashlib.sha256(data).hexdigest()
    return f"{about}\nFilename: ./{path.name}\nSize: {len(data)}\nSHA256: {digest}\n"
