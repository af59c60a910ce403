"""Where runtimes measure: the cores of each number of threads, and who watches over them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from latfarm_agent.bench.readiness import Readiness
from latfarm_agent.board.conditions import Sensors
from latfarm_agent.errors import AgentUsageError


@dataclass(frozen=True)
class Seat:
    """Where runtimes of one number of threads measure; `cores` empty: wherever they run."""

    cores: tuple[int, ...]
    sensors: Sensors
    readiness: Readiness

    @property
    def core_mask(self) -> str:
        """The cores as a list of numbers, or "any"."""
        return ",".join(map(str, self.cores)) if self.cores else "any"


def measuring_cores(cpu: int | None, threads: int) -> tuple[int, ...]:
    """Cores for a number of threads, empty where none are worth keeping to.

    Args:
        cpu: one that was asked for; None: the last ones, if any is left for the rest.
        threads: how many cores.

    Raises:
        AgentUsageError: this process may not use that core.
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
    # With one core there is nothing to choose; with no spare one the agent itself would disturb.
    return tuple(allowed[-threads:]) if len(allowed) > threads else ()
