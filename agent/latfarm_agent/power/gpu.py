"""The power rail of an NVIDIA GPU, through NVML: an energy counter since Volta, else its power.

Source: NVML API reference, nvmlDeviceGetTotalEnergyConsumption (mJ since the driver was loaded) and
nvmlDeviceGetPowerUsage (mW, averaged over a second on recent GPUs).
"""

from __future__ import annotations

from typing import Protocol

from latfarm_agent.power.integration import COUNTER, POWER


class NvmlPower(Protocol):
    """The functions of NVML that are needed; `nvml.open_nvml` gives an object with them."""

    def power_mw(self, index: int, /) -> float | None:
        """Power of a GPU in milliwatts; None: not told."""
        ...

    def energy_mj(self, index: int, /) -> float | None:
        """Energy of a GPU in millijoules since its driver was loaded; None: not told."""
        ...


class NvmlRail:
    """The rail of one GPU. Its counter has a resolution of one millijoule."""

    def __init__(self, nvml: NvmlPower, index: int) -> None:
        self.name = f"nvml:{index}"
        self._nvml = nvml
        self._index = index
        counts = nvml.energy_mj(index) is not None
        self.kind = COUNTER if counts else POWER
        self.step = 1.0 if counts else 0.0

    def read(self) -> float | None:
        """Energy in mJ if there is a counter, else power in mW; None: the GPU tells neither."""
        if self.kind == COUNTER:
            return self._nvml.energy_mj(self._index)
        return self._nvml.power_mw(self._index)

    def obstacle(self) -> str:
        """Why it cannot be read now; empty where it can."""
        if self.read() is not None:
            return ""
        return f"{self.name} tells neither its energy nor its power"


def find_nvml(nvml: NvmlPower | None) -> list[NvmlRail]:
    """A rail for each GPU that tells its energy or power, up to the first one that does not."""
    rails: list[NvmlRail] = []
    while nvml is not None:
        rail = NvmlRail(nvml, len(rails))
        if rail.read() is None:
            break
        rails.append(rail)
    return rails
