"""A program that confines itself and then does what the test says; prints what came of it.

`python confined.py JSON`: "plan" and "folders" go to `confine`; "landlock" says what this kernel
claims to have (a version, or 0 for none), "seccomp": whether it claims to have filters; "attempts"
are the names of functions of this file. It needs no package but `latfarm_agent.confinement`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from latfarm_agent.confinement import landlock, linux, seccomp
from latfarm_agent.confinement.bpf import MISSING, SystemCallFilter
from latfarm_agent.confinement.calls import AUDIT_MACHINES
from latfarm_agent.confinement.confine import WorkerGround, confine
from latfarm_agent.confinement.plan import Confinement

ASKED = json.loads(sys.argv[1])
FOLDER = Path(ASKED["folder"])
LIBC = ctypes.CDLL(None, use_errno=True)


def checked(answer: int) -> None:
    if answer < 0:
        raise OSError(ctypes.get_errno(), "refused")


def read_secret() -> None:
    (FOLDER / "secret").read_bytes()


def list_secrets() -> None:
    list(FOLDER.iterdir())


def read_raw_device() -> None:
    with Path("/dev/kmsg").open("rb"):
        pass


def list_devices() -> None:
    if "null" not in {path.name for path in Path("/dev").iterdir()}:
        raise OSError("they are not listed")


def write_secret() -> None:
    (FOLDER / "secret").write_text("mine")


def truncate_secret() -> None:
    os.truncate(str(FOLDER / "secret"), 0)


def chmod_secret() -> None:
    (FOLDER / "secret").chmod(0o644)


def write_own() -> None:
    (FOLDER / "own" / "file").write_text("mine")
    (FOLDER / "own" / "inner").mkdir(exist_ok=True)
    os.truncate(str(FOLDER / "own" / "file"), 1) if ASKED["landlock"] >= 3 else None
    (FOLDER / "own" / "file").unlink()


def read_model() -> None:
    (FOLDER / "models" / "model").read_bytes()


def write_model() -> None:
    (FOLDER / "models" / "model").write_text("mine")


def read_option() -> None:
    (FOLDER / "library.so").read_bytes()


def signal_parent() -> None:
    os.kill(os.getppid(), signal.SIGCONT)


def signal_itself() -> None:
    os.kill(os.getpid(), 0)
    signal.raise_signal(signal.SIGCONT)


def abort_in_a_child() -> None:
    pid = os.fork()
    if pid == 0:
        os.abort()
    if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        raise OSError("it did not end by a signal")


def limit_parent() -> None:
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU)


def unlink_from_keeper() -> None:
    linux.prctl(linux.PR_SET_PDEATHSIG, 0)


def open_inet() -> None:
    socket.socket(socket.AF_INET).close()


def open_udp() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()


def open_unix() -> None:
    socket.socket(socket.AF_UNIX).close()


def open_pair() -> None:
    for end in socket.socketpair():
        end.close()


def hear_of_devices() -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).close()


def connect() -> None:
    socket.create_connection(("127.0.0.1", ASKED["port"]), 10.0).close()


def connect_elsewhere() -> None:
    socket.create_connection(("127.0.0.1", ASKED["other_port"]), 10.0).close()


def make_namespace() -> None:
    checked(LIBC.unshare(0x10000000))


def trace() -> None:
    checked(LIBC.ptrace(16, os.getppid(), 0, 0))


def share_memory() -> None:
    checked(LIBC.shmget(0, 4096, 0o1600))


def use_io_uring() -> None:
    try:
        linux.call(425, ctypes.c_uint(1), None)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise


def run_a_program() -> None:
    subprocess.run(["/bin/true"], check=True)


def compute() -> None:
    if sum(range(1000)) != 499_500:
        raise OSError("wrong")


def hide_landlock() -> None:
    """Make this kernel answer as one without Landlock."""
    made = SystemCallFilter(AUDIT_MACHINES[linux.machine()])
    made.answer(444, MISSING)
    code = made.bytes()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    program = seccomp._Program(len(code) // 8, code)
    checked(LIBC.prctl(22, 2, ctypes.byref(program)))


def main() -> None:
    if ASKED["landlock"] == 0:
        hide_landlock()
    else:
        landlock.version = lambda: ASKED["landlock"]
    if not ASKED["seccomp"]:
        linux.machine = lambda: ""
    ground = WorkerGround(
        folders=(FOLDER / "own",),
        models=FOLDER / "models",
        options={"delegates": [{"library": str(FOLDER / "library.so")}]},
        memory_bytes=1 << 30,
        tasks=64,
    )
    told = confine(Confinement.from_json(ASKED["plan"]), ground)
    done = {}
    for name in ASKED["attempts"]:
        try:
            globals()[name]()
            done[name] = True
        except OSError:
            done[name] = False
    print(json.dumps({"told": told, "done": done}))


if __name__ == "__main__":
    main()
