"""The keeper: a small process between agent and worker; no descendant outlives either of them.

The worker is a fork of the keeper, in a process group of its own. The keeper kills all descendants
when the worker ends, when the agent sends SIGTERM, and when the agent itself dies, even by SIGKILL,
as the kernel then sends the keeper its parent-death signal. The keeper is their subreaper, so that
processes that a runtime forks or even daemonises become its children. It ends as its worker ended.

Other systems than Linux lack prctl. There the worker still ends when its pipe closes, and its
process group ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import NoReturn

from latfarm_agent.confinement import cgroups, linux

_CLONE_NEWIPC = 0x08000000  # from Linux' sched.h


class _Ended(BaseException):
    """The agent asked the keeper to end, or has died."""


def fork_under_keeper(agent_pid: int, group: str = "") -> None:
    """Fork: the child returns as the worker; the parent becomes its keeper and never returns.

    The calling process must have one thread, and should have imported little.

    Args:
        agent_pid: process id of the agent.
        group: control group that the worker is going to join, and that ends with it; or empty.
    """

    def on_signal(number: int, frame: object) -> None:
        del number, frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Ended

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
        _prctl(linux.PR_SET_DUMPABLE, 0)  # nobody without privileges may read or change the keeper
        if os.getppid() != agent_pid:
            os._exit(1)  # the agent died before the kernel could send the signal
        with contextlib.suppress(PermissionError):
            os.setsid()
        _prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        keeper_pid = os.getpid()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _prctl(linux.PR_SET_DUMPABLE, 1)
            _prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper_pid:
                os._exit(1)
            os.setpgid(0, 0)
            return
        _keep(child, group)
    except _Ended:
        _end_all(group)
        os._exit(128 + signal.SIGTERM)


def _keep(child: int, group: str) -> NoReturn:
    # Only the worker may hold these ends of the pipes, or the agent would never see them close.
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.close(nothing)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    _end_all(group)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def _end_all(group: str) -> None:
    if group:
        with contextlib.suppress(OSError):
            Path(group, "cgroup.kill").write_text("1")
    end_descendants()
    if group:
        cgroups.remove(Path(group))


def is_subreaper() -> bool:
    """Whether processes that lose their parent go to the keeper on this system."""
    return linux.is_linux()


def leave_shared_memory() -> bool:
    """Give this process System V shared memory of its own, if that is allowed; gives whether it is.

    Such memory is freed when the process ends.
    """
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWIPC)) == 0
    return False


def end_descendants() -> None:
    """Kill and reap all descendants of this process; returns when none is left."""
    mine = os.getpgid(0)
    while True:
        found = descendants(os.getpid())
        # Whole groups first: the kernel kills a group at once, while single processes could fork.
        for group in {_group(pid) for pid in found} - {0, mine}:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            # Blocks until one of them has ended; the next round finds what it forked meanwhile.
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        except InterruptedError:
            continue


def children(root: int) -> set[int]:
    """Process ids of the children of `root`; empty where there is no /proc."""
    return set(_children_by_parent().get(root, ()))


def descendants(root: int) -> set[int]:
    """Process ids of all descendants of `root`; empty where there is no /proc."""
    children_of = _children_by_parent()
    found: set[int] = set()
    ahead = [root]
    while ahead:
        for pid in children_of.get(ahead.pop(), ()):
            if pid not in found:
                found.add(pid)
                ahead.append(pid)
    return found


def _children_by_parent() -> dict[int, list[int]]:
    """The children of each process that has some."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # the process has ended meanwhile
        # The command's name may hold spaces and brackets: fields count from the last bracket.
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        found.setdefault(parent, []).append(int(entry.name))
    return found


def _group(pid: int) -> int:
    """The group of a process; 0: the process has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError):
        linux.prctl(option, value)
