"""Programs of another architecture on this host, by QEMU in user mode and the kernel's binfmt_misc.

Debian 12's own QEMU 7.2 crashes when onnxruntime 1.31 is imported; version 10 of its backports runs
all our runtimes. Its one static program is fetched into the cache folder: nothing is installed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from tests.farm.boards import rootfs
from tests.farm.boards.host import NATIVE, HostError, cache_dir, command, fetch

LEAST_VERSION = 10
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_KERNEL_NAMES = {"arm64": "aarch64"}
_MAGIC = {
    # ELF of 64 bits, little-endian, executable or shared, machine 183 (AArch64); psABI and gABI.
    "arm64": (
        r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
        r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
    ),
}


def lacks(arch: str) -> str:
    """Why boards of this architecture cannot be emulated here, in one line; empty if they can.

    Mounts binfmt_misc where it is not.
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
    """Let the kernel run programs of `arch`. It goes on doing so until the host reboots.

    Raises:
        HostError: it cannot.
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
        # F: the kernel opens the program now, so that it is found in every root; P and O: it is
        # told the true first argument and handed programs that only the kernel may read.
        rule = f":{_rule(arch)}:M::{magic}:{mask}:{_program(arch)}:POF"
        try:
            if (_BINFMT / _rule(arch)).exists():  # of a program that is gone
                (_BINFMT / _rule(arch)).write_text("-1")
            (_BINFMT / "register").write_text(rule)
        except OSError as error:
            raise HostError(f"{arch} cannot be emulated: binfmt_misc: {error}") from error


def handler(arch: str) -> str:
    """The program that the kernel runs such programs with; empty if none that is known to work.

    Our own rule, or that of a new enough QEMU which the kernel holds open (flag F).
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
    """Major version of a QEMU; 0 if it cannot be run."""
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
        raise HostError(f"{ours} is too old to run today's libraries")
    return ours


def _fetch(target: Path) -> None:
    """Take one program out of the backports' package, without installing it."""
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
