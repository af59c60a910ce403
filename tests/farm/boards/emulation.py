"""Runs programs of another architecture on this host, with QEMU and the kernel's binfmt_misc.

QEMU 7.2 of Debian 12 crashes when onnxruntime 1.31 is imported. QEMU 10 of Debian's backports runs
all runtimes of the agent. Its static program is copied into the cache folder and not installed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from tests.farm.boards import rootfs
from tests.farm.boards.host import NATIVE, HostError, cache_dir, command, fetch

LEAST_VERSION = 10
"""Lowest major version of QEMU that runs all runtimes of the agent."""

_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""Keys that sign Debian's packages, on the host."""

_KERNEL_NAMES = {"arm64": "aarch64"}
"""Name that QEMU and the kernel have for an architecture, by Debian's name."""

_MAGIC = {
    # 64-bit little-endian ELF, an executable or shared object, machine 183 (AArch64), by the
    # System V gABI and the AArch64 psABI.
    "arm64": (
        r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
        r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
    ),
}


def lacks(arch: str) -> str:
    """Why this host cannot emulate an architecture, in one line; empty if it can.

    As a side effect, binfmt_misc is mounted if it is not mounted yet.
    """
    if arch == NATIVE or handler(arch):
        return ""
    if arch not in _MAGIC:
        return f"boards of {arch} are not emulated"
    try:
        _mount()
    except HostError as error:
        return f"{arch} cannot be emulated: {error}"
    return ""


def enable(arch: str) -> None:
    """Make the kernel run programs of an architecture with QEMU, until the host reboots.

    Raises:
        HostError: the host cannot emulate the architecture.
    """
    if handler(arch):
        return
    reason = lacks(arch)
    if reason:
        raise HostError(reason)
    with rootfs.locked(cache_dir() / "qemu.lock"):
        if handler(arch):
            return
        magic, mask = _MAGIC[arch]
        # Flag F: the kernel opens QEMU now, so that it works in every root file system. P: QEMU
        # gets the original argv[0]. O: QEMU gets an open file of the program it is to run.
        rule = f":{_rule(arch)}:M::{magic}:{mask}:{_program(arch)}:POF"
        try:
            if (_BINFMT / _rule(arch)).exists():  # of a QEMU that was deleted
                (_BINFMT / _rule(arch)).write_text("-1")
            (_BINFMT / "register").write_text(rule)
        except OSError as error:
            raise HostError(f"{arch} cannot be emulated: binfmt_misc: {error}") from error


def handler(arch: str) -> str:
    """Path of the QEMU with which the kernel runs programs of an architecture; empty if none works.

    A rule counts if its QEMU is new enough and has the flag F. It is the rule of these tests, or
    one that the host had before.
    """
    for rule in (_rule(arch), f"qemu-{_KERNEL_NAMES.get(arch, arch)}"):
        try:
            lines = (_BINFMT / rule).read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(" ", 1) for line in lines if " " in line)
        program = fields.get("interpreter", "")
        fixed = "F" in fields.get("flags:", "")
        if lines[0] == "enabled" and fixed and version(Path(program)) >= LEAST_VERSION:
            return program
    return ""


def version(program: Path) -> int:
    """Major version of a QEMU program; 0 if the program cannot be run."""
    try:
        found = re.search(r"version (\d+)\.", command(program, "--version"))
    except HostError:
        return 0
    return int(found.group(1)) if found else 0


def _rule(arch: str) -> str:
    return f"latfarm-{arch}"


def _mount() -> None:
    if not (_BINFMT / "register").exists():
        command("mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT)


def _program(arch: str) -> Path:
    """A static QEMU of at least `LEAST_VERSION`; the caller holds the lock."""
    name = f"qemu-{_KERNEL_NAMES[arch]}"
    folder = cache_dir() / "qemu"
    folder.mkdir(exist_ok=True)
    ours = folder / name
    if version(ours) < LEAST_VERSION:
        _fetch(ours)
    if version(ours) < LEAST_VERSION:
        raise HostError(f"{ours} is older than version {LEAST_VERSION}")
    return ours


def _fetch(target: Path) -> None:
    """Take QEMU's program out of the package in Debian's backports, without installing it."""
    sources = f"deb [signed-by={_KEYRING}] {rootfs.mirror()} {rootfs.SUITE}-backports main\n"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as text:
        folder = Path(text)
        (folder / "lists" / "partial").mkdir(parents=True)
        (folder / "sources.list").write_text(sources)
        options = (
            f"-oDir::Etc::SourceList={folder}/sources.list",
            "-oDir::Etc::SourceParts=-",
            f"-oDir::State::Lists={folder}/lists",
            "-oDir::Cache::PkgCache=",
            "-oDir::Cache::SrcPkgCache=",
            "-oAPT::Sandbox::User=root",
        )
        apt = ("apt-get", *options, "-oAcquire::Retries=3", "--quiet")
        fetch(*apt, "-eany", "update", source=rootfs.source(), timeout_s=300.0)
        there = ("sh", "-c", 'cd "$0" && exec "$@"', folder)
        fetch(*there, *apt, "download", "qemu-user", source=rootfs.source(), timeout_s=600.0)
        (package,) = folder.glob("qemu-user_*.deb")
        command("dpkg-deb", "--extract", package, folder / "tree", timeout_s=300.0)
        shutil.move(folder / "tree" / "usr" / "bin" / target.name, target)
