"""Options of the runtimes that compute on GPUs, and which GPUs are only emulated by software."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping

from latfarm_agent.runtimes.base import RuntimeFailure

_SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader|portable computing|pocl", re.I)


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    `index`: its number in the order of the interface that found it, OpenCL or Vulkan. `software`:
    the driver emulates a GPU on the CPU.
    """

    index: int
    name: str
    driver: str
    software: bool


def is_software(*names: str) -> bool:
    """Whether one of the names of a device shows that its driver computes on the CPU."""
    return any(_SOFTWARE.search(name) for name in names)


def read_options(
    runtime: str, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all options of a runtime: the given ones, and the defaults of the others.

    Args:
        runtime: name of the runtime, for error messages.
        given: options from the agent's configuration.
        defaults: all options of the runtime. A value is the default and sets the type; a tuple of
            texts lists all allowed values, of which the first is the default.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, naming the option that is unknown or has a wrong value.
    """
    made = {
        name: value[0] if isinstance(value, tuple) else value for name, value in defaults.items()
    }
    for name, value in given.items():
        if name not in defaults:
            raise RuntimeFailure(
                "RUNTIME_MISSING",
                f"{runtime} has no option {name!r}; remove it, or use one of: {', '.join(made)}",
            )
        wanted = defaults[name]
        if isinstance(wanted, tuple):
            right, shown = value in wanted, " or ".join(f'"{each}"' for each in wanted)
        elif isinstance(wanted, bool):
            right, shown = isinstance(value, bool), "true or false"
        else:
            right, shown = isinstance(value, str), "a text"
        if not right:
            raise RuntimeFailure(
                "RUNTIME_MISSING", f"{runtime}'s option {name!r} is {value!r}; set it to {shown}"
            )
        made[name] = value
    return made
