"""Landlock: a process gives up all files and folders but those that it names (landlock(7)).

Everything that a version of the kernel can withhold is withheld. The rules hold for the process and
its descendants and cannot be taken back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

from latfarm_agent.confinement import linux

# Numbers from the kernel's landlock.h; those of the system calls are equal on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH, _RULE_PORT = 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_VERSION_REFER, VERSION_TRUNCATE, VERSION_PORTS, _VERSION_IOCTL, VERSION_SIGNALS = 2, 3, 4, 5, 6
"""The first version that knows: links between folders, truncation, TCP ports, ioctl, signals."""


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("files", ctypes.c_uint64),
        ("ports", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    ]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


class _PortRule(ctypes.Structure):
    _fields_ = [("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64)]


@dataclass(frozen=True)
class Grants:
    """What a process keeps; a path that does not exist is left out.

    Attributes:
        read: files and folders to read, list and execute.
        data: files and folders to read and list.
        names: folders to list.
        write: folders in which everything is allowed but to execute and to make devices.
        devices: device nodes, and folders of them, to open for reading and writing.
        ports: TCP ports to connect to, from any port that the kernel chooses.
    """

    read: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()
    names: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    ports: tuple[int, ...] = ()


def version() -> int:
    """The version of Landlock that this kernel has.

    Raises:
        OSError: it has none, or Landlock is switched off; the text says which.
    """
    if not linux.is_linux():
        raise OSError(errno.ENOSYS, "this system is not Linux")
    try:
        return linux.call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    except OSError as error:
        why = {
            errno.ENOSYS: "this kernel has no Landlock",
            errno.EOPNOTSUPP: "Landlock is switched off in this kernel",
        }
        raise OSError(error.errno, why.get(error.errno or 0, str(error.strerror))) from error


def restrict(grants: Grants) -> int:
    """Give up everything but the grants; gives the version of Landlock.

    The process must have given up new privileges, and must have one thread.

    Raises:
        OSError: this kernel has no Landlock, or refuses.
    """
    found = version()
    ruleset = _open_ruleset(found)
    try:
        rights = _all_file_rights(found)
        reading = _READ_FILE | _READ_DIR
        writing = rights & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK | _IOCTL_DEV)
        device = reading | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
        _allow(ruleset, grants.read, (reading | _EXECUTE) & rights)
        _allow(ruleset, grants.data, reading & rights)
        _allow(ruleset, grants.names, _READ_DIR)
        _allow(ruleset, grants.write, writing)
        _allow(ruleset, grants.devices, device & rights)
        if found >= VERSION_PORTS and grants.ports:
            # The adb client binds its end of a connection first, to a port that the kernel chooses.
            rules = [(_BIND_TCP, 0), *((_CONNECT_TCP, port) for port in grants.ports)]
            for right, port in rules:
                rule = _PortRule(right, port)
                linux.call(_ADD_RULE, ruleset, _RULE_PORT, ctypes.byref(rule), ctypes.c_uint32(0))
        linux.call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return found


def _open_ruleset(found: int) -> int:
    wanted = _Ruleset(
        _all_file_rights(found),
        _BIND_TCP | _CONNECT_TCP if found >= VERSION_PORTS else 0,
        _SCOPE_SOCKETS | _SCOPE_SIGNALS if found >= VERSION_SIGNALS else 0,
    )
    # An older kernel refuses a longer structure unless the rest of it is zero, as it is here.
    return linux.call(
        _CREATE_RULESET,
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
        ctypes.c_uint32(0),
    )


def _all_file_rights(found: int) -> int:
    bits = 13
    if found >= _VERSION_REFER:
        bits = 14
    if found >= VERSION_TRUNCATE:
        bits = 15
    if found >= _VERSION_IOCTL:
        bits = 16
    return (1 << bits) - 1


def _allow(ruleset: int, paths: Iterable[Path], rights: int) -> None:
    for path in dict.fromkeys(paths):
        try:
            opened = os.open(str(path), os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # it does not exist, or it cannot be reached anyway
        try:
            is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
            rule = _PathRule(rights if is_folder else rights & _FILE_RIGHTS, opened)
            linux.call(_ADD_RULE, ruleset, _RULE_PATH, ctypes.byref(rule), ctypes.c_uint32(0))
        finally:
            os.close(opened)
