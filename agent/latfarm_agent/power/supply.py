"""Batteries and inputs of phones and boards through Linux' power_supply class.

Source: kernel documentation, ABI/testing/sysfs-class-power: microamperes, microvolts, microwatts.
A fuel gauge renews its values once a second or less often, and only what leaves the battery tells
what the board takes: while it charges, or runs on the charger, there is no figure.
"""

from __future__ import annotations

from pathlib import Path

from latfarm_agent.power.files import number, paths, text
from latfarm_agent.power.integration import POWER

FOLDER = "sys/class/power_supply"


class BatteryRail:
    """A battery that is being discharged. The sign of its current is the maker's choice."""

    kind = POWER
    step = 0.0

    def __init__(self, folder: Path) -> None:
        self.name = f"power_supply:{folder.name}"
        self._folder = folder

    def read(self) -> float | None:
        """Power in mW; None while it is not the battery that feeds the board."""
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
    """A board's own input (mains or USB) whose controller measures it, and no battery behind it."""

    kind = POWER
    step = 0.0

    def __init__(self, folder: Path) -> None:
        self.name = f"power_supply:{folder.name}"
        self._folder = folder

    def read(self) -> float | None:
        """Power in mW; None where it is not plugged in."""
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
