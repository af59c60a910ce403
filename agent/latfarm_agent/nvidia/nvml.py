"""NVIDIA's management library (NVML) through ctypes: clocks, temperature, throttling and power.

Needs no package: `libnvidia-ml.so.1` comes with the driver. Jetsons before JetPack 6 have none, and
newer ones answer a part of the questions: whatever a board does not tell is None.
Source: NVIDIA, "NVML API Reference Guide".
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

_GRAPHICS, _SM, _MEMORY = 0, 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # nvmlTemperatureSensors_t
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest text asked for

# nvmlClocksEventReasons. Others (idle, application clocks, display) are no throttling.
_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
POWER_CAP = _REASONS[0x04]
"""The clocks are lower because the board is at its power limit, which is usual under load."""


class Nvml:
    """An open NVML. Devices are counted from 0 in PCI order; methods may be called by any thread.

    Args:
        library: the loaded library, which `open_nvml` has initialised.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._open = True

    @property
    def driver(self) -> str | None:
        """Version of the driver, such as "560.35.03"."""
        return self._text("nvmlSystemGetDriverVersion")

    @property
    def count(self) -> int:
        """Number of devices."""
        found = ctypes.c_uint()
        return found.value if self._call("nvmlDeviceGetCount_v2", ctypes.byref(found)) else 0

    def index_of(self, bus_id: str) -> int | None:
        """Index of the device with a PCI address, as CUDA tells it ("0000:65:00.0")."""
        handle, index = ctypes.c_void_p(), ctypes.c_uint()
        told = self._call(
            "nvmlDeviceGetHandleByPciBusId_v2", bus_id.encode(), ctypes.byref(handle)
        ) and self._call("nvmlDeviceGetIndex", handle, ctypes.byref(index))
        return index.value if told else None

    def name(self, index: int) -> str | None:
        """Name of the device."""
        handle = self._handle(index)
        return None if handle is None else self._text("nvmlDeviceGetName", handle)

    def clock_mhz(self, index: int) -> float | None:
        """Clock of the multiprocessors now."""
        return self._number("nvmlDeviceGetClockInfo", index, _SM)

    def max_clock_mhz(self, index: int) -> float | None:
        """Highest clock of the multiprocessors."""
        return self._number("nvmlDeviceGetMaxClockInfo", index, _SM)

    def application_clock_mhz(self, index: int) -> float | None:
        """The clock that is set for applications, if one is set."""
        return self._number("nvmlDeviceGetApplicationsClock", index, _GRAPHICS)

    def memory_clock_mhz(self, index: int) -> float | None:
        """Clock of the device's memory now."""
        return self._number("nvmlDeviceGetClockInfo", index, _MEMORY)

    def temperature_c(self, index: int) -> float | None:
        """Temperature of the GPU in degrees Celsius."""
        return self._number("nvmlDeviceGetTemperature", index, _GPU_SENSOR)

    def throttle_reasons(self, index: int) -> tuple[str, ...] | None:
        """Why clocks are lower than asked for, which may be the power cap; None: not told."""
        handle = self._handle(index)
        if handle is None:
            return None
        mask = ctypes.c_ulonglong()
        # The first name exists since driver 535; the second one is older and still exists.
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            if self._call(name, handle, ctypes.byref(mask)):
                return tuple(text for bit, text in _REASONS.items() if mask.value & bit)
        return None

    def throttles(self, index: int) -> float | None:
        """Number of reasons that throttle the GPU now, without the power cap."""
        reasons = self.throttle_reasons(index)
        if reasons is None:
            return None
        return float(sum(reason != POWER_CAP for reason in reasons))

    def power_mw(self, index: int) -> float | None:
        """Power of the whole board in milliwatts."""
        return self._number("nvmlDeviceGetPowerUsage", index)

    def power_limit_mw(self, index: int) -> float | None:
        """The present power limit in milliwatts."""
        return self._number("nvmlDeviceGetEnforcedPowerLimit", index)

    def energy_mj(self, index: int) -> float | None:
        """Energy since the driver was loaded, in millijoules (Volta and newer)."""
        handle = self._handle(index)
        energy = ctypes.c_ulonglong()
        if handle is None or not self._call(
            "nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(energy)
        ):
            return None
        return float(energy.value)

    def persistence(self, index: int) -> bool | None:
        """Whether the driver stays loaded with its clocks while no program uses the device."""
        told = self._number("nvmlDeviceGetPersistenceMode", index)
        return None if told is None else told > 0

    def close(self) -> None:
        """Close the library; every method gives None from now on. Idempotent."""
        if self._open:
            self._call("nvmlShutdown")
            self._open = False

    def _handle(self, index: int) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        arguments = (ctypes.c_uint(index), ctypes.byref(handle))
        return handle if self._call("nvmlDeviceGetHandleByIndex_v2", *arguments) else None

    def _number(self, name: str, index: int, *kind: int) -> float | None:
        """The result of a function with the parameters (device, kinds..., unsigned int*)."""
        handle = self._handle(index)
        if handle is None:
            return None
        value = ctypes.c_uint()
        told = self._call(name, handle, *map(ctypes.c_int, kind), ctypes.byref(value))
        return float(value.value) if told else None

    def _text(self, name: str, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        if not self._call(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES)):
            return None
        return buffer.value.decode(errors="replace")

    def _call(self, name: str, *arguments: Any) -> bool:
        """Call a function; gives whether it exists and returned NVML_SUCCESS."""
        function = getattr(self._library, name, None) if self._open else None
        return function is not None and int(function(*arguments)) == 0


def open_nvml(library: str = LIBRARY) -> Nvml | None:
    """NVML, initialised; None: the library, the driver or a device is missing."""
    try:
        loaded: Any = ctypes.CDLL(library)
        ready = int(loaded.nvmlInit_v2()) == 0
    except (OSError, AttributeError):
        return None
    if not ready:
        return None
    nvml = Nvml(loaded)
    if nvml.count == 0:
        nvml.close()
        return None
    return nvml
