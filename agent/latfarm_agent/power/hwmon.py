"""Power rails of a board: chips like INA3221 through hwmon, and NVIDIA's older IIO driver.

Sources: kernel documentation, hwmon/sysfs-interface.rst (millivolts, milliamperes, microwatts,
microjoules) and hwmon/ina3221.rst; NVIDIA Jetson Linux developer guide, "Clock Frequency and Power
Management", whose releases before 35 name rails in an IIO folder (milliwatts).

Which rail feeds the whole board depends on the board: `_WHOLE` names rails that feed all others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Sequence

from latfarm_agent.power.files import number, paths, text
from latfarm_agent.power.integration import COUNTER, POWER

CHIPS = ("ina3221", "ina2", "ina7", "ltc294", "pac19", "isl28", "scmi", "scpi", "amd_energy")
"""Prefixes of the drivers that measure what a board takes.

Other chips, for example of a graphics card, a disk, or a power supply with its losses, are used
only if the configuration names them.
"""

_WHOLE = ("VDD_IN", "POM_5V_IN", "5V_IN")
"""Labels of rails that feed the whole board."""

_WITHIN = frozenset({"VDDQ_VDD2_1V8AO"})
"""Rails that another rail of their board feeds (Jetson Orin: VIN_SYS_5V0)."""

_INA3221_CHANNELS = 3
"""Channels of an INA3221 that measure; later ones are sums."""

_CHANNELS = re.compile(r"(in|curr|power|energy)(\d+)_(input|average)")


class FileRail:
    """A rail that is read from files: a counter in mJ, or a power in mW."""

    def __init__(self, name: str, label: str, kind: str, read: Callable[[], float | None]) -> None:
        self.name = name
        self.label = label
        self.kind = kind
        self.step = 0.0
        self.read = read

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        return "" if self.read() is not None else f"{self.name} cannot be read"


class SumRail:
    """Several rails of a board as one: their powers are added."""

    kind = POWER
    step = 0.0

    def __init__(self, name: str, rails: Sequence[FileRail]) -> None:
        self.name = name
        self._rails = list(rails)

    def read(self) -> float | None:
        """Power in mW; None: a rail cannot be read."""
        values = [rail.read() for rail in self._rails]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        return next((text for text in (rail.obstacle() for rail in self._rails) if text), "")


def find_hwmon(root: Path) -> list[FileRail]:
    """All rails of all chips, in the order of chips and channels."""
    rails: list[FileRail] = []
    for chip in sorted(paths(root / "sys/class/hwmon", "hwmon*"), key=_by_number):
        rails += _chip_rails(chip)
    folder = root / "sys/bus/i2c/drivers/ina3221x"
    for device in paths(folder, "*/iio:device*") or paths(folder, "*/iio_device"):
        rails += _iio_rails(device)
    return _named_apart(rails)


def whole_of(rails: Sequence[FileRail]) -> FileRail | SumRail | None:
    """The rail that covers most of the board: its input, or the sum of its rails; None: no rail."""
    known = [rail for rail in rails if _chip(rail).startswith(CHIPS)]
    for label in _WHOLE:
        for rail in known:
            if rail.label == label:
                return rail
    powers = [rail for rail in known if rail.kind == POWER and rail.label not in _WITHIN]
    if len(powers) > 1:
        chips = list(dict.fromkeys(_chip(rail) for rail in powers))
        labels = [rail.name.partition(":")[2] for rail in powers]
        return SumRail(f"{'+'.join(chips)}:{'+'.join(labels)}", powers)
    if powers:
        return powers[0]
    return known[0] if known else None


def _chip_rails(folder: Path) -> list[FileRail]:
    chip = text(folder / "name") or text(folder / "device/name")
    if chip is None:
        return []
    channels: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _CHANNELS.fullmatch(path.name)
        if match:
            values = channels.setdefault(match[2], {})
            # The driver's average is preferred to the value of the moment, if it offers both.
            if match[3] == "average" or match[1] not in values:
                values[match[1]] = path
    rails: list[FileRail] = []
    for channel in sorted(channels, key=int):
        rail = _channel_rail(chip, folder, channel, channels[channel])
        if rail is not None:
            rails.append(rail)
    return rails


def _channel_rail(chip: str, folder: Path, channel: str, files: dict[str, Path]) -> FileRail | None:
    label = ""
    for kind in ("energy", "power", "in", "curr"):
        label = label or text(folder / f"{kind}{channel}_label") or ""
    # Not connected, switched off, or a sum of others (after the third channel of an INA3221).
    if label == "NC" or text(folder / f"in{channel}_enable") == "0":
        return None
    if chip == "ina3221" and int(channel) > _INA3221_CHANNELS:
        return None
    name = f"{chip}:{label or channel}"
    if "energy" in files:
        return FileRail(name, label, COUNTER, lambda: _scaled(files["energy"], 1e-3))
    if "power" in files:
        return FileRail(name, label, POWER, lambda: _scaled(files["power"], 1e-3))
    if "in" in files and "curr" in files:
        return FileRail(name, label, POWER, lambda: _product(files["in"], files["curr"]))
    return None


def _iio_rails(device: Path) -> list[FileRail]:
    rails: list[FileRail] = []
    for path in sorted(device.glob("in_power*_input")):
        channel = path.name[len("in_power") : -len("_input")]
        label = text(device / f"rail_name_{channel}")
        if label is not None and channel.isdigit():
            rails.append(
                FileRail(f"ina3221:{label}", label, POWER, lambda path=path: _scaled(path, 1.0))  # type: ignore[misc]
            )
    return rails


def _named_apart(rails: Sequence[FileRail]) -> list[FileRail]:
    seen: dict[str, int] = {}
    for rail in rails:
        seen[rail.name] = seen.get(rail.name, 0) + 1
        if seen[rail.name] > 1:
            rail.name = f"{rail.name}#{seen[rail.name]}"
    return list(rails)


def _chip(rail: FileRail) -> str:
    return rail.name.partition(":")[0]


def _scaled(path: Path, factor: float) -> float | None:
    value = number(path)
    return None if value is None else value * factor


def _product(volts: Path, amperes: Path) -> float | None:
    """Power in mW from a file with mV and a file with mA."""
    millivolts, milliamperes = number(volts), number(amperes)
    if millivolts is None or milliamperes is None:
        return None
    return millivolts * milliamperes / 1e3


def _by_number(folder: Path) -> int:
    digits = folder.name[len("hwmon") :]
    return int(digits) if digits.isdigit() else 0
