"""Calls of the Linux kernel that Python's standard library lacks, by `ctypes`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
"""Operations of prctl(2), from the kernel's prctl.h."""

X86_64, AARCH64 = "x86_64", "aarch64"
"""The machines whose numbers of system calls are known here."""


def is_linux() -> bool:
    """Whether this is a Linux system."""
    return sys.platform.startswith("linux")


def machine() -> str:
    """The machine whose system calls this process makes; empty where that is not known.

    A 32-bit process on a 64-bit kernel makes other system calls than the name of the kernel says.
    """
    name = platform.machine()
    known = name in (X86_64, AARCH64) and sys.maxsize > 1 << 32
    return name if known and is_linux() else ""


def prctl(option: int, *values: int) -> int:
    """Ask or change something of this process (see the manual page prctl in section 2).

    Raises:
        OSError: the kernel refuses, or this system has no prctl.
    """
    padded = (*values, 0, 0, 0, 0)[:4]
    words = [ctypes.c_ulong(value) for value in padded]
    try:
        answer = ctypes.CDLL(None, use_errno=True).prctl(ctypes.c_int(option), *words)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "this system has no prctl") from error
    return _checked(int(answer), "prctl")


def call(number: int, *values: object) -> int:
    """Make a system call.

    Raises:
        OSError: the kernel refuses, or this system has no such door.
    """
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.syscall.restype = ctypes.c_long
        answer = library.syscall(ctypes.c_long(number), *values)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "this system has no syscall function") from error
    return _checked(int(answer), f"system call {number}")


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return answer
