"""The processes of a running virtual board: a shell that supervises systemd-nspawn and the board.

The shell runs `board.sh` as process 1 of a namespace of process ids of its own, so that the kernel
ends the whole board together with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("board.sh")
_UNSHARE = ("unshare", "--mount", "--propagation=slave", "--pid", "--fork", "--mount-proc")


@dataclass(frozen=True)
class Container:
    """What a board is started from.

    Attributes:
        folder: folder of the board's disk layers, its console and its socket for notices.
        tree: root file system that the board shares with others and never writes to.
        network: path of the board's network namespace.
        cgroup_files: files to which a process writes "0" to join the board's control groups.
    """

    folder: Path
    tree: Path
    network: Path
    cgroup_files: Iterable[Path]

    def launch(self, *what: str) -> subprocess.Popen[bytes]:
        """Start the supervising shell.

        Args:
            what: the last arguments of systemd-nspawn, for example `--boot`.
        """
        environment = dict(
            os.environ,
            LOWER=str(self.tree),
            UPPER=str(self.folder / "upper"),
            WORK=str(self.folder / "work"),
            ROOT=str(self.folder / "root"),
            NETNS=str(self.network),
            CGROUPS=" ".join(map(str, self.cgroup_files)),
            NOTIFY_SOCKET=str(self.folder / "notify"),
        )
        with (self.folder / "console").open("ab") as console:
            return subprocess.Popen(
                [*_UNSHARE, "--kill-child=SIGKILL", "bash", str(_SCRIPT), *what],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                env=environment,
            )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a supervising shell and its board; returns when all their processes have ended."""
    # `process` is unshare, which waits for the shell. The shell is process 1 of its namespace, so
    # it ends after everything in the board, and unshare ends after the shell.
    for pid in children(process.pid) or [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def first_process(process: subprocess.Popen[bytes]) -> int | None:
    """The process id, on the host, of the board's process 1; None if there is no such process."""
    ahead = [process.pid]
    while ahead:
        pid = ahead.pop()
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            spaces = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            # "NSpid:", then the process id on the host, in the shell's namespace, in the board's.
            if len(spaces.split()) == 4 and spaces.split()[3] == "1":
                return pid
            ahead += children(pid)
    return None


def children(pid: int) -> list[int]:
    """Process ids of a process's children; empty if the process has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
