"""A board that this machine drives but does not run on, for example a phone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Mapping

from latfarm_agent.agent_config import RuntimeConfig
from latfarm_agent.bench.board import (
    Cores,
    enabled,
    real_fingerprint,
    wanted_runtimes,
    with_memory_bound,
)
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.seats import Seat
from latfarm_agent.board.conditions import Sensors
from latfarm_agent.confinement.plan import NOTHING, Confinement
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.worker.channel import Message

_NO_RAILS = Path("/nonexistent")
"""A root folder without power rails: the rails of this machine say nothing about the board."""


class DrivenBoard:
    """A board that workers on this machine drive; see `board.MeasuredBoard`.

    Workers are neither pinned nor given a priority, as the model does not run in them.

    Args:
        options: names, configuration and limits of the workers on this machine.
        sensors: the sensors of the driven board.
        root: folder below which this machine's /proc is found.
        reached: what workers need to reach the driven board.
    """

    def __init__(
        self,
        options: BenchOptions,
        sensors: Sensors,
        root: Path = Path("/"),
        reached: Confinement = NOTHING,
    ) -> None:
        self.cores: Cores = {count: () for count in options.config.threads}
        self.sensors = sensors
        self.hardware: Mapping[str, str] = sensors.hardware()
        self.software: Mapping[str, str] = sensors.software()
        self.energy = EnergyMeter(_NO_RAILS, options.config.power)
        self.configured: Mapping[str, RuntimeConfig] = options.config.runtimes
        self.references: Mapping[str, str] = enabled(wanted_runtimes(options), self.configured)
        self.limits = replace(with_memory_bound(options.limits, Sensors((), root)), nice=0)
        self.confinement = options.worker_confinement().joined(reached)

    def board_id(self, work_dir: Path) -> str:
        """Identity of the driven board."""
        return self.sensors.board_id(work_dir)

    def seat_sensors(self, threads: int) -> Sensors:
        """The sensors of the driven board, whatever the number of threads."""
        del threads
        return self.sensors

    def extra_hardware(self) -> dict[str, str]:
        """Nothing: the sensors tell all."""
        return {}

    def extra_conditions(self) -> dict[str, str]:
        """That there is no power rail."""
        return {"power_rail": self.energy.shown()}

    def fingerprint_parts(self, spec: PlatformSpec, seat: Seat) -> dict[str, object]:
        """Hardware, software and policy of the driven board."""
        return real_fingerprint(self, spec, seat)

    def run_conditions(self, spec: PlatformSpec, seat: Seat, done: Message) -> dict[str, str]:
        """The cores that the platform's settings name; the worker's own cores do not matter."""
        del done
        return {"core_mask": spec.settings.get("core_mask", seat.core_mask)}

    def peak_bytes(self, worker_bytes: int) -> int:
        """0: the memory of the worker says nothing about the board."""
        del worker_bytes
        return 0
