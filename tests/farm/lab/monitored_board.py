"""A simulated board with sensors that a test sets, served by an agent in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.farm.lab.processes import LoggedProcess
from tests.monitoring.rendering import ANSIBLE
from tests.ports import free_port

PROFILE: Mapping[str, object] = {
    "peak_macs_per_ms": 2e6,
    "vector_ops_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "call_overhead_ms": 0.02,
    "noise": 0.01,
    "fused_pairs": [["Conv", "Relu"], ["Conv", "BatchNormalization"]],
}
"""Profile of the simulated hardware, without its platform."""

TEMPERATURE = "sys/class/thermal/thermal_zone0/temp"
CLOCK = "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
COOLING = "sys/class/thermal/cooling_device0/cur_state"
SENSORS = {
    TEMPERATURE: "41000",
    CLOCK: "1700000",
    "sys/class/thermal/cooling_device0/type": "Processor",
    COOLING: "0",
}
"""Files of the board's sensors below its root folder, and what they hold at the start."""


def python_path() -> str:
    """Where a process that a test starts finds the modules of the tests."""
    return os.pathsep.join([str(ANSIBLE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


class MonitoredBoard:
    """A simulated board, its sensors and its agent. `start` runs the agent.

    Args:
        folder: folder for the files of the board.
        name: name of the board.
        tls: options of the agent that name its certificate; empty: it serves without TLS.
        profile: changes of `PROFILE`.
    """

    def __init__(self, folder: Path, name: str, tls: Sequence[str] = (), **profile: object) -> None:
        self.name = name
        self.root = folder / "root"
        self._folder = folder
        self._tls = tls
        self._ports = (free_port(), free_port())
        self.profile = {"platform": f"{name}-sim1.0-fp32-1t", **PROFILE, **profile}
        self.process: LoggedProcess | None = None
        for path, text in SENSORS.items():
            self.set_sensor(path, text)

    @property
    def platform(self) -> str:
        """Name of the one platform that the board offers."""
        return str(self.profile["platform"])

    @property
    def address(self) -> str:
        """Address at which the agent serves the controller."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def target(self) -> str:
        """Address at which Prometheus scrapes the agent."""
        return f"127.0.0.1:{self._ports[1]}"

    def set_sensor(self, path: str, text: str) -> None:
        """Set what a file of a sensor holds; `path` is relative to the board's root folder."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}")
        part.write_text(f"{text}\n")
        part.replace(place)

    def start(self, **changes: object) -> None:
        """Start the agent, after these changes of the board's profile."""
        self.profile.update(changes)
        profile = self._folder / "profile.json"
        profile.write_text(json.dumps(self.profile))
        words = [sys.executable, "-m", "tests.farm.lab.monitored_agent", self.root, "serve"]
        words += ["--name", self.name, "--simulate", profile, "--listen", self.address]
        words += ["--state-dir", self._folder / "state", "--metrics-port", self._ports[1]]
        words += [*self._tls]
        log = self._folder / "log"
        log.write_text("")
        env = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
        self.process = LoggedProcess([str(word) for word in words], log, env)

    def wait(self) -> None:
        """Wait until the agent serves."""
        assert self.process is not None
        self.process.find(r"(serves on) ")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the agent and to everything that it started."""
        assert self.process is not None
        self.process.send(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the agent with a signal."""
        if self.process is not None:
            self.process.end(number)
