"""Capabilities: a process of root gives up its special rights (capabilities(7))."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Iterable

from latfarm_agent.confinement import linux

READ_SEARCH = 2
"""CAP_DAC_READ_SEARCH: read files and folders of other users."""

_VERSION_3 = 0x20080522
_MOST = 64


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    """One half of the sets; the kernel takes two of them."""

    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def drop(keep: Iterable[int] = ()) -> None:
    """Give up all capabilities but a few, also for programs that are executed later.

    Raises:
        OSError: the kernel refuses.
    """
    kept = set(keep)
    for number in range(_MOST):
        if number not in kept:
            with contextlib.suppress(OSError):  # unknown to this kernel, or not ours to drop
                linux.prctl(linux.PR_CAPBSET_DROP, number)
    with contextlib.suppress(OSError):
        linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_CLEAR_ALL)
    _set(sum(1 << number for number in kept), sum(1 << number for number in kept))


def can_read_without(paths: Iterable[Path]) -> bool:
    """Whether this process could read some folders without its capabilities.

    They are given up for a moment. The process must have one thread.
    """
    permitted = held()
    if not permitted:
        return True
    there = [path for path in paths if _can_read(path)]
    _set(0, permitted)
    try:
        return all(_can_read(path) for path in there)
    finally:
        _set(permitted, permitted)


def held() -> int:
    """The capabilities that this process may use, as bits; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def _can_read(path: Path) -> bool:
    try:
        os.close(os.open(str(path), os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _set(effective: int, permitted: int) -> None:
    header = _Header(_VERSION_3, 0)
    halves = (_Sets * 2)()
    for index in range(2):
        halves[index].effective = effective >> (32 * index) & 0xFFFFFFFF
        halves[index].permitted = permitted >> (32 * index) & 0xFFFFFFFF
        halves[index].inheritable = 0
    library = ctypes.CDLL(None, use_errno=True)
    if library.capset(ctypes.byref(header), ctypes.byref(halves)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")
