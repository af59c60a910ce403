"""Agents of simulated boards, requests for them, and the processes of a farm on Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.processes import cleanup
from latfarm_controller.farm.processes.backends import RayBackend
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.measurement import Settings

PLATFORM = "simulated-ray"
QUICK = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=3, max_ms=1.0)


@contextmanager
def two_boards(folder: Path, measure_ms: int = 5, noise: float = 0.0) -> Iterator[list[BoardEntry]]:
    """Two agents, whose boards refuse Tanh."""
    with ExitStack() as stack:
        entries = []
        for name in ("one", "two"):
            profile = folder / f"{name}.json"
            profile.write_text(
                json.dumps(
                    {
                        "platform": PLATFORM,
                        "unsupported_ops": ["Tanh"],
                        "measure_ms": measure_ms,
                        "noise": noise,
                    }
                )
            )
            options = LocalAgentOptions(
                state_dir=folder / name,
                log_path=folder / f"{name}.log",
                name=name,
                hardware=name,
                simulate=profile,
            )
            entries.append(BoardEntry(name, stack.enter_context(LocalAgent(options)).address))
        yield entries


def request(number: int, op: str = "relu", *, constant: bool = False) -> MeasurementRequest:
    builder = GraphBuilder(f"g{number}")
    x = builder.input((1, 4, 8, 8 + number))
    x = getattr(builder, op)(builder.conv(x, 4, 3))
    if constant:
        kind = builder.type_of(x)
        values = tuple(float(value) for value in range(kind.elements))
        x = builder.add(x, builder.weight(kind.shape, values=values))
    return MeasurementRequest(builder.build([x]), PLATFORM, "kernel", QUICK)


def large_request(number: int) -> MeasurementRequest:
    """A request whose model is too large to travel inside its order."""
    return request(2 * (number + 300), constant=True)


def shard_pids(backend: RayBackend) -> list[int]:
    """The ids of the processes of shards."""
    return [pid for pid in processes_of(backend) if "ActorShard" in command_line(pid)]


def pid_of(backend: RayBackend, name: str) -> int:
    """The id of a process of Ray whose program has that name."""
    pids = [pid for pid in processes_of(backend) if name in command_line(pid).partition(" ")[0]]
    return pids[0]


def command_line(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def processes_of(backend: RayBackend) -> list[int]:
    """The ids of Ray's processes."""
    run = backend.keeper.run
    return [] if run is None else cleanup.marked(run.mark.encode())


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
