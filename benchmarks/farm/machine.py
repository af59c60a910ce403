"""The two cores of the benchmark, and what its processes use of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.farm.figures import CoreUse

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
"""Unit of the kernel's accounts of processor time, in seconds."""

_STEAL = 7
"""Position of the stolen time among the numbers of a line of /proc/stat."""


def pinned(count: int) -> tuple[int, ...]:
    """Pin this process, and all that it will start, to the last `count` of its cores."""
    cores = tuple(sorted(os.sched_getaffinity(0))[-count:])
    os.sched_setaffinity(0, cores)
    return cores


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started, as far as they live."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of processes and of all that they started, also of children that have ended."""
    total_s = 0.0
    for pid in pids:
        for process in family(pid):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
                total_s += times.children_user + times.children_system
    return total_s


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of processes and of all that they started; shared pages count once (PSS)."""
    total = 0
    for pid in pids:
        for process in family(pid):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
    return total


def core_times_s(cores: Sequence[int]) -> tuple[float, float]:
    """User and system time of all programs on these cores, and stolen time, in seconds."""
    busy = stolen = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            # user nice system; interrupts are nobody's
            busy += sum(map(int, fields[:3]))
            stolen += int(fields[_STEAL])
    return busy * _TICK_S, stolen * _TICK_S


def core_use(cores: Sequence[int], controller: Sequence[int], boards: Sequence[int]) -> CoreUse:
    """What everybody has used so far.

    Args:
        cores: those of the benchmark.
        controller: process ids of the controller's side.
        boards: process ids of the rack or the agents.
    """
    busy_s, stolen_s = core_times_s(cores)
    own = os.times()
    return CoreUse(
        at_s=time.monotonic(),
        busy_s=busy_s,
        stolen_s=stolen_s,
        controller_s=cpu_s(controller),
        boards_s=cpu_s(boards),
        own_s=own.user + own.system,
    )
