"""What virtual boards need of the host, and where their files are kept.

A host that cannot carry boards (no root, no namespaces, a sealed container) is told so in one line,
which the fixtures skip with: a board that does not boot on a host that could is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLE = "LATFARM_FARM_CACHE"
"""Names the folder for root file systems, wheels and the emulator; default `~/.cache/latfarm`."""

WORK_VARIABLE = "LATFARM_FARM_WORK"
"""Names the folder for the disks of running boards; default `/var/tmp/latfarm-boards`."""

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
"""Program -> Debian package."""

NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
"""Debian's name of this host's architecture: boards of another one are emulated."""


class HostError(Exception):
    """A command that the host ran for a board failed; the message ends with what it printed."""


def cache_dir() -> Path:
    """The folder that outlives runs; made if missing."""
    named = os.environ.get(CACHE_VARIABLE)
    folder = Path(named) if named else Path.home() / ".cache" / "latfarm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def work_dir() -> Path:
    """The folder below which each rack has one of its own; made if missing."""
    folder = Path(os.environ.get(WORK_VARIABLE) or "/var/tmp/latfarm-boards")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def command(*arguments: str | Path, data: str | None = None, timeout_s: float = 60.0) -> str:
    """Run a command on the host; gives what it wrote to standard output.

    Raises:
        HostError: it failed or took too long.
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
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{shown}: {error}") from error
    if done.returncode:
        raise HostError(f"{shown}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def fetch(*arguments: str | Path, source: str, timeout_s: float) -> str:
    """As `command`, for one that fetches: a failure says what to do. What it has got, it keeps.

    Args:
        arguments: the command.
        source: where it fetches from, and how another place is named.
        timeout_s: how long it may take.

    Raises:
        HostError: it failed or took too long.
    """
    try:
        return command(*arguments, timeout_s=timeout_s)
    except HostError as error:
        remedy = "see that it can be reached, and run this again: what was fetched is kept"
        raise HostError(f"{error}\nfetched from {source}: {remedy}") from error


@contextmanager
def unfinished(place: Path) -> Iterator[Path]:
    """The folder in which what will be `place` is made; hand it over with `rename`.

    It stays where it is when that fails or is killed, so that the next one goes on with it. The
    caller holds a lock.
    """
    folder = place.with_name(f"{place.name}.part")
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def lacks(tools: Sequence[str] = tuple(TOOLS)) -> str:
    """Why this host cannot carry a board, in one line; empty if it can."""
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
