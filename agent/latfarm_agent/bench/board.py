"""The kinds of boards that a bench can measure, behind one interface.

- `host.HostBoard`: the agent runs on the board itself.
- `driven.DrivenBoard`: an agent on another machine drives the board, for example a phone.
- `simulated.SimulatedBoard`: the board computes latencies from a model of hardware.

The bench asks the board where runtimes may run, what its sensors say and what makes its latencies
comparable. Everything else of a measurement is the same for all kinds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Dict, Mapping, Protocol, Tuple

from latfarm_agent.agent_config import RuntimeConfig, check_names
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.seats import Seat
from latfarm_agent.board.conditions import Sensors
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.runtimes import base
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.pool import WorkerLimits

Cores = Dict[int, Tuple[int, ...]]
"""Number of threads -> the cores that workers are pinned to; no core means they are not pinned."""


class MeasuredBoard(Protocol):
    """A board under a bench. All methods may be called from any thread.

    Attributes:
        sensors: the sensors of the board, over the cores of the first number of threads.
        hardware: what the board is made of, read once.
        software: its operating system and kernel, read once.
        cores: by number of threads, the cores of its workers; the first number comes first.
        energy: measures energy on the board's power rails.
        references: the runtimes to look for, name -> "module:Class".
        configured: the settings of runtimes by their names.
        limits: what a worker may use.
        confinement: what the kernel keeps from workers.
    """

    sensors: Sensors
    hardware: Mapping[str, str]
    software: Mapping[str, str]
    cores: Cores
    energy: EnergyMeter
    references: Mapping[str, str]
    configured: Mapping[str, RuntimeConfig]
    limits: WorkerLimits
    confinement: Confinement

    def board_id(self, work_dir: Path) -> str:
        """Stable identity of the board, 32 hex digits; a random one is kept in the folder."""

    def seat_sensors(self, threads: int) -> Sensors:
        """The sensors of the cores on which workers with so many threads run."""

    def extra_hardware(self) -> dict[str, str]:
        """Entries of the described hardware that `hardware` and `software` lack."""

    def extra_conditions(self) -> dict[str, str]:
        """Entries of the described conditions that no sensor tells."""

    def fingerprint_parts(self, spec: PlatformSpec, seat: Seat) -> dict[str, object]:
        """Everything of the board that changes a platform's latencies."""

    def run_conditions(self, spec: PlatformSpec, seat: Seat, done: Message) -> dict[str, str]:
        """Where and how the runs of a measurement were executed, from the worker's answer."""

    def peak_bytes(self, worker_bytes: int) -> int:
        """Peak memory of a measurement on the board, given that of the worker; 0: not known."""


def wanted_runtimes(options: BenchOptions) -> Mapping[str, str]:
    """The runtimes to offer: those of the options, else all that are registered.

    Raises:
        AgentUsageError: the configuration names a runtime that is not registered.
    """
    if options.runtimes is not None:
        return options.runtimes
    found = base.discover()
    check_names(options.config, found)
    return found


def enabled(
    references: Mapping[str, str], configured: Mapping[str, RuntimeConfig]
) -> dict[str, str]:
    """The runtimes that the configuration does not switch off."""
    return {
        name: reference
        for name, reference in references.items()
        if configured.get(name, RuntimeConfig()).enabled
    }


def with_memory_bound(limits: WorkerLimits, host: Sensors) -> WorkerLimits:
    """The limits, with 80 % of this machine's memory where they do not bound memory themselves."""
    memory = host.hardware()["memory_bytes"]
    if limits.memory_bytes or not memory.isdigit():
        return limits
    return replace(limits, memory_bytes=int(memory) * 8 // 10)


def real_fingerprint(board: MeasuredBoard, spec: PlatformSpec, seat: Seat) -> dict[str, object]:
    """What a real board adds to a platform's fingerprint; nothing where time is computed."""
    if not spec.real_time:
        return {}
    return {
        "board": [board.hardware[name] for name in ("cpu", "arch", "model")],
        "software": board.software,
        "policy": seat.sensors.policy(),
        "core_mask": seat.core_mask,
    }
