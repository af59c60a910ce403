"""Numbers of system calls, for the machines that filters can be written for.

From the kernel's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64). Calls that are newer
than number 424 have the same number on all machines.
"""

from __future__ import annotations

from typing import Mapping

from latfarm_agent.confinement.linux import AARCH64, X86_64

AUDIT_MACHINES: Mapping[str, int] = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
"""What a filter is told as the machine of a call, from the kernel's audit.h."""

FIRST_X32 = 0x40000000
"""On x86_64, numbers from here on are calls of the x32 machine, and older filters miss them."""

_BOTH: Mapping[str, int] = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
}

_DIFFERENT: Mapping[str, tuple[int, int]] = {
    # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmodat": (268, 53),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "futex": (202, 98),
    "init_module": (175, 105),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "madvise": (28, 233),
    "migrate_pages": (256, 238),
    "mmap": (9, 222),
    "mount": (165, 40),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "munmap": (11, 215),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "read": (0, 63),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_yield": (24, 124),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "write": (1, 64),
}

_X86_64_ALONE: Mapping[str, int] = {
    "chmod": 90,
    "chown": 92,
    "fork": 57,
    "ioperm": 173,
    "iopl": 172,
    "lchown": 94,
    "modify_ldt": 154,
    "uselib": 134,
}


def numbers(machine: str) -> Mapping[str, int]:
    """System calls by name; empty for a machine whose numbers are not known here.

    A call that the machine lacks is left out.
    """
    if machine == X86_64:
        return {**_BOTH, **{n: both[0] for n, both in _DIFFERENT.items()}, **_X86_64_ALONE}
    if machine == AARCH64:
        return {**_BOTH, **{name: both[1] for name, both in _DIFFERENT.items()}}
    return {}
