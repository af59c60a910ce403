"""The conditions of a board: temperature, clock, throttling, load and policy, read from the kernel.

A value that the board does not tell is `UNKNOWN`. Everything is read below one root folder, so that
tests can make a board of their own from files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.nvidia.gpu import NvidiaBoard

UNKNOWN = "unknown"
THROTTLED_THROUGHOUT = "throttled_throughout"
"""Condition: whether the board throttled before, during and after the runs, "yes" or "no"."""

_STEAL_FIELD = 7
"""Position of the stolen time among the numbers of a line of /proc/stat."""


@dataclass(frozen=True)
class CoreTicks:
    """How some cores spent their time since boot, in kernel ticks (usually 10 ms)."""

    busy: int
    idle: int
    steal: int

    @property
    def total(self) -> int:
        """All ticks."""
        return self.busy + self.idle + self.steal


@dataclass(frozen=True)
class Shares:
    """Shares of the cores' time between two readings, from 0 to 1; None: not known."""

    busy: float | None
    steal: float | None


def shares(before: CoreTicks | None, after: CoreTicks | None) -> Shares:
    """Busy and stolen share of the time between two readings."""
    if before is None or after is None or after.total <= before.total:
        return Shares(None, None)
    total = after.total - before.total
    return Shares((after.busy - before.busy) / total, (after.steal - before.steal) / total)


@dataclass(frozen=True)
class SensorReading:
    """One reading of the sensors of the measuring cores.

    `throttles` is a counter that rises, or a state above zero, when the board throttles.
    `throttled` tells whether a state says that it throttles now; None: there are only counters, or
    no sensors.
    """

    clock_mhz: float | None
    temperature_c: float | None
    throttles: int | None
    throttled: bool | None = None


@dataclass(frozen=True)
class BoardReadiness:
    """Whether a board may be measured now.

    Attributes:
        mode: what must not change during a measurement.
        told: conditions for the result.
        unfit: why the board must not be measured; empty: it may be.
    """

    mode: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    unfit: str = ""

    def changes(self, after: BoardReadiness) -> str:
        """What has changed of `mode`, in one line; unknown values count as unchanged."""
        found = [
            f"{name.replace('_', ' ')}: {was} -> {after.mode[name]}"
            for name, was in self.mode.items()
            if was and after.mode.get(name) and after.mode[name] != was
        ]
        return "; ".join(found)


class Sensors:
    """Reads the sensors of this machine for the measuring cores.

    A driven board has a subclass of its own.

    Args:
        cores: the measuring cores; empty: all of them.
        root: folder below which /proc, /sys and /etc are found.
    """

    def __init__(self, cores: Sequence[int] = (), root: Path = Path("/")) -> None:
        self._root = root
        self._nvidia = NvidiaBoard(root)
        self._cores: frozenset[int] = frozenset(cores)
        self._core = min(cores) if cores else 0
        self._cpufreq = root / f"sys/devices/system/cpu/cpu{self._core}/cpufreq"

    def read(self) -> SensorReading:
        """Clock, temperature and throttling now."""
        events, states = self._throttle_events(), self._throttle_states()
        return SensorReading(
            self.clock_mhz(),
            self.temperature_c(),
            int(sum(events + states)) if events or states else None,
            any(states) if states else None,
        )

    def standing(self) -> BoardReadiness:
        """Whether the board may be measured: this machine always may."""
        return BoardReadiness()

    def lost(self) -> str:
        """Why the board does not answer; empty: it answers, as this machine always does."""
        return ""

    def clock_mhz(self) -> float | None:
        """The measuring core's clock as cpufreq tells it; nominal clocks are not read."""
        for name in ("scaling_cur_freq", "cpuinfo_cur_freq"):
            khz = _number(self._cpufreq / name)
            if khz is not None:
                return khz / 1e3
        return None

    def temperature_c(self) -> float | None:
        """The hottest plausible thermal zone or CPU sensor, in degrees Celsius."""
        found: list[float] = []
        for zone in _paths(self._root / "sys/class/thermal", "thermal_zone*/temp"):
            value = _number(zone)
            if value is not None:
                found.append(value / 1e3)
        if not found:
            for sensor in _paths(self._root / "sys/class/hwmon", "hwmon*/temp*_input"):
                value = _number(sensor)
                name = _text(sensor.parent / "name")
                if value is not None and name in ("coretemp", "k10temp", "cpu_thermal", "zenpower"):
                    found.append(value / 1e3)
        # Zones that are switched off tell 0, -273 or 127.
        plausible = [value for value in found if 1.0 <= value <= 125.0]
        return max(plausible) if plausible else None

    def _throttle_events(self) -> list[float]:
        """Counters of throttle events since boot."""
        found: list[float] = []
        cpus = self._root / "sys/devices/system/cpu"
        for core in self._cores or {0}:
            for name in ("core_throttle_count", "package_throttle_count"):
                value = _number(cpus / f"cpu{core}/thermal_throttle/{name}")
                if value is not None:
                    found.append(value)
        return found

    def _throttle_states(self) -> list[float]:
        """States that are above zero while the board throttles."""
        found: list[float] = []
        for device in _paths(self._root / "sys/class/thermal", "cooling_device*"):
            kind = _text(device / "type") or ""
            value = _number(device / "cur_state")
            if value is not None and (kind == "Processor" or "cpufreq" in kind):
                found.append(value)
        firmware = _text(self._root / "sys/devices/platform/soc/soc:firmware/get_throttled")
        with contextlib.suppress(ValueError):
            if firmware:
                # Raspberry Pi: the low four bits tell what happens now.
                found.append(float(int(firmware, 16) & 0xF))
        return found

    def policy(self) -> dict[str, str]:
        """Settings that change latency: governor, clock bounds, power mode and power source."""
        power = self._root / "sys/class/power_supply"
        online = [_text(supply / "online") for supply in _paths(power, "*")]
        source = UNKNOWN
        if "1" in online:
            source = "mains"
        elif "0" in online:
            source = "battery"
        return {
            "governor": _text(self._cpufreq / "scaling_governor") or UNKNOWN,
            "clock_max_khz": _text(self._cpufreq / "scaling_max_freq") or UNKNOWN,
            "clock_min_khz": _text(self._cpufreq / "scaling_min_freq") or UNKNOWN,
            "power_mode": _text(self._root / "var/lib/nvpmodel/status") or UNKNOWN,
            "power_source": source,
            **self._nvidia.policy(),
        }

    def ticks(self) -> CoreTicks | None:
        """How the measuring cores spent their time; None without /proc/stat."""
        text = _text(self._root / "proc/stat")
        if text is None:
            return None
        busy = idle = steal = 0
        for line in text.splitlines():
            name, *fields = line.split()
            if not name.startswith("cpu") or not name[3:].isdigit():
                continue
            if self._cores and int(name[3:]) not in self._cores:
                continue
            # user nice system idle iowait irq softirq steal; guest time is in user already
            counts = [int(field) for field in fields[:8]] + [0] * (8 - len(fields))
            idle += counts[3] + counts[4]
            steal += counts[_STEAL_FIELD]
            busy += sum(counts[:3]) + counts[5] + counts[6]
        return CoreTicks(busy, idle, steal) if busy + idle + steal else None

    def load(self) -> str:
        """The one-minute load average of the host."""
        text = _text(self._root / "proc/loadavg")
        return text.split()[0] if text else UNKNOWN

    def boot_id(self) -> str:
        """An identity that changes with each boot; the same for all processes of a machine."""
        return _text(self._root / "proc/sys/kernel/random/boot_id") or UNKNOWN

    def hardware(self) -> dict[str, str]:
        """What the board is made of."""
        memory = self._memory_bytes()
        return {
            "cpu": self._cpu_model(),
            "arch": platform.machine() or UNKNOWN,
            "cores": str(os.cpu_count() or UNKNOWN),
            "memory_bytes": str(memory) if memory else UNKNOWN,
            "model": (_text(self._root / "proc/device-tree/model") or UNKNOWN).strip("\0"),
        }

    def software(self) -> dict[str, str]:
        """Operating system and kernel."""
        return {"os": self._os_name(), "kernel": platform.release() or UNKNOWN}

    def board_id(self, state_dir: Path) -> str:
        """Stable identity of the device, 32 hex digits.

        It comes from the serial number if the board has one, because cloned images share
        everything else; otherwise from the machine id, or from a random one in `state_dir`.
        """
        identity = (
            (_text(self._root / "proc/device-tree/serial-number") or "").strip("\0")
            or _text(self._root / "etc/machine-id")
            or _text(self._root / "var/lib/dbus/machine-id")
        )
        if not identity:
            kept = state_dir / "board-id"
            identity = _text(kept)
            if not identity:
                identity = uuid.uuid4().hex
                kept.write_text(identity + "\n")
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    def _cpu_model(self) -> str:
        fields: dict[str, str] = {}
        for line in (_text(self._root / "proc/cpuinfo") or "").splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key.strip(), value.strip())
        for key in ("model name", "Model", "Hardware", "cpu model"):
            if fields.get(key):
                return fields[key]
        if "CPU part" in fields:
            return f"arm {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
        return UNKNOWN

    def _memory_bytes(self) -> int:
        for line in (_text(self._root / "proc/meminfo") or "").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
        return 0

    def _os_name(self) -> str:
        for line in (_text(self._root / "etc/os-release") or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip('"')
        return platform.system() or UNKNOWN


def fingerprint(parts: Mapping[str, object]) -> str:
    """Hash of everything that makes latencies comparable, 32 hex digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def yes_or_no(value: bool) -> str:
    """A reading that is true or false, as text."""
    return "yes" if value else "no"


def shown(value: float | None, digits: int = 3) -> str:
    """A reading as text; `UNKNOWN` if there is none."""
    if value is None:
        return UNKNOWN
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _paths(folder: Path, pattern: str) -> list[Path]:
    """Sorted paths; none if the folder may not be listed, as on Android."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def thermally_steady(
    samples: Sequence[tuple[float, float]], idle_c: float, window_s: float = 30.0
) -> bool:
    """Whether samples of (time in s, temperature in degC) show a cool and steady board.

    It is at most 5 degC above idle, and drifts less than 0.5 degC over the last `window_s`.
    """
    if not samples or samples[-1][0] - samples[0][0] < window_s:
        return False
    since = samples[-1][0] - window_s
    recent = [value for moment, value in samples if moment >= since]
    return recent[-1] <= idle_c + 5.0 and max(recent) - min(recent) < 0.5


def throttled_throughout(
    begin: SensorReading, samples: Sequence[SensorReading], end: SensorReading
) -> bool | None:
    """Whether the board throttled before, during and after a measurement; None: not known.

    Nothing changes then, so that `spoiled_by` has no objection, and yet the board is slower.
    """
    if begin.throttled is None or end.throttled is None:
        return None
    return all(reading.throttled is not False for reading in (begin, *samples, end))


def spoiled_by(
    begin: SensorReading, samples: Sequence[SensorReading], end: SensorReading, *, clock: bool
) -> str | None:
    """Why a measurement must be rejected: the board throttled, or its clock fell by more than 2 %.

    The clock counts only with `clock`. None: nothing speaks against the measurement, as on boards
    without sensors.
    """
    if begin.throttles is not None and end.throttles is not None:
        worst = max([r.throttles for r in samples if r.throttles is not None] + [end.throttles])
        if worst > begin.throttles:
            return f"the board throttled while it measured ({begin.throttles} -> {worst})"
    clocks = [r.clock_mhz for r in samples if r.clock_mhz is not None]
    if clock and clocks and min(clocks) < 0.98 * max(clocks):
        return f"the clock fell from {max(clocks):.0f} to {min(clocks):.0f} MHz while it measured"
    return None
