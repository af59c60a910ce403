"""What a bench is given, whatever kind of board it measures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.agent_config import AgentConfig
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.worker.pool import WorkerLimits


@dataclass(frozen=True)
class BenchOptions:
    """The board's name, where to work, and what to offer.

    Attributes:
        board_name: what people call the board.
        hardware: name of the board's type, with which its platforms' names begin, so that equal
            boards offer equal platforms; None or empty: `board_name`.
        work_dir: folder for scratch files, workers and caches. A board without a serial number
            keeps its identity there too.
        runtimes: name -> "module:Class"; None: those that are registered as entry points.
        search_path: folders added to the workers' module search path.
        config: the agent's configuration file.
        limits: what a worker may use.
        hidden: files and folders that stay closed to workers: keys, and all that is the agent's.
    """

    board_name: str
    hardware: str | None
    work_dir: Path
    runtimes: Mapping[str, str] | None = None
    search_path: Sequence[Path] = ()
    config: AgentConfig = field(default_factory=AgentConfig)
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    hidden: Sequence[Path] = ()

    @property
    def hardware_name(self) -> str:
        """The name with which the names of platforms begin."""
        return self.hardware or self.board_name

    def worker_confinement(self) -> Confinement:
        """What the kernel keeps from workers: as configured, and what is hidden from them."""
        plan = self.config.confinement
        return replace(plan, hidden=(*plan.hidden, *(str(path) for path in self.hidden)))
