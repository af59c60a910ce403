"""How long tests wait on this host: limits are chosen for a quiet host, and grow with its load.

On a host on which more processes want to run than it has cores, each of them takes longer. A limit
that only ends a wait for something that will never come must not end a wait for something slow.
"""

from __future__ import annotations

import os
from pathlib import Path

LEAST_SHARE = 0.1
"""The load counts up to this share of a core, so that every wait ends at some time."""

_LOAD = Path("/proc/loadavg")
"""File whose first number says how many processes wanted to run during the last minute."""


def share(load: Path = _LOAD) -> float:
    """Share of a core that a process gets on this host: 1 on a quiet host, else less.

    Args:
        load: a file in the form of /proc/loadavg; without it, the host counts as quiet.
    """
    try:
        runnable = float(load.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    cores = len(os.sched_getaffinity(0))
    return max(LEAST_SHARE, min(1.0, cores / max(runnable, 1.0)))


def scaled_s(limit_s: float) -> float:
    """A limit in seconds that was chosen for a quiet host, as this host needs it now."""
    return limit_s / share()
