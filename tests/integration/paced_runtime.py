"""A simulated runtime that a test can stop between two measurements.

The runtime and the test share two files in the folder of the board's profile. Each holds a number
of measurements, counted since the agent started. `begun` holds how many have begun. `allowed` holds
how many may begin; the next one waits. If `allowed` does not exist, no measurement waits.
"""

from __future__ import annotations

import time
from pathlib import Path

from latfarm_agent.runtimes.base import Job, Prepared
from latfarm_agent.runtimes.simulated.runtime import SimulatedRuntime

ALLOWED = "allowed"
"""Name of the file with the number of measurements that may begin; the test writes it."""

BEGUN = "begun"
"""Name of the file with the number of measurements that have begun; the runtime writes it."""

_LOOK_S = 0.005
"""Time between two reads of the file `allowed`, in seconds."""


class PacedRuntime(SimulatedRuntime):
    """The runtime of a simulated board; `profile` is the path of its profile file."""

    def __init__(self, threads: int = 1, profile: str | None = None) -> None:
        super().__init__(threads, profile)
        self._allowed = Path(profile or "").with_name(ALLOWED)
        self._begun = Path(profile or "").with_name(BEGUN)

    def prepare(self, job: Job) -> Prepared:
        """Wait until this measurement may begin, then prepare it like the simulated runtime."""
        if job.session == 0:
            while not self._may_begin(job.sequence):
                time.sleep(_LOOK_S)
            write_number(self._begun, job.sequence + 1)
        return super().prepare(job)

    def _may_begin(self, sequence: int) -> bool:
        try:
            return sequence < int(self._allowed.read_text())
        except FileNotFoundError:
            return True


def write_number(path: Path, number: int) -> None:
    """Write a number to a file in one step: a process never reads only a part of the number."""
    part = path.with_suffix(".part")
    part.write_text(str(number))
    part.replace(path)
