"""A board that computes latencies from a model of hardware instead of measuring them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Mapping

from latfarm_agent.agent_config import RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.board import Cores, enabled, wanted_runtimes, with_memory_bound
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.seats import Seat
from latfarm_agent.board.conditions import Sensors, fingerprint
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.worker.channel import Message

RUNTIME = "simulated"
"""Name of the only runtime of a simulated board."""

REFERENCE = "latfarm_agent.runtimes.simulated.runtime:SimulatedRuntime"


class SimulatedBoard:
    """A board whose latencies follow from a profile; see `board.MeasuredBoard`.

    It shows the sensors of this machine, and its identity is that of this machine and its name.

    Args:
        options: names, configuration and limits.
        profile_path: file with the profile of the simulated hardware, or the name of a built-in
            one.
        root: folder below which /proc, /sys and /etc are found.
        sensors: what the board shows instead of the sensors below `root`; None: those.

    Raises:
        AgentUsageError: the file is not a profile, or the configuration names a runtime that is
            not registered.
    """

    def __init__(
        self,
        options: BenchOptions,
        profile_path: Path,
        root: Path,
        sensors: Sensors | None = None,
    ) -> None:
        try:
            path, self._profile = BoardProfile.asked_for(Path(profile_path))
        except ValueError as error:
            raise AgentUsageError(f"--simulate: {error}") from error
        self.cores: Cores = {count: () for count in options.config.threads}
        self.sensors = sensors or Sensors((), root)
        self.hardware: Mapping[str, str] = self.sensors.hardware()
        self.software: Mapping[str, str] = self.sensors.software()
        self.energy = EnergyMeter(root, options.config.power)
        wanted_runtimes(options)  # a configuration with an unknown runtime is refused here too
        self.configured: Mapping[str, RuntimeConfig] = options.config.runtimes
        self.references: Mapping[str, str] = enabled(
            options.runtimes or {RUNTIME: REFERENCE}, self.configured
        )
        profiled = RuntimeConfig(options={"profile": str(path)})
        self.configured = {**self.configured, RUNTIME: profiled}
        self.limits = replace(with_memory_bound(options.limits, self.sensors), nice=0)
        self.confinement = options.worker_confinement()
        self._name = options.board_name

    @property
    def profile(self) -> BoardProfile:
        """The profile of the simulated hardware."""
        return self._profile

    def board_id(self, work_dir: Path) -> str:
        """An identity that differs for each machine and each name."""
        return fingerprint({"host": self.sensors.board_id(work_dir), "simulated": self._name})

    def seat_sensors(self, threads: int) -> Sensors:
        """The sensors of this machine, whatever the number of threads."""
        del threads
        return self.sensors

    def extra_hardware(self) -> dict[str, str]:
        """That the board is simulated."""
        return {"simulated": "yes"}

    def extra_conditions(self) -> dict[str, str]:
        """Nothing: a simulated board has no power rail."""
        return {}

    def fingerprint_parts(self, spec: PlatformSpec, seat: Seat) -> dict[str, object]:
        """The whole profile, and nothing of this machine."""
        del spec, seat
        # Sets are sorted, so that equal profiles have equal fingerprints; what is not set is left
        # out, so that a field that a profile does not use changes no fingerprint.
        fields = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in self._profile.__dict__.items()
            if value is not None
        }
        return {"board": repr(sorted(fields.items()))}

    def run_conditions(self, spec: PlatformSpec, seat: Seat, done: Message) -> dict[str, str]:
        """Nothing: where the worker ran does not change computed latencies."""
        del spec, seat, done
        return {}

    def peak_bytes(self, worker_bytes: int) -> int:
        """Peak resident memory of the worker."""
        return worker_bytes


def simulated_bench(options: BenchOptions, profile_path: Path, root: Path = Path("/")) -> Bench:
    """A bench that offers one simulated board and nothing else.

    Args:
        options: names, configuration and limits.
        profile_path: file with the profile of the simulated hardware, or the name of a built-in
            one.
        root: folder below which /proc, /sys and /etc are found.

    Raises:
        AgentUsageError: the file is not a profile, or the configuration names a runtime that is
            not registered.
    """
    return Bench(SimulatedBoard(options, profile_path, root), options)
