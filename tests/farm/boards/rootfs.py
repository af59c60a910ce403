"""Root file systems of virtual boards: made once from Debian's packages, kept as one file each.

The file's name is a hash of all that decides what is in it, so another choice of packages is
another file. The folder of these files can be kept between runs, and copied between hosts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.farm.boards.host import NATIVE, HostError, cache_dir, command, fetch, unfinished

SUITE = "bookworm"
MIRROR_VARIABLE = "LATFARM_DEBIAN_MIRROR"
BASE = ("dbus", "iproute2", "openssh-server", "python3", "systemd", "systemd-sysv", "usr-is-merged")
"""On every board; what a board has beyond these, its test names."""

_RECIPE = 2
"""Version of `_prepare`: counted up when it changes, so that no old tree is taken for a new one."""

_FETCHER = "/usr/lib/apt/apt-helper"
_MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
_TAR = ("tar", "--zstd", "--numeric-owner", "--xattrs", "--xattrs-include=*")
_BUILD_TIMEOUT_S = 1500.0
_MASKED = (
    # Nothing on a board fetches, upgrades or sets the clock, which is the host's.
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-timesyncd.service"),
    # Mounts and consoles that a container has no use for.
    *("console-getty.service", "getty.target", "dev-hugepages.mount", "dev-mqueue.mount"),
    *("sys-fs-fuse-connections.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
)
_WITHOUT_CREDENTIALS = (
    # An emulated process cannot set up credentials in a mount namespace of its own.
    "systemd-journald.service",
    "systemd-sysctl.service",
    "systemd-sysusers.service",
    "systemd-tmpfiles-clean.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-tmpfiles-setup.service",
    "systemd-udevd.service",
)


def ensure(arch: str = NATIVE, packages: Sequence[str] = (), suite: str = SUITE) -> Path:
    """The packed root file system of a board; made if it is not there yet.

    Args:
        arch: "amd64" or "arm64"; another than the host's needs `emulation.enable()` first.
        packages: Debian packages beside `BASE`; those of `suite`-backports count where `suite`
            lacks them.
        suite: Debian's release.

    Returns:
        A `.tar.zst` file below the cache folder.

    Raises:
        HostError: it cannot be made.
    """
    packed = _packed(arch, packages, suite)
    packed.parent.mkdir(exist_ok=True)
    with locked(packed.with_name(packed.name.replace(".tar.zst", ".lock"))):
        if not packed.exists():
            _make(packed, arch, sorted({*BASE, *packages}), suite)
    return packed


def lacks() -> str:
    """Why no board's disk can be had on this host, in one line; empty if one can, or is there."""
    if _packed(NATIVE, (), SUITE).exists():
        return ""
    release = f"{mirror()}/dists/{SUITE}/InRelease"
    with tempfile.TemporaryDirectory() as folder:
        try:
            # As apt would fetch it, by the host's settings.
            command(_FETCHER, "download-file", release, f"{folder}/found", timeout_s=300.0)
        except HostError as error:
            last = str(error).splitlines()[-1]
            return f"there is no way to Debian's packages: {release}: {last}"
    return ""


def mirror() -> str:
    """Where Debian's packages come from."""
    return os.environ.get(MIRROR_VARIABLE) or "http://deb.debian.org/debian"


def source() -> str:
    """The same for people: with the variable that names another place."""
    return f"{mirror()} ({MIRROR_VARIABLE} names another mirror)"


def tree(arch: str = NATIVE, packages: Sequence[str] = (), suite: str = SUITE) -> Path:
    """What `ensure` gives, unpacked beside it: boards share the folder and never write to it.

    Raises:
        HostError: as `ensure`, or the disk is full.
    """
    packed = ensure(arch, packages, suite)
    folder = packed.parent / "trees"
    folder.mkdir(mode=0o700, exist_ok=True)  # it holds programs that run as root for anybody
    found = folder / packed.name.partition(".")[0]
    with locked(found.with_suffix(".lock")):
        if not found.exists():
            with unfinished(found) as scratch:
                unpacked = scratch / "tree"
                shutil.rmtree(unpacked, ignore_errors=True)
                unpacked.mkdir()
                command(*_TAR, "-p", "-xf", packed, "-C", unpacked, timeout_s=600.0)
                unpacked.rename(found)
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that processes share; it is free again when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _packed(arch: str, packages: Sequence[str], suite: str) -> Path:
    key = json.dumps([_RECIPE, arch, suite, sorted({*BASE, *packages})]).encode()
    name = f"{suite}-{arch}-{hashlib.sha256(key).hexdigest()[:16]}"
    return cache_dir() / "rootfs" / f"{name}.tar.zst"


def _make(packed: Path, arch: str, packages: Sequence[str], suite: str) -> None:
    sources = "".join(
        f"deb {mirror()} {name} main\n"
        for name in (suite, f"{suite}-updates", f"{suite}-backports")
    )
    # Its temporary tree must lie where device nodes and set-uid files may: beside the result.
    folder = packed.with_name(f"{packed.name}.part")
    shutil.rmtree(folder, ignore_errors=True)  # of one that was killed: a half tree is of no use
    folder.mkdir()
    try:
        tree = folder / "tree"
        options = folder / "apt.conf"
        options.write_text(_apt_options())
        settings = [
            "--quiet",
            "--mode=root",
            "--format=directory",
            "--variant=apt",
            # Merged from the start: the package that would do it later brings all of Perl.
            f"--hook-dir={_MERGED}",
            # It would look for an emulator by the names of Debian's own package: ours is in place.
            "--skip=check/qemu",
            f"--architectures={arch}",
            f"--include={','.join(packages)}",
            f"--aptopt={options}",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
            '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_*',
        ]
        lists = folder / "sources.list"
        lists.write_text(sources)
        make = ("mmdebstrap", *settings, suite, str(tree), str(lists))
        # What it mounts below the tree is gone with it, however it ends.
        fetch("unshare", "--mount", *make, source=source(), timeout_s=_BUILD_TIMEOUT_S)
        _prepare(tree, foreign=arch != NATIVE)
        partial = folder / "packed"
        command(*_TAR, "--sort=name", "-cf", partial, "-C", tree, ".", timeout_s=300.0)
        partial.replace(packed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _apt_options() -> str:
    """The host's settings for fetching (proxies, clocks that are off): they hold for boards too."""
    kept = ("Acquire::Check-", "Acquire::http", "Acquire::Retries")
    lines = command("apt-config", "dump").splitlines()
    return "".join(
        f"{line}\n" for line in lines if line.startswith(kept) and not line.endswith('"";')
    )


def _prepare(tree: Path, *, foreign: bool) -> None:
    """Make the tree one that boots fast and alike everywhere, whoever's board it becomes."""
    units = tree / "etc/systemd/system"
    for unit in _MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    if foreign:
        for unit in _WITHOUT_CREDENTIALS:
            folder = units / f"{unit}.d"
            folder.mkdir()
            text = "[Service]\nLoadCredential=\nSetCredential=\nLoadCredentialEncrypted=\n"
            (folder / "no-credentials.conf").write_text(text)
    (tree / "etc/resolv.conf").unlink(missing_ok=True)
    (tree / "etc/resolv.conf").write_text("")
    (tree / "etc/fstab").write_text("")
    (tree / "etc/machine-id").write_text("")
    (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    # Logging in takes no look-up of names, of which there are none.
    (tree / "etc/ssh/sshd_config.d/board.conf").write_text("UseDNS no\nPrintMotd no\n")
