"""Power rails from batteries and inputs, through Linux' power_supply class.

Source: kernel documentation, ABI/testing/sysfs-class-power: microamperes, microvolts, microwatts.
A fuel gauge updates its values once a second or less often. It measures what leaves the battery, so
there is no value while the battery is charged or the board runs on its charger.
"""

from __future__ import annotations

from pathlib import Path

from latfarm_agent.power.files import number, paths, text
from latfarm_agent.power.integration import POWER

FOLDER = "sys/class/power_supply"
"""Folder of the supplies below the root folder."""


class BatteryRail:
    """A battery that is being discharged. Makers differ in the sign of its current."""

    kind = POWER
    step = 0.0

    def __init__(self, folder: Path) -> None:
        self.name = f"power_supply:{folder.name}"
        self._folder = folder

    def read(self) -> float | None:
        """Power in mW; None while the battery does not feed the board."""
        if text(self._folder / "status") != "Discharging":
            return None
        power_uw = _power_uw(self._folder)
        return None if power_uw is None else abs(power_uw) / 1e3

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        status = text(self._folder / "status") or "unknown"
        if status != "Discharging":
            return (
                f"{self.name} is {status.lower()}: what the board takes does not come from its "
                "battery alone; unplug the charger"
            )
        if _power_uw(self._folder) is None:
            return f"{self.name} tells no current"
        return ""


class InputRail:
    """The input of a board without a battery (mains or USB), which its controller measures."""

    kind = POWER
    step = 0.0

    def __init__(self, folder: Path) -> None:
        self.name = f"power_supply:{folder.name}"
        self._folder = folder

    def read(self) -> float | None:
        """Power in mW; None while it is not connected."""
        power_uw = _power_uw(self._folder) if number(self._folder / "online") else None
        return None if power_uw is None else abs(power_uw) / 1e3

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        return "" if self.read() is not None else f"{self.name} is not plugged in"


def find_power_supplies(root: Path) -> list[BatteryRail | InputRail]:
    """Batteries of the board itself, then, where it has none, inputs that tell their current."""
    batteries: list[BatteryRail | InputRail] = []
    inputs: list[BatteryRail | InputRail] = []
    for folder in paths(root / FOLDER, "*"):
        kind = text(folder / "type") or ""
        # A mouse's battery is a power supply too: of scope Device.
        if text(folder / "scope") == "Device" or text(folder / "present") == "0":
            continue
        if _power_uw(folder) is None:
            continue
        if kind == "Battery":
            batteries.append(BatteryRail(folder))
        elif kind:
            inputs.append(InputRail(folder))
    return batteries or inputs


def _power_uw(folder: Path) -> float | None:
    power_uw = number(folder / "power_now")
    if power_uw is not None:
        return power_uw
    current_ua, voltage_uv = number(folder / "current_now"), number(folder / "voltage_now")
    if current_ua is None or voltage_uv is None:
        return None
    return current_ua * voltage_uv / 1e6
