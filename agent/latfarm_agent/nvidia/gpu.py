"""The NVIDIA GPU of a board: its settings that change latency, and its clock and temperature.

On a Jetson the values come from nvpmodel, jetson_clocks, tegrastats and sysfs, on other boards from
NVML, on the newest Jetsons from both. All values are read back, never assumed from what was set.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

from latfarm_agent.nvidia import tegra
from latfarm_agent.nvidia.nvml import POWER_CAP, Nvml, open_nvml

_POLICY_KEPT_S = 5.0
"""How long a policy is kept before it is read again."""

TOOL_TIMEOUT_S = 5.0
"""How long a tool may take."""

_MHZ = 1e6
"""Hertz in a megahertz."""


@dataclass(frozen=True)
class GpuReading:
    """The values of a GPU at one moment; None: it does not tell.

    `throttles` is a counter that rises, or a state above zero, when the GPU throttles. `reasons`
    tells why its clocks are lower than asked for; the power cap may be among them, but does not
    count as throttling. `throttled` tells whether a state says that it throttles now; None: there
    are only counters, or no sensors.
    """

    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_mw: float | None = None
    throttles: int | None = None
    reasons: tuple[str, ...] = ()
    throttled: bool | None = None


def run_tool(command: Sequence[str]) -> str:
    """What a command prints; empty: it is missing or does not end in time."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


class NvidiaBoard:
    """The NVIDIA GPU of a board; tells nothing on boards without one.

    `policy` may be called from any thread, everything else by one thread.

    Args:
        root: folder below which /sys and /etc are found.
        nvml: opens NVML; None: the real library, but only if the root is "/".
        tool: runs a command and gives what it prints; None: likewise.
        tegrastats: the command that prints a Jetson's values; None: likewise.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        nvml: Callable[[], Nvml | None] | None = None,
        tool: Callable[[Sequence[str]], str] | None = None,
        tegrastats: str | None = None,
    ) -> None:
        self._root = root
        live = root == Path("/")
        self._open = nvml or (open_nvml if live else None)
        self._tool = tool or (run_tool if live else _silent)
        self._release = tegra.read_release(root)
        self._devfreq = tegra.gpu_devfreq(root) if self._release else None
        self._nvml: Nvml | None = None
        self._command = tegrastats or ("tegrastats" if live else "")
        self._stats: tegra.Tegrastats | None = None
        self._policy: tuple[float, dict[str, str]] | None = None

    def policy(self) -> dict[str, str]:
        """Settings that change latency, as conditions; empty without an NVIDIA GPU.

        They are read at most every 5 s, because the tools are slow, and a board asks once for each
        of its platforms.
        """
        now = time.monotonic()
        if self._policy is None or now - self._policy[0] > _POLICY_KEPT_S:
            self._policy = (now, {**self._nvml_policy(), **self._jetson_policy()})
        return dict(self._policy[1])

    def locked(self) -> bool:
        """Whether the GPU's clock is known to be fixed."""
        return self.policy().get("gpu_clock_locked") == "yes"

    def read(self, index: int = 0) -> GpuReading:
        """Clock, memory clock, temperature, power and throttling of a GPU now."""
        nvml, stats = self._library(), self._sample()
        clock = temperature = power = memory = None
        reasons: tuple[str, ...] = ()
        throttles: int | None = None
        states: list[int] = []
        if nvml is not None:
            clock, memory = nvml.clock_mhz(index), nvml.memory_clock_mhz(index)
            temperature, power = nvml.temperature_c(index), nvml.power_mw(index)
            told = nvml.throttle_reasons(index)
            if told is not None:
                reasons = told
                throttles = sum(reason != POWER_CAP for reason in told)
                states.append(throttles)
        if self._release is not None:
            cooling = tegra.cooling_states(self._root)
            counted = tegra.over_currents(self._root) + cooling
            if counted:
                throttles = sum(counted) + (throttles or 0)
            states += cooling
            if clock is None:
                clock = self._frequency("cur_freq")
        if stats is not None:
            clock = stats.gpu_mhz if clock is None else clock
            memory = stats.memory_mhz if memory is None else memory
            temperature = stats.gpu_c if temperature is None else temperature
            power = stats.power_mw if power is None else power
        throttled = any(states) if states else None
        return GpuReading(clock, memory, temperature, power, throttles, reasons, throttled)

    def index_of(self, bus_id: str) -> int:
        """NVML's index of the device with this PCI address, as CUDA tells it; 0: unknown."""
        nvml = self._library()
        found = nvml.index_of(bus_id) if nvml is not None else None
        return 0 if found is None else found

    def rest(self) -> None:
        """End the tool that `read` keeps running; the next `read` starts it again. Idempotent."""
        if self._stats is not None:
            self._stats.close()
            self._stats = None

    def close(self) -> None:
        """End the tool and close the library. Idempotent."""
        self.rest()
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
        self._open = None

    def _library(self) -> Nvml | None:
        if self._open is not None:
            self._nvml, self._open = self._open(), None
        return self._nvml

    def _sample(self) -> tegra.Stats | None:
        if self._stats is None and self._release is not None and self._command:
            try:
                self._stats = tegra.Tegrastats(self._command)
            except OSError:
                self._command = ""  # the tool is missing: do not try again
        return self._stats.latest() if self._stats is not None else None

    def _frequency(self, name: str) -> float | None:
        if self._devfreq is None:
            return None
        try:
            return float((self._devfreq / name).read_text()) / _MHZ
        except (OSError, ValueError):
            return None

    def _nvml_policy(self) -> dict[str, str]:
        nvml = self._library()
        if nvml is None:
            return {}
        told: dict[str, str] = {"gpu_driver": nvml.driver or "unknown"}
        for index in range(nvml.count):
            prefix = f"gpu{index}" if index else "gpu"
            persistence = nvml.persistence(index)
            figures = {
                f"{prefix}_clock_max_mhz": nvml.max_clock_mhz(index),
                f"{prefix}_application_clock_mhz": nvml.application_clock_mhz(index),
                f"{prefix}_power_limit_mw": nvml.power_limit_mw(index),
            }
            told.update((name, f"{value:g}") for name, value in figures.items() if value)
            if persistence is not None:
                told[f"{prefix}_persistence"] = "on" if persistence else "off"
        return told

    def _jetson_policy(self) -> dict[str, str]:
        if self._release is None:
            return {}
        told = {"jetson_linux": self._release}
        mode = tegra.read_mode(self._tool(["nvpmodel", "-q"])) or tegra.saved_mode(self._root)
        if mode is not None:
            told["power_mode"] = mode
        low, high = self._frequency("min_freq"), self._frequency("max_freq")
        if low is not None and high is not None:
            told["gpu_clock_min_mhz"], told["gpu_clock_max_mhz"] = f"{low:g}", f"{high:g}"
            told["gpu_clock_locked"] = "yes" if low == high else "no"
        # The tool needs root: without it, the clock of the memory stays unknown.
        for unit, bounds in tegra.read_clocks(self._tool(["jetson_clocks", "--show"])).items():
            told.setdefault(f"{unit}_clock_min_mhz", f"{bounds.min_mhz:g}")
            told.setdefault(f"{unit}_clock_max_mhz", f"{bounds.max_mhz:g}")
            told.setdefault(f"{unit}_clock_locked", "yes" if bounds.locked else "no")
        return told


def _silent(command: Sequence[str]) -> str:
    del command
    return ""
