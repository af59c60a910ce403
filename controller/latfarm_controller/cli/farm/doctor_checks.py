"""Checks of this machine: what it has and lacks, and the remedies. They change nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import psutil

from latfarm_controller.store.lock import find_holder

if TYPE_CHECKING:
    from latfarm_controller.config import ControllerConfig

OK, WARNING, MISSING = "ok", "warning", "missing"
DESCRIBE_S = 120.0
"""Longest time that this machine's agent may take to describe itself, in seconds."""
GIB = 2**30
LEAST_MEMORY_BYTES = 4 * GIB
"""Available memory that the largest networks of the zoo need."""
LEAST_DISK_BYTES = 5 * GIB
"""Free disk space below which a warning is due: Ray, models and the store need some GiB."""
RECOMMENDED_CORES = 2
"""One core measures, the other one runs the controller."""
# Python packages that the controller cannot work without.
PACKAGES = ("ray", "duckdb", "grpcio", "protobuf", "onnx", "scikit-learn", "lightgbm", "pyarrow")
HARMLESS = {"simulated"}
"""Runtimes that a machine need not have: simulated boards exist for tests."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its state (ok | warning | missing), what was found, the remedy."""

    name: str
    state: str
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return asdict(self)


def examine(config: ControllerConfig) -> Iterator[Finding]:
    """Run all checks, one after the other."""
    yield _python()
    yield _cores()
    yield _memory()
    yield _disk(config)
    yield from _packages()
    yield _store(config)
    yield from _board()


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    state = OK if sys.version_info >= (3, 11) else MISSING
    return Finding("python", state, version, "" if state == OK else "install Python 3.11 or newer")


def _cores() -> Finding:
    cores = os.cpu_count() or 1
    if cores >= RECOMMENDED_CORES:
        return Finding("cores", OK, str(cores))
    return Finding(
        "cores",
        WARNING,
        str(cores),
        "use a machine with two cores: on one core the controller disturbs measurements",
    )


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available"
    if memory.available >= LEAST_MEMORY_BYTES:
        return Finding("memory", OK, text)
    return Finding("memory", WARNING, text, "free some memory: the largest networks need 4 GiB")


def _disk(config: ControllerConfig) -> Finding:
    place = config.home
    while not os.path.lexists(place):
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK) or not place.is_dir():
        text = f"{config.home} cannot be written"
        return Finding("disk", MISSING, text, "set LATFARM_HOME to a folder that you may write")
    free = shutil.disk_usage(place).free
    text = f"{free / GIB:.1f} GiB free for {config.home}"
    if free >= LEAST_DISK_BYTES:
        return Finding("disk", OK, text)
    return Finding(
        "disk", WARNING, text, "free some space, or set LATFARM_HOME to a folder on a larger disk"
    )


def _packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(name, OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, MISSING, "not installed", f"pip install {name}, or: make setup")


def _store(config: ControllerConfig) -> Finding:
    holder = find_holder(config.lock_file)
    if holder is None:
        return Finding("store", OK, f"{config.store_file}, which no process holds")
    where = f", serving on {holder.address}" if holder.address else ""
    return Finding("store", OK, f"{config.store_file}, held by {holder}{where}")


def _protection(told: Mapping[str, str]) -> Finding:
    """What the kernel keeps from the workers of this machine."""
    lacking = [f"{name} {text}" for name, text in told.items() if not text.startswith("on")]
    if not told:
        return Finding("protection", WARNING, "not told", "install a newer latfarm-agent")
    if lacking:
        remedy = "see `latfarm-agent doctor` and docs/security.md"
        return Finding("protection", WARNING, "; ".join(lacking), remedy)
    return Finding("protection", OK, "; ".join(f"{name} {text}" for name, text in told.items()))


def _no_agent(story: str) -> Finding:
    """An agent that is not installed, or that fails.

    Args:
        story: what it wrote to standard error.
    """
    last = (story.strip().splitlines() or ["no output"])[-1]
    if find_spec("latfarm_agent") is None:
        remedy = "pip install latfarm-agent, or: make setup"
        return Finding("agent", MISSING, "not installed", remedy)
    return Finding("agent", MISSING, last, "see the whole story with: latfarm-agent describe")


def _board() -> Iterator[Finding]:
    """What the agent of this machine says about itself; it runs as a process of its own."""
    # -P: whatever modules the present folder has
    words = ("latfarm_agent.cli", "describe", "--name", "local", "--json")
    command = [sys.executable, "-P", "-m", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DESCRIBE_S, check=True
        )
        data = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        slow = f"it did not describe itself within {DESCRIBE_S:.0f} s"
        yield Finding("agent", WARNING, slow, "try again when this machine has less to do")
        return
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield _no_agent(getattr(error, "stderr", None) or str(error))
        return
    for runtime in data["runtimes"]:
        name = f"runtime {runtime['name']}"
        if runtime["available"]:
            platforms = ", ".join(platform["name"] for platform in runtime["platforms"])
            yield Finding(name, OK, f"{runtime['version']}: {platforms}")
        elif runtime["name"] in HARMLESS:
            yield Finding(name, OK, runtime["missing"])
        else:
            yield Finding(name, WARNING, "not usable", runtime["missing"])
    yield _protection(data["board"].get("protection", {}))
    conditions = data["board"]["conditions"]
    unknown = sorted(name for name, value in conditions.items() if value == "unknown")
    known = ", ".join(f"{k} {v}" for k, v in sorted(conditions.items()) if v != "unknown")
    if conditions.get("throttled") == "yes":
        yield Finding(
            "throttling",
            WARNING,
            "this machine throttles now",
            "cool it, or give it a stronger supply: latencies contain what throttling takes",
        )
    if unknown:
        yield Finding(
            "sensors",
            WARNING,
            f"{known}; unknown: {', '.join(unknown)}",
            "virtual machines hide sensors: expect noise, and trust intervals more than single "
            "figures",
        )
    else:
        yield Finding("sensors", OK, known)
