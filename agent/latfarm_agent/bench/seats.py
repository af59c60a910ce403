"""Where workers measure: the cores for each number of threads, and their sensors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from latfarm_agent.bench.readiness import Readiness
from latfarm_agent.board.conditions import Sensors
from latfarm_agent.errors import AgentUsageError


@dataclass(frozen=True)
class Seat:
    """Where workers with one number of threads measure; `cores` empty: not pinned."""

    cores: tuple[int, ...]
    sensors: Sensors
    readiness: Readiness

    @property
    def core_mask(self) -> str:
        """The cores as a list of numbers, or "any"."""
        return ",".join(map(str, self.cores)) if self.cores else "any"


def measuring_cores(cpu: int | None, threads: int) -> tuple[int, ...]:
    """The cores to pin workers to; empty: they are not pinned.

    Args:
        cpu: a core that must be among them; None: the last cores, if one is left over.
        threads: the number of cores.

    Raises:
        AgentUsageError: this process may not use the core `cpu`.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    allowed = sorted(os.sched_getaffinity(0))
    if cpu is not None:
        if cpu not in allowed:
            raise AgentUsageError(
                f"--cpu {cpu}: this process may use {', '.join(map(str, allowed))}"
            )
        others = [core for core in reversed(allowed) if core != cpu]
        return tuple(sorted([cpu, *others[: threads - 1]]))
    # With a single core there is no choice; without a spare core the agent itself would disturb.
    return tuple(allowed[-threads:]) if len(allowed) > threads else ()
