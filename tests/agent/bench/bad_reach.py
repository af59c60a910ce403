"""What a runtime that was taken over tries to reach beyond its own folder, for `bad_acts`.

Each act tells what it got, as JSON: name of the attempt -> "done" or the error. Stands alone:
workers import it from a folder of the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Callable

from latfarm_agent.runtimes.base import Job

TARGETS = "targets.json"
"""File beside this module: names of files and processes that the test wants to keep safe."""

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PR_SET_PDEATHSIG = 16, 1
NEW_USER = 0x10000000
F_SETOWN, F_SETSIG = 8, 10


def targets() -> dict[str, str]:
    found: dict[str, str] = json.loads(Path(__file__).with_name(TARGETS).read_text())
    return found


def tried(attempts: dict[str, Callable[[], object]]) -> str:
    told = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            told[name] = "done"
        except Exception as error:
            told[name] = type(error).__name__
    return json.dumps(told)


def checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return answer


def steal(job: Job) -> str:
    """Read keys, and what else lies in the home."""
    names = targets()
    key, home = Path(names["key"]), Path(names["home"])
    elsewhere = job.scratch_dir / "elsewhere"
    elsewhere.symlink_to(key)
    return tried(
        {
            "read": key.read_bytes,
            "read through a link": elsewhere.read_bytes,
            "read through /proc": Path("/proc/self/root", *key.parts[1:]).read_bytes,
            "link": lambda: os.link(str(key), str(job.scratch_dir / "mine")),
            "rename": lambda: key.rename(job.scratch_dir / "mine"),
            "list": lambda: list(home.iterdir()),
            "open to others": lambda: key.chmod(0o644),
            "open to others by another call": lambda: os.chmod(
                key.name, 0o644, dir_fd=os.open(str(key.parent), os.O_PATH)
            ),
            "give away": lambda: os.chown(str(key), 65534, 65534),
            "truncate": lambda: os.truncate(str(key), 0),
            "overwrite": lambda: key.write_bytes(b"mine"),
            "remove": key.unlink,
            "memory of the agent": Path(f"/proc/{names['agent']}/mem").read_bytes,
            "environment of the agent": Path(f"/proc/{names['agent']}/environ").read_bytes,
            "passwords": Path("/etc/shadow").read_bytes,
            "plant": lambda: (home / "planted").write_text("x"),
        }
    )


def overwrite(job: Job) -> str:
    """Change models: the one that is measured, and others that were verified."""
    blob = Path(targets()["blob"])
    mine = Path(job.model_path)
    return tried(
        {
            "write": lambda: blob.write_bytes(b"mine"),
            "truncate": lambda: os.truncate(str(blob), 0),
            "remove": blob.unlink,
            "replace": lambda: (job.scratch_dir / "other").rename(blob),
            "make writable": lambda: blob.chmod(0o600),
            "write its own": lambda: mine.write_bytes(b"mine"),
            "truncate its own": lambda: os.truncate(str(mine), 0),
            "remove its own": mine.unlink,
            "another beside its own": lambda: mine.with_name("weights").write_bytes(b"x"),
            "read another": blob.read_bytes,
        }
    )


def kill_others(job: Job) -> str:
    """Signal the keeper to its end; the agent is only asked whether it could be signalled."""
    attempts: dict[str, Callable[[], object]] = {}
    for name, pid, number in (
        ("keeper", os.getppid(), signal.SIGKILL),
        ("agent", int(targets()["agent"]), signal.SIGCONT),
    ):
        attempts.update(signals(name, pid, number))
    attempts["outlive the keeper"] = lambda: checked(LIBC.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0))
    return tried(attempts)


def signals(name: str, pid: int, number: int) -> dict[str, Callable[[], object]]:
    group = os.getpgid(pid)
    return {
        f"signal {name}": lambda: os.kill(pid, number),
        f"signal the thread of {name}": lambda: checked(LIBC.tgkill(pid, pid, number)),
        f"signal the group of {name}": lambda: os.killpg(group, number),
        f"limit the time of {name}": lambda: resource.prlimit(pid, resource.RLIMIT_CPU),
        f"trace {name}": lambda: checked(LIBC.ptrace(PTRACE_ATTACH, pid, 0, 0)),
        f"delay {name}": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        f"write to the memory of {name}": lambda: Path(f"/proc/{pid}/mem").open("r+b"),
    }


def signal_by_file(job: Job) -> None:
    """Let the kernel send SIGKILL to the keeper when a pipe can be read; it says nothing of it."""
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(reader, F_SETOWN, os.getppid())
        fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")


def connect(job: Job) -> str:
    """Speak to somebody: the network, and the sockets of services of this machine."""
    names = targets()

    def unix() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(names["socket"])

    def inet() -> None:
        with socket.create_connection(("127.0.0.1", int(names["port"])), 5.0):
            pass

    def datagram() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"x", ("127.0.0.1", int(names["port"])))

    def paired() -> None:
        mine, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        mine.connect(names["socket"])

    def listening() -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))

    return tried({"unix": unix, "tcp": inet, "udp": datagram, "pair": paired, "listen": listening})


def reach_out(job: Job) -> str:
    """Change the machine, and get away from what confines."""
    return tried(
        {
            "namespace": lambda: checked(LIBC.unshare(NEW_USER)),
            "mount": lambda: checked(LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
            "root": lambda: os.chroot("/usr"),
            "become root": lambda: checked(LIBC.setuid(0)) if os.getuid() else checked(-1),
            "become another": lambda: os.setuid(12345),
            "make a device": lambda: os.mknod(str(job.scratch_dir / "disk"), 0o60600, 2049),
            "setting": lambda: Path("/proc/sys/kernel/core_pattern").write_text("|/bin/sh"),
            "shared memory": lambda: Path("/dev/shm/latfarm-left").write_text("x"),
            "temporary file": lambda: Path("/tmp/latfarm-left").write_text("x"),
            "run what it wrote": lambda: run_written(job.scratch_dir / "program"),
        }
    )


def run_written(path: Path) -> None:
    descriptor = os.open(str(path), os.O_CREAT | os.O_WRONLY, 0o700)
    os.write(descriptor, b"#!/bin/sh\nexit 0\n")
    os.close(descriptor)
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(str(path), [str(path)])
        except OSError:
            os._exit(9)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if sys.version_info >= (3, 9) else 9:
        raise PermissionError


def daemonise(job: Job) -> str:
    """Leave a process behind: forked twice, in a session of its own, deaf to signals."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        os.close(writer)
        while True:
            time.sleep(60.0)
    os.close(writer)
    return json.dumps({"left": os.read(reader, 16).decode()})
