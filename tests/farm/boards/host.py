"""What virtual boards need from the host that runs them, and the folders of their files.

On a host that cannot run boards (no root, no namespaces, a closed container), the fixtures skip the
tests with the line that `lacks` returns. On any other host, a board that does not boot is a
failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.farm.boards.patience import scaled_s

CACHE_VARIABLE = "LATFARM_FARM_CACHE"
"""Environment variable that names the folder of root file systems, wheels and the emulator.

The default is `~/.cache/latfarm`.
"""

WORK_VARIABLE = "LATFARM_FARM_WORK"
"""Environment variable that names the folder of the disks of running boards.

The default is `/var/tmp/latfarm-boards`.
"""

TOOLS = {
    "apt-get": "apt",
    "bash": "bash",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
    "zstd": "zstd",
}
"""Programs that the host needs, and the Debian package of each."""

NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
"""Debian's name of this host's architecture. Boards of another architecture are emulated."""


class HostError(Exception):
    """A command that the host ran for a board failed; the message ends with its output."""


def cache_dir() -> Path:
    """The folder of files that later runs use again; it is made if it is missing."""
    named = os.environ.get(CACHE_VARIABLE)
    folder = Path(named) if named else Path.home() / ".cache" / "latfarm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def work_dir() -> Path:
    """The folder that holds one folder for each rack; it is made if it is missing."""
    folder = Path(os.environ.get(WORK_VARIABLE) or "/var/tmp/latfarm-boards")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def command(*arguments: str | Path, data: str | None = None, timeout_s: float = 60.0) -> str:
    """Run a command on the host; return its standard output.

    Args:
        arguments: the program and its arguments.
        data: standard input; None: it is empty.
        timeout_s: limit of the command's duration on a quiet host; on a busy one it is longer.

    Raises:
        HostError: the command failed or took longer than it may.
    """
    shown = " ".join(str(argument) for argument in arguments)
    try:
        done = subprocess.run(
            [str(argument) for argument in arguments],
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=scaled_s(timeout_s),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{shown}: {error}") from error
    if done.returncode:
        raise HostError(f"{shown}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def fetch(*arguments: str | Path, source: str, timeout_s: float) -> str:
    """Run a command that fetches files; return its standard output.

    Args:
        arguments: the program and its arguments.
        source: where it fetches from, and how to name another source; for the error message.
        timeout_s: limit of the command's duration.

    Raises:
        HostError: the command failed or took longer than `timeout_s`; the message says what to do.
    """
    try:
        return command(*arguments, timeout_s=timeout_s)
    except HostError as error:
        remedy = "check that it can be reached, and run this again: fetched files are kept"
        raise HostError(f"{error}\nfetched from {source}: {remedy}") from error


@contextmanager
def unfinished(place: Path) -> Iterator[Path]:
    """A scratch folder in which the caller makes the file or folder `place`, then renames it.

    If the `with` block fails or the process is killed, the scratch folder stays, so that the next
    attempt continues with its files. The caller holds a lock.
    """
    folder = place.with_name(f"{place.name}.part")
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def lacks(tools: Sequence[str] = tuple(TOOLS)) -> str:
    """Why this host cannot run a board, in one line; empty if it can."""
    if os.geteuid() != 0:
        return "virtual boards need root"
    missing = sorted({TOOLS[tool] for tool in tools if shutil.which(tool) is None})
    if missing:
        return f"virtual boards need Debian's packages {' '.join(missing)} (make test-farm)"
    try:
        command("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true")
    except HostError as error:
        return f"no namespaces can be made here: {error}"
    return ""
