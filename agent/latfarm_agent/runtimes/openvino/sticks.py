"""Neural Compute Sticks 2: which of them is used, what it is, and what it cannot do.

Every function takes a core or a network of OpenVINO's old Inference Engine, and imports none of it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping

from latfarm_agent.runtimes.base import RuntimeFailure

MYRIAD = "MYRIAD"
"""The kind of device that a stick is, as the engine names it."""

_NOT_ON_A_STICK = ("I64", "U64", "I16", "BOOL")
"""Types of inputs that a stick does not have."""


def kind(device: str) -> str:
    """The kind of a device: MYRIAD for MYRIAD.1.2-ma2480."""
    return device.split(".")[0]


def ids(core: Any) -> tuple[str, ...]:
    """Return the ids of the sticks ("1.2-ma2480").

    The core's list of devices does not have the id if only one stick is plugged in.
    """
    return tuple(str(name) for name in core.get_metric(MYRIAD, "AVAILABLE_DEVICES"))


def chip(core: Any, stick: str) -> str:
    """Return the chip of the stick ("ma2480"), which is the end of its id."""
    names = [stick] if "." in stick else list(ids(core))
    return names[0].rpartition("-")[2] if names and "-" in names[0] else ""


def thermal(network: Any) -> str:
    """Return the temperature of the stick in degrees Celsius."""
    try:
        return f"{float(network.get_metric('DEVICE_THERMAL')):.1f}"
    except Exception:
        return "unknown"  # if the stick is gone, the next run fails and says so


def chosen(core: Any, pinned: str) -> str:
    """Return the name of the stick to use, empty if none is plugged in.

    Args:
        core: the engine's core.
        pinned: the stick of the configuration; empty: the first by name.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if the stick of the configuration is not plugged in.
    """
    found = sorted(name for name in core.available_devices if kind(name) == MYRIAD)
    if not pinned:
        return found[0] if found else ""
    if pinned in found or (found == [MYRIAD] and pinned.endswith(ids(core))):
        return pinned
    raise RuntimeFailure(
        "RUNTIME_MISSING",
        f"the stick {pinned!r} is not plugged in (found: {', '.join(found) or 'none'}); "
        "plug it in, or change the runtime's option device",
    )


def narrow_inputs(network: Any) -> None:
    """Set the types of the inputs to those that a stick supports: it has no 64-bit integers."""
    for info in network.input_info.values():
        if info.precision in _NOT_ON_A_STICK:
            info.precision = "I32"


class StickConditions(Mapping[str, str]):
    """Conditions of a session on a stick: its name, and its temperature before and after.

    The temperature after the session is read when the condition is read.
    """

    def __init__(self, device: str, thermal: Callable[[], str]) -> None:
        self._thermal = thermal
        self._fixed = {"device": device, "device_temperature_c_before": thermal()}

    def __getitem__(self, name: str) -> str:
        if name == "device_temperature_c_after":
            return self._thermal()
        return self._fixed[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._fixed
        yield "device_temperature_c_after"

    def __len__(self) -> int:
        return len(self._fixed) + 1
