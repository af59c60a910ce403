"""Options of the runtimes that compute on GPUs, and which of a board's GPUs they offer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping

from latfarm_agent.runtimes.base import RuntimeFailure

_SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader|portable computing|pocl", re.I)


@dataclass(frozen=True)
class Gpu:
    """A device. `index`: in the order of the interface that found it; `software`: a CPU acts it."""

    index: int
    name: str
    driver: str
    software: bool


def is_software(*names: str) -> bool:
    """Whether one of a device's names is that of a driver which computes on the CPU."""
    return any(_SOFTWARE.search(name) for name in names)


def read_options(
    runtime: str, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Options as the agent's configuration gives them, the others by default.

    A default says the type; a tuple of texts says what there is, the first is the default.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, naming the option that is unknown or ill-typed.
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
