"""What protects this machine from the models that its workers run: told, and tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from latfarm_agent.confinement import cgroups, plan, probe
from latfarm_agent.errors import LatfarmAgentError
from latfarm_agent.worker import keeper
from latfarm_agent.worker.start import for_another_folder

_PROBE_S = 60.0
"""How long the probe may take on a slow board."""

REMEDIES = {
    plan.FILES: "run Linux 5.13 or newer with `landlock` in its list of security modules (lsm=)",
    plan.SIGNALS: "run Linux 6.12 or newer with Landlock, or a kernel with CONFIG_SECCOMP_FILTER",
    plan.NETWORK: "run a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
    plan.CALLS: "run a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
    plan.PRIVILEGES: "run the agent as a user of its own and not as root",
    plan.LIMITS: "run the agent on Linux",
    plan.END: "run the agent on Linux",
}
"""What to do about a protection that is off."""


@dataclass(frozen=True)
class Protected:
    """One protection: what is told of it, and the attempts that were not refused."""

    name: str
    told: str
    passed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it is on, and refused everything that was tried."""
        return plan.is_on(self.told) and not self.passed

    def to_json(self) -> dict[str, object]:
        """The protection, and what was tried against it, as plain JSON types."""
        return {
            "name": self.name,
            "on": self.holds,
            "told": self.told,
            "not_refused": list(self.passed),
            "remedy": "" if self.holds else REMEDIES[self.name],
        }


def examine() -> list[Protected]:
    """Confine a process as a worker is, let it try what must be refused, and tell what came of it.

    Raises:
        LatfarmAgentError: the process does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="latfarm-doctor-") as name:
        folder = Path(name).resolve()
        own = folder / probe.OWN
        own.mkdir()
        (folder / probe.SECRET).write_text("secret", encoding="utf-8")
        command = [sys.executable, "-m", "latfarm_agent.confinement.probe", str(folder)]
        try:
            # Python imports modules from the folder in which it starts; this one is empty.
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=_PROBE_S,
                check=True,
                cwd=str(own),
                env=for_another_folder(os.environ),
            )
            found = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise LatfarmAgentError(f"the probe of the confinement failed: {error}") from error
    told = {**found["told"], plan.END: _end()}
    return [
        Protected(
            each,
            told.get(each, f"{plan.OFF}: not told"),
            tuple(
                attempt
                for attempt, what in found["tried"].items()
                if what["protection"] == each and not what["refused"]
            ),
        )
        for each in plan.PROTECTIONS
    ]


def _end() -> str:
    if not keeper.is_subreaper():
        return f"{plan.OFF}: this system has no subreapers"
    try:
        cgroups.remove(cgroups.make(f"{os.getpid()}-doctor", 0))
    except OSError as error:
        return f"{plan.ON}: the keeper is its subreaper; {error.strerror or error}"
    return f"{plan.ON}: control group, and the keeper is its subreaper"
