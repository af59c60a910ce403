"""Root file systems of virtual boards: each is made once from Debian's packages and kept as a file.

The name of the file contains a hash of everything that decides its content, so another choice of
packages gives another file. The folder of these files can be kept between runs and copied between
hosts.
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
"""Name of the Debian release that boards run."""

MIRROR_VARIABLE = "LATFARM_DEBIAN_MIRROR"
"""Environment variable that names another mirror of Debian's packages than `mirror` does."""

BASE = ("dbus", "iproute2", "openssh-server", "python3", "systemd", "systemd-sysv", "usr-is-merged")
"""Debian packages on every board; a test names further packages of its boards."""

_RECIPE = 2
"""Version of `_prepare`. Increase it with each change, so that older files are not used."""

_FETCHER = "/usr/lib/apt/apt-helper"
"""Program of apt that downloads one file with apt's settings."""

_MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
"""Hooks of mmdebstrap that make /bin, /lib and /sbin links into /usr."""

_TAR = ("tar", "--zstd", "--numeric-owner", "--xattrs", "--xattrs-include=*")
_BUILD_TIMEOUT_S = 1500.0
"""Limit of the time to make one root file system, in seconds; an emulated one takes minutes."""

_MASKED = (
    # Boards do not fetch or upgrade packages, and cannot set the clock, which is the host's.
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-timesyncd.service"),
    # Mounts and consoles that make no sense in a container.
    *("console-getty.service", "getty.target", "dev-hugepages.mount", "dev-mqueue.mount"),
    *("sys-fs-fuse-connections.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
)
"""Units of systemd that are disabled on boards."""

_WITHOUT_CREDENTIALS = (
    "systemd-journald.service",
    "systemd-sysctl.service",
    "systemd-sysusers.service",
    "systemd-tmpfiles-clean.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-tmpfiles-setup.service",
    "systemd-udevd.service",
)
"""Units that run without credentials on emulated boards, where systemd cannot set them up."""


def ensure(arch: str = NATIVE, packages: Sequence[str] = (), suite: str = SUITE) -> Path:
    """The packed root file system of a board; it is made if it does not exist yet.

    Args:
        arch: "amd64" or "arm64". For an architecture that is not the host's, the caller calls
            `emulation.enable` first.
        packages: Debian packages in addition to `BASE`. A package that `suite` lacks is taken from
            the backports of `suite`.
        suite: name of the Debian release.

    Returns:
        Path of a `.tar.zst` file below the cache folder.

    Raises:
        HostError: the root file system cannot be made.
    """
    packed = _packed(arch, packages, suite)
    packed.parent.mkdir(exist_ok=True)
    with locked(packed.with_name(packed.name.replace(".tar.zst", ".lock"))):
        if not packed.exists():
            _make(packed, arch, sorted({*BASE, *packages}), suite)
    return packed


def lacks() -> str:
    """Why this host cannot get a board's disk, in one line; empty if it can or has one already."""
    if _packed(NATIVE, (), SUITE).exists():
        return ""
    release = f"{mirror()}/dists/{SUITE}/InRelease"
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Downloaded with apt's settings, as packages are.
            command(_FETCHER, "download-file", release, f"{folder}/found", timeout_s=300.0)
        except HostError as error:
            last = str(error).splitlines()[-1]
            return f"Debian's packages cannot be reached: {release}: {last}"
    return ""


def mirror() -> str:
    """URL of the mirror that Debian's packages are fetched from."""
    return os.environ.get(MIRROR_VARIABLE) or "http://deb.debian.org/debian"


def source() -> str:
    """The mirror's URL for messages, with the variable that names another mirror."""
    return f"{mirror()} ({MIRROR_VARIABLE} names another mirror)"


def tree(arch: str = NATIVE, packages: Sequence[str] = (), suite: str = SUITE) -> Path:
    """The unpacked root file system of a board; it is made if it does not exist yet.

    Boards share this folder and never write to it. The arguments are those of `ensure`.

    Raises:
        HostError: the root file system cannot be made or unpacked.
    """
    packed = ensure(arch, packages, suite)
    folder = packed.parent / "trees"
    folder.mkdir(mode=0o700, exist_ok=True)  # it holds set-uid programs
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
    """Hold a lock file that several processes share; the lock is released when its holder ends."""
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
    # mmdebstrap's tree must be on a file system that allows device nodes and set-uid files.
    folder = packed.with_name(f"{packed.name}.part")
    shutil.rmtree(folder, ignore_errors=True)  # remains of a run that was killed
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
            # Merge /usr from the start: the package that does it later depends on all of Perl.
            f"--hook-dir={_MERGED}",
            # This check expects the file names of Debian's own emulator package.
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
        # In its own mount namespace: its mounts disappear with it, however it ends.
        fetch("unshare", "--mount", *make, source=source(), timeout_s=_BUILD_TIMEOUT_S)
        _prepare(tree, foreign=arch != NATIVE)
        partial = folder / "packed"
        command(*_TAR, "--sort=name", "-cf", partial, "-C", tree, ".", timeout_s=300.0)
        partial.replace(packed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _apt_options() -> str:
    """Those settings of the host's apt that concern fetching, for example proxies."""
    kept = ("Acquire::Check-", "Acquire::http", "Acquire::Retries")
    lines = command("apt-config", "dump").splitlines()
    return "".join(
        f"{line}\n" for line in lines if line.startswith(kept) and not line.endswith('"";')
    )


def _prepare(tree: Path, *, foreign: bool) -> None:
    """Change the tree so that every board that uses it boots fast and in the same way."""
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
    # There is no name server on a rack's network.
    (tree / "etc/ssh/sshd_config.d/board.conf").write_text("UseDNS no\nPrintMotd no\n")
