"""The agent's configuration file: thread counts, and what each runtime is given.

```json
{
  "threads": [1, 2, 4],
  "runtimes": {
    "tflite": {"options": {"delegates": [{"name": "vx", "library": "/usr/lib/libvx_delegate.so"}]}},
    "openvino2021": {"python": "/opt/ncs2/bin/python"},
    "vela": {"enabled": false}
  },
  "power": {"rails": ["ina3221:VDD_IN"], "hz": 50}
}
```

This module checks the structure of the file only. A runtime checks its own options in its worker,
and is reported as missing if they are wrong.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Mapping

from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.power.rails import PowerConfig

MOST_THREADS = 1024
"""Highest number of threads that a configuration may ask for."""


@dataclass(frozen=True)
class RuntimeConfig:
    """The settings of one runtime.

    Attributes:
        python: interpreter of its workers, where its library needs an environment of its own;
            empty: the agent's interpreter.
        options: keyword arguments of its class.
        enabled: False: the runtime is not looked for at all.
    """

    python: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True)
class AgentConfig:
    """The whole configuration file.

    Attributes:
        threads: each platform of the CPU is offered once for each of these numbers of threads.
        runtimes: the settings of runtimes by their names.
        power: which power rails are read to measure energy.
        confinement: what the kernel keeps from workers.
    """

    threads: tuple[int, ...] = (1,)
    runtimes: Mapping[str, RuntimeConfig] = field(default_factory=dict)
    power: PowerConfig = field(default_factory=PowerConfig)
    confinement: Confinement = field(default_factory=Confinement)


def read_config(path: Path) -> AgentConfig:
    """Read a configuration file.

    Raises:
        AgentUsageError: it cannot be read, or a value is wrong; the message says which value, and
            what belongs there.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise AgentUsageError(
            f"--config {path}: cannot be read: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise AgentUsageError(f"--config {path}: is not JSON: {error}") from error
    try:
        return _config(data)
    except AgentUsageError as error:
        raise AgentUsageError(f"--config {path}: {error}") from None


def parse_threads(text: str) -> tuple[int, ...]:
    """Thread counts from the text of a flag, such as "1,2,4".

    Raises:
        AgentUsageError: the text is not such a list.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise AgentUsageError(
            f"--threads {text!r}: must be numbers separated by commas, for example 1,2,4"
        )
    return _threads([int(word) for word in words], "--threads")


def check_names(config: AgentConfig, known: Iterable[str]) -> None:
    """Refuse settings for runtimes that are not registered.

    Raises:
        AgentUsageError: a name is not registered; the message proposes the nearest known one.
    """
    names = sorted(known)
    for name in config.runtimes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
            raise AgentUsageError(f"--config: no runtime {name!r} is registered; {hint}")


def _config(data: Any) -> AgentConfig:
    known = _object(data, "the file", ("threads", "runtimes", "power", "confinement"))
    entries = known.get("runtimes", {})
    if not isinstance(entries, dict):
        raise AgentUsageError("runtimes must be an object, runtime name to its settings")
    return AgentConfig(
        threads=_threads(known.get("threads", [1]), "threads"),
        runtimes={name: _runtime(name, entry) for name, entry in entries.items()},
        power=PowerConfig.from_json(known.get("power", {})),
        confinement=_confinement(known.get("confinement", {})),
    )


def _confinement(data: Any) -> Confinement:
    known = _object(data, "confinement", ("enabled", "read", "write", "unix_sockets"))
    for name in ("enabled", "unix_sockets"):
        if not isinstance(known.get(name, True), bool):
            raise AgentUsageError(f"confinement.{name} must be true or false")
    for name in ("read", "write"):
        paths = known.get(name, [])
        right = isinstance(paths, list) and all(isinstance(path, str) for path in paths)
        if not right or not all(Path(path).is_absolute() for path in paths):
            raise AgentUsageError(f"confinement.{name} must be a list of absolute paths")
    return Confinement.from_json(known)


def _runtime(name: str, data: Any) -> RuntimeConfig:
    where = f"runtimes.{name}"
    known = _object(data, where, ("python", "options", "enabled"))
    python = known.get("python", "")
    options = known.get("options", {})
    enabled = known.get("enabled", True)
    if not isinstance(python, str) or (python and not Path(python).is_absolute()):
        raise AgentUsageError(f"{where}.python must be the absolute path of an interpreter")
    if not isinstance(options, dict):
        raise AgentUsageError(f"{where}.options must be an object")
    if "threads" in options:
        raise AgentUsageError(f"{where}.options.threads: thread counts are set at the top, for all")
    if not isinstance(enabled, bool):
        raise AgentUsageError(f"{where}.enabled must be true or false")
    return RuntimeConfig(python, options, enabled)


def _object(data: Any, where: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise AgentUsageError(f"{where} must be an object")
    for key in data:
        if key not in keys:
            raise AgentUsageError(f"{where} has an unknown key {key!r}; known: {', '.join(keys)}")
    return data


def _threads(values: Any, where: str) -> tuple[int, ...]:
    right = isinstance(values, list) and values
    if not right or not all(
        isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_THREADS
        for value in values
    ):
        raise AgentUsageError(f"{where} must be a list of thread counts from 1 to {MOST_THREADS}")
    return tuple(dict.fromkeys(values))
