"""Power rails from RAPL: energy counters of x86 packages in Linux' powercap folder.

Source: kernel documentation, power/powercap/powercap.rst and ABI/testing/sysfs-class-powercap. The
counters are in microjoules, and restart after `max_energy_range_uj`, which takes an hour or longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from latfarm_agent.power.files import number, paths, text
from latfarm_agent.power.integration import COUNTER

FOLDER = "sys/class/powercap"
"""Folder of the counters below the root folder."""


class RaplRail:
    """Zones of RAPL as one counter: their energies are added.

    Args:
        zones: folders with a file `energy_uj`; no zone contains another one.
    """

    kind = COUNTER
    step = 0.0

    def __init__(self, name: str, zones: Sequence[Path]) -> None:
        self.name = name
        self._zones = list(zones)
        self._sizes_uj = [number(zone / "max_energy_range_uj") or 0.0 for zone in zones]
        self._last_uj: list[float] | None = None
        self._turned_uj = [0.0] * len(self._zones)

    def read(self) -> float | None:
        """Energy in mJ since some start; None: a zone cannot be read."""
        now_uj: list[float] = []
        for zone in self._zones:
            value = number(zone / "energy_uj")
            if value is None:
                return None
            now_uj.append(value)
        for index, (before, now) in enumerate(zip(self._last_uj or now_uj, now_uj)):
            if now < before:
                # The counter has restarted. It takes an hour, so that samples never miss a restart.
                self._turned_uj[index] += self._sizes_uj[index]
        self._last_uj = now_uj
        return (sum(now_uj) + sum(self._turned_uj)) / 1e3

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        for zone in self._zones:
            if number(zone / "energy_uj") is None:
                return (
                    f"{zone / 'energy_uj'} may not be read: only root may, unless its mode is "
                    "changed at boot"
                )
        return ""


def find_rapl(root: Path) -> list[RaplRail]:
    """The rails of RAPL: first all packages together with their memory, then each zone alone.

    The counter of a package covers its cores and graphics, but not its memory, which has a counter
    of its own. `psys` would cover more, but many boards do not connect it, so it is used only if
    the configuration names it.
    """
    folder = root / FOLDER
    tops = sorted(paths(folder, "intel-rapl:*[0-9]"), key=lambda zone: zone.name)
    zones = [zone for zone in tops if (zone / "energy_uj").exists()]
    packages = [zone for zone in zones if (text(zone / "name") or "").startswith("package-")]
    memory = [zone for zone in zones if text(zone / "name") == "dram"]
    found: list[RaplRail] = []
    whole = packages + memory
    if packages:
        names = [_label(zone, zones) for zone in whole]
        found.append(RaplRail("rapl:" + "+".join(names), whole))
    alone = [RaplRail(f"rapl:{_label(zone, zones)}", [zone]) for zone in zones]
    known = {rail.name for rail in found}
    return found + [rail for rail in alone if rail.name not in known]


def _label(zone: Path, zones: Sequence[Path]) -> str:
    """The name of a zone, with the number of its package if several zones have that name."""
    own = text(zone / "name") or zone.name
    if sum(text(other / "name") == own for other in zones) < 2:
        return own
    return f"{own}@{zone.name.split(':')[1]}"
