"""The board on which the agent itself runs."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from latfarm_agent.agent_config import RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.board import (
    Cores,
    enabled,
    real_fingerprint,
    wanted_runtimes,
    with_memory_bound,
)
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.seats import Seat, measuring_cores
from latfarm_agent.board.conditions import Sensors
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.worker.channel import Message


class HostBoard:
    """The board on which the agent runs; see `board.MeasuredBoard`.

    Its workers are pinned to measuring cores, and its own sensors and power rails are read.

    Args:
        options: names, configuration and limits.
        cpu: the core to measure on; None: the last one where there are two or more.
        root: folder below which /proc, /sys and /etc are found.

    Raises:
        AgentUsageError: this process may not use that core, or the configuration names a runtime
            that is not registered.
    """

    def __init__(self, options: BenchOptions, cpu: int | None, root: Path) -> None:
        threads = options.config.threads
        self.cores: Cores = {count: measuring_cores(cpu, count) for count in threads}
        self.sensors = Sensors(self.cores[threads[0]], root)
        self.hardware: Mapping[str, str] = self.sensors.hardware()
        self.software: Mapping[str, str] = self.sensors.software()
        self.energy = EnergyMeter(root, options.config.power)
        self.configured: Mapping[str, RuntimeConfig] = options.config.runtimes
        self.references: Mapping[str, str] = enabled(wanted_runtimes(options), self.configured)
        self.limits = with_memory_bound(options.limits, self.sensors)
        self.confinement = options.worker_confinement()
        self._first_threads = threads[0]
        self._root = root

    def board_id(self, work_dir: Path) -> str:
        """Identity of this machine."""
        return self.sensors.board_id(work_dir)

    def seat_sensors(self, threads: int) -> Sensors:
        """The sensors of the cores for so many threads."""
        if threads == self._first_threads:
            return self.sensors
        return Sensors(self.cores[threads], self._root)

    def extra_hardware(self) -> dict[str, str]:
        """Nothing: the sensors tell all."""
        return {}

    def extra_conditions(self) -> dict[str, str]:
        """The power rail that is used, or why there is none."""
        return {"power_rail": self.energy.shown()}

    def fingerprint_parts(self, spec: PlatformSpec, seat: Seat) -> dict[str, object]:
        """Hardware, software, policy and cores."""
        return real_fingerprint(self, spec, seat)

    def run_conditions(self, spec: PlatformSpec, seat: Seat, done: Message) -> dict[str, str]:
        """Cores, priority and involuntary context switches of the worker."""
        del spec, seat
        return {
            "core_mask": ",".join(map(str, done["cpus"])),
            "nice": str(done["nice"]),
            "involuntary_switches": str(done["switches"]),
        }

    def peak_bytes(self, worker_bytes: int) -> int:
        """Peak resident memory of the worker."""
        return worker_bytes


def host_bench(options: BenchOptions, cpu: int | None = None, root: Path = Path("/")) -> Bench:
    """A bench that measures on this machine.

    Args:
        options: names, configuration and limits.
        cpu: the core to measure on; None: the last one where there are two or more.
        root: folder below which /proc, /sys and /etc are found.

    Raises:
        AgentUsageError: this process may not use that core, or the configuration names a runtime
            that is not registered.
    """
    return Bench(HostBoard(options, cpu, root), options)
