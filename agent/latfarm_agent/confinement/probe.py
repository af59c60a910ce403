"""Confines a process and then tries what must be refused: evidence instead of a promise.

`latfarm-agent doctor` runs it as `python -m latfarm_agent.confinement.probe FOLDER`. It prints what
was told of each protection, and for each attempt whether it was refused, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Callable, Mapping, Sequence

from latfarm_agent.confinement import plan
from latfarm_agent.confinement.confine import WorkerGround, confine
from latfarm_agent.confinement.linux import PR_GET_NO_NEW_PRIVS, prctl

OWN, SECRET = "own", "secret"
"""A folder that the probe may write to, and a file beside it that it must not read."""

_NEW_USER = 0x10000000  # CLONE_NEWUSER of sched.h


def attempts(folder: Path) -> Mapping[str, tuple[str, Callable[[], object]]]:
    """What is tried: name of the attempt -> the protection that refuses it, and the attempt."""
    return {
        "read a file outside of its folder": (plan.FILES, (folder / SECRET).read_bytes),
        "write a file outside of its folder": (
            plan.FILES,
            lambda: (folder / "planted").write_text("x"),
        ),
        "signal the process that started it": (
            plan.SIGNALS,
            lambda: os.kill(os.getppid(), signal.SIGCONT),
        ),
        "open a connection": (plan.NETWORK, lambda: socket.socket(socket.AF_INET).close()),
        "open a Unix socket": (plan.NETWORK, lambda: socket.socket(socket.AF_UNIX).close()),
        "make a namespace": (plan.CALLS, _make_namespace),
        "gain new privileges": (plan.PRIVILEGES, _gain_privileges),
    }


def main(arguments: Sequence[str]) -> int:
    """Confine this process, try everything, and print what came of it; gives the exit code."""
    folder = Path(arguments[0])
    told = confine(
        plan.Confinement(), WorkerGround((folder / OWN,), memory_bytes=1 << 40, tasks=64)
    )
    tried = {}
    for name, (protection, attempt) in attempts(folder).items():
        try:
            attempt()
            refused = False
        except OSError:
            refused = True
        tried[name] = {"protection": protection, "refused": refused}
    print(json.dumps({"told": told, "tried": tried}))
    return 0


def _make_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def _gain_privileges() -> None:
    if prctl(PR_GET_NO_NEW_PRIVS) == 1:
        raise PermissionError("this process cannot gain privileges")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
