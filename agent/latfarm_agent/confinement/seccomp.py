"""The filter of system calls under which a worker runs (seccomp(2)).

It is a list of what is refused, because drivers of vendors make calls that nobody lists. Refused
is what reaches out of the process: other processes, the network, the machine's settings, and the
permissions of files, which Landlock leaves open.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass

from latfarm_agent.confinement import linux
from latfarm_agent.confinement.bpf import MISSING, PERMITTED, REFUSED, SystemCallFilter
from latfarm_agent.confinement.calls import AUDIT_MACHINES, FIRST_X32, numbers

_HOT = ("futex", "read", "write", "mmap", "munmap", "madvise", "sched_yield")
"""Calls that models make while they run: older kernels read the filter from its start each time."""

_REFUSED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease"),
    *("pidfd_getfd", "migrate_pages", "setns", "bpf", "perf_event_open", "userfaultfd"),
    *("mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "swapon", "swapoff"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "acct", "quotactl"),
    *("quotactl_fd", "nfsservctl", "lookup_dcookie", "syslog", "vhangup", "sethostname"),
    *("setdomainname", "iopl", "ioperm", "modify_ldt", "uselib", "open_by_handle_at"),
    *("fanotify_init", "keyctl", "add_key", "request_key"),
)
_PERMISSIONS = (
    *("chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat"),
    *("setxattr", "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat"),
)
"""Landlock does not know permissions and owners: a worker could open a key to other users."""

_PRETENDED_MISSING = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")
"""Refused as if the kernel were older, so that libraries do the same in another way.

io_uring passes a filter by, and the flags of clone3 cannot be seen by a filter.
"""

_LASTING = ("shmget", "semget", "msgget", "mq_open")
"""What these make outlives a process, unless it has a namespace of its own for it."""

_NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW... flags of sched.h that clone(2) takes
_SET_SIGNALLED = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX of fcntl.h
_SIGNALLED_IOCTLS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP of sockios.h
_TYPE_INTO_TERMINAL = 0x5412  # TIOCSTI
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _PACKETS = 1, 2, 5
_TYPE_BITS = 0xF  # the rest of a socket's type are flags
_DEVICE_EVENTS = 15  # NETLINK_KOBJECT_UEVENT: USB libraries hear of sticks by it
_ALL_BITS = 0xFFFFFFFF
_SET_FILTER = 1
_KEEP_SPECULATION = 1 << 2
"""SECCOMP_FILTER_FLAG_SPEC_ALLOW: without it, kernels before 5.16 slow a filtered process down."""


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


@dataclass(frozen=True)
class FilterNeeds:
    """What a filter must refuse because nothing else does, and what it must permit.

    Attributes:
        pid: the process that is filtered.
        signals: refuse signals to other processes.
        truncation: refuse to truncate files by their names.
        lasting: refuse System V objects and message queues.
        permissions: refuse to change permissions and owners of files by their names.
        connections: permit TCP sockets.
        unix_sockets: permit Unix sockets.
    """

    pid: int
    signals: bool = True
    truncation: bool = True
    lasting: bool = True
    permissions: bool = True
    connections: bool = False
    unix_sockets: bool = False


def program(machine: str, needs: FilterNeeds) -> bytes:
    """The filter for a machine.

    Raises:
        OSError: the numbers of this machine's system calls are not known.
    """
    known = numbers(machine)
    if not known:
        raise OSError(errno.ENOSYS, "there is no filter for this machine")
    made = SystemCallFilter(AUDIT_MACHINES[machine], FIRST_X32 if machine == linux.X86_64 else 0)
    for names, answer in (
        (_HOT, PERMITTED),
        (_REFUSED, REFUSED),
        (_PRETENDED_MISSING, MISSING),
        (_PERMISSIONS if needs.permissions else (), REFUSED),
        (_LASTING if needs.lasting else (), REFUSED),
        (("truncate",) if needs.truncation else (), REFUSED),
    ):
        for name in names:
            if name in known:
                made.answer(known[name], answer)
    for name in ("clone", "unshare"):
        made.not_with_bits(known[name], 0, _NEW_NAMESPACES)
    made.not_with(known["prctl"], 0, (linux.PR_SET_PDEATHSIG,))
    made.only_with(known["personality"], 0, (0, _ALL_BITS))
    # A limit of processor time ends another process as a signal does.
    made.only_with(known["prlimit64"], 0, (0, needs.pid))
    made.only_pairs(known["setpriority"], 0, 1, _ALL_BITS, ((0, 0), (0, needs.pid)))
    made.only_with(known["ioprio_set"], 1, (0, needs.pid))
    _add_sockets(made, known["socket"], known["socketpair"], needs)
    ioctls = (_TYPE_INTO_TERMINAL, *(_SIGNALLED_IOCTLS if needs.signals else ()))
    made.not_with(known["ioctl"], 1, ioctls)
    if needs.signals:
        made.only_with(known["kill"], 0, (0, needs.pid))
        for name in ("tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            made.only_with(known[name], 0, (needs.pid,))
        for name in ("tkill", "pidfd_open", "pidfd_send_signal"):
            made.answer(known[name], REFUSED)
        made.not_with(known["fcntl"], 1, _SET_SIGNALLED)
    return made.bytes()


def install(needs: FilterNeeds) -> None:
    """Filter the system calls of this process and all its descendants, for ever.

    The process must have given up new privileges, and must have one thread.

    Raises:
        OSError: the kernel has no filters or refuses, or there is none for this machine.
    """
    machine = linux.machine()
    code = program(machine, needs)
    made = _Program(len(code) // 8, code)
    number = numbers(machine)["seccomp"]
    for flags in (_KEEP_SPECULATION, 0):
        try:
            linux.call(number, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(flags), ctypes.byref(made))
        except OSError as error:
            if flags == 0 or error.errno != errno.EINVAL:  # this kernel does not know the flag
                raise
        else:
            return


def _add_sockets(made: SystemCallFilter, socket: int, socketpair: int, needs: FilterNeeds) -> None:
    """Restrict sockets: a pair of streams cannot be connected to anything else."""
    if needs.unix_sockets or needs.connections:
        kinds = [(_NETLINK, kind) for kind in (_DATAGRAM, 3)]
        if needs.connections:
            kinds += [(_INET, _STREAM), (_INET6, _STREAM)]
        if needs.unix_sockets:
            kinds += [(_UNIX, kind) for kind in (_STREAM, _DATAGRAM, _PACKETS)]
        made.only_pairs(socket, 0, 1, _TYPE_BITS, kinds)
    else:
        made.only_pairs(socket, 0, 2, _ALL_BITS, ((_NETLINK, _DEVICE_EVENTS),))
    if not needs.unix_sockets:
        made.only_pairs(socketpair, 0, 1, _TYPE_BITS, ((_UNIX, _STREAM), (_UNIX, _PACKETS)))
