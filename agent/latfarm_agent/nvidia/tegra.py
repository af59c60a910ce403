"""Power mode, clocks, temperatures and power of a Jetson, from its tools and its kernel.

The tools print for people, and differently in each JetPack. So each line is searched for known
patterns, and values that are not found are missing from the answer.
Sources: NVIDIA, "Jetson Linux Developer Guide", chapters "Platform Power and Performance" and
"Tegrastats Utility".
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping

_MODE = re.compile(r"^NV Power Mode:\s*(?P<name>\S.*?)\s*$", re.MULTILINE)
_MODE_NUMBER = re.compile(r"^(\d+)\s*$", re.MULTILINE)
_MODE_ENTRY = re.compile(r"<\s*POWER_MODEL\s+ID=(?P<id>\d+)\s+NAME=(?P<name>\S+)\s*>")
_SAVED_MODE = re.compile(r"pmode:(\d+)")
_RELEASE = re.compile(r"R(?P<major>\d+) \(release\), REVISION: (?P<minor>[\d.]+)")
_CLOCKS = re.compile(
    r"^(?P<unit>GPU|gpu-\S+|EMC)\s+(?P<figures>MinFreq=\d+.*)$", re.MULTILINE | re.IGNORECASE
)
_FIGURE = re.compile(r"(\w+)=(\d+)")
_GPU_FREQUENCY = re.compile(r"\bGR3D_FREQ (?P<load>\d+)%(?:@\[?(?P<mhz>[\d,]+)\]?)?")
_EMC_FREQUENCY = re.compile(r"\bEMC_FREQ (?P<load>\d+)%(?:@(?P<mhz>\d+))?")
_TEMPERATURE = re.compile(r"\b(?P<name>[A-Za-z][\w-]*)@(?P<celsius>-?\d+(?:\.\d+)?)C\b")
# "VDD_IN 5079mW/5079mW" since JetPack 5, "VDD_IN 5079/5079" before it.
_POWER = re.compile(r"\b(?P<rail>(?:VDD|VIN|POM)_\w+) (?P<now>\d+)(?:mW)?/(?P<mean>\d+)(?:mW)?\b")
# Names of the rail that feeds the whole module or board, on known boards.
_WHOLE = ("VDD_IN", "VIN_SYS_5V0", "POM_5V_IN", "VIN", "VDD_SYS_IN")
_GPU_NAME = re.compile(r"gpu|gv11b|ga10b|gb10b|gp10b|gm20b", re.IGNORECASE)
_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Clocks:
    """Bounds of a unit's clock in MHz; `locked`: the clock stays at its highest value."""

    min_mhz: float
    max_mhz: float
    locked: bool


@dataclass(frozen=True)
class Stats:
    """One line of tegrastats; None: the line does not tell. Loads are shares from 0 to 1."""

    gpu_load: float | None = None
    gpu_mhz: float | None = None
    memory_mhz: float | None = None
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    rails_mw: Mapping[str, float] = field(default_factory=dict)

    @property
    def gpu_c(self) -> float | None:
        """Temperature of the GPU; that of the hottest junction if the GPU's sensor is off."""
        for name in ("gpu", "tj"):
            if name in self.temperatures_c:
                return self.temperatures_c[name]
        return None

    @property
    def power_mw(self) -> float | None:
        """Power of the whole module."""
        return next((self.rails_mw[name] for name in _WHOLE if name in self.rails_mw), None)


def read_mode(text: str) -> str | None:
    """Power mode from what `nvpmodel -q` prints, such as "MAXN (0)"; None: not told."""
    name = _MODE.search(text)
    if name is None:
        return None
    number = _MODE_NUMBER.search(text, name.end())
    return f"{name['name']} ({number[1]})" if number else name["name"]


def saved_mode(root: Path) -> str | None:
    """Power mode from the files of nvpmodel, for boards where the tool cannot be run."""
    saved = _SAVED_MODE.search(_text(root / "var/lib/nvpmodel/status"))
    if saved is None:
        return None
    number = int(saved[1])
    for entry in _MODE_ENTRY.finditer(_text(root / "etc/nvpmodel.conf")):
        if int(entry["id"]) == number:
            return f"{entry['name']} ({number})"
    return f"({number})"


def read_release(root: Path) -> str | None:
    """Release of Jetson Linux, such as "R36.4.3"; None: the board is no Jetson."""
    found = _RELEASE.search(_text(root / "etc/nv_tegra_release"))
    return f"R{found['major']}.{found['minor']}" if found else None


def read_clocks(text: str) -> dict[str, Clocks]:
    """Bounds of "gpu" and "memory" from what `jetson_clocks --show` prints.

    When jetson_clocks locks the memory's clock, its lower bound does not change; FreqOverride
    tells that it is locked.
    """
    found: dict[str, Clocks] = {}
    for match in _CLOCKS.finditer(text):
        figures = {name: int(value) for name, value in _FIGURE.findall(match["figures"])}
        low, high = figures.get("MinFreq"), figures.get("MaxFreq")
        if low is None or high is None:
            continue
        locked = low == high or figures.get("FreqOverride") == 1
        unit = "memory" if match["unit"].upper() == "EMC" else "gpu"
        found.setdefault(unit, Clocks(low / 1e6, high / 1e6, locked))
    return found


def read_stats(line: str) -> Stats:
    """One line of tegrastats, of any JetPack from 4 to 7."""
    gpu, memory = _GPU_FREQUENCY.search(line), _EMC_FREQUENCY.search(line)
    clocks = [float(mhz) for mhz in gpu["mhz"].split(",") if mhz] if gpu and gpu["mhz"] else []
    temperatures: dict[str, float] = {}
    for match in _TEMPERATURE.finditer(line):
        celsius = float(match["celsius"])
        if celsius > 0:  # a sensor that is off tells -256
            temperatures[match["name"].lower()] = celsius
    return Stats(
        gpu_load=int(gpu["load"]) / 100 if gpu else None,
        # One value for each cluster; 0 for a cluster that sleeps.
        gpu_mhz=max(clocks) if any(clocks) else None,
        memory_mhz=float(memory["mhz"]) if memory and memory["mhz"] else None,
        temperatures_c=temperatures,
        rails_mw={match["rail"]: float(match["now"]) for match in _POWER.finditer(line)},
    )


def gpu_devfreq(root: Path) -> Path | None:
    """Folder of the GPU's frequency scaling in sysfs; None: there is none."""
    for folder in sorted((root / "sys/class/devfreq").glob("*")):
        if _GPU_NAME.search(folder.name):
            return folder
    return None


def over_currents(root: Path) -> list[int]:
    """Numbers of over-current events since boot; empty: not told."""
    found: list[int] = []
    for chip in (root / "sys/class/hwmon").glob("hwmon*"):
        if _text(chip / "name").strip() == "soctherm_oc":
            found += [_integer(counter) for counter in chip.glob("oc*_event_cnt")]
    return found


def cooling_states(root: Path) -> list[int]:
    """States of the GPU's cooling, which are above zero while it throttles; empty: not told."""
    found: list[int] = []
    for device in (root / "sys/class/thermal").glob("cooling_device*"):
        kind = _text(device / "type").strip()
        if _GPU_NAME.search(kind) or kind.endswith("throttle-alert"):
            found.append(_integer(device / "cur_state"))
    return found


class Tegrastats:
    """A running tegrastats, of which `latest` gives the newest line. Not thread-safe.

    Raises:
        OSError: the tool is missing.
    """

    def __init__(self, command: str = "tegrastats", interval_ms: int = 500) -> None:
        self._process = subprocess.Popen(
            [command, "--interval", str(interval_ms)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._rest = b""
        self._last: Stats | None = None

    def latest(self) -> Stats | None:
        """The newest complete line; None: there is none yet. Does not wait."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self._pipe, _LINE_BYTES)
                if not data:
                    break
                *lines, self._rest = (self._rest + data).split(b"\n")
                if lines:
                    self._last = read_stats(lines[-1].decode(errors="replace"))
        return self._last

    def close(self) -> None:
        """End the tool. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _integer(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
