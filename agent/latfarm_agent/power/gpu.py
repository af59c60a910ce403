"""What an NVIDIA GPU takes, through NVML: an energy counter since Volta, else its power.

Source: NVML API reference, nvmlDeviceGetTotalEnergyConsumption (mJ since the driver was loaded) and
nvmlDeviceGetPowerUsage (mW, averaged over a second on recent GPUs).
"""

from __future__ import annotations

from typing import Protocol

from latfarm_agent.power.integration import COUNTER, POWER


class NvmlPower(Protocol):
    """What is asked of NVML; `nvml.open_nvml` gives it."""

    def power_mw(self, index: int, /) -> float | None:
        """Power of a GPU."""
        ...

    def energy_mj(self, index: int, /) -> float | None:
        """Energy of a GPU since its driver was loaded."""
        ...


class NvmlRail:
    """One GPU. `step`: a counter of whole millijoules."""

    def __init__(self, nvml: NvmlPower, index: int) -> None:
        self.name = f"nvml:{index}"
        self._nvml = nvml
        self._index = index
        counts = nvml.energy_mj(index) is not None
        self.kind = COUNTER if counts else POWER
        self.step = 1.0 if counts else 0.0

    def read(self) -> float | None:
        """Energy in mJ by the counter, else power in mW; None where the GPU does not tell."""
        if self.kind == COUNTER:
            return self._nvml.energy_mj(self._index)
        return self._nvml.power_mw(self._index)

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        return "" if self.read() is not None else f"{self.name} tells neither energy nor power"


def find_nvml(nvml: NvmlPower | None) -> list[NvmlRail]:
    """A rail for each GPU that tells its energy or power, up to the first that does neither."""
    rails: list[NvmlRail] = []
    while nvml is not None:
        rail = NvmlRail(nvml, len(rails))
        if rail.read() is None:
            break
        rails.append(rail)
    return rails
