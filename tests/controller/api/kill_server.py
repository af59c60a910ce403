"""A serving controller that writes the rows which it is told to, for `test_database_kills.py`.

Usage: `python kill_server.py`, in the environment of a home. It prints its address, then reads a
number from each line of its standard input, writes a measurement of that latency as a campaign
would, and prints the number again once the write is acknowledged. Meanwhile it promotes one of two
models after the other, and notes each in a file once that is done.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from latfarm_controller.api.server import ControllerServer
from latfarm_controller.config import load_config
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.model_register import changed_register
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

PLATFORM = "toy-sim1.0-fp32-1t"
PROMOTED_PLATFORM = "promoted-sim1.0-fp32-1t"
"""The platform whose models are promoted."""
MODELS = ("0001", "0002")
"""The models that are promoted in turn."""
PROMOTIONS = "promotions"
"""File of the home with a line for each promotion that was done."""
PROMOTE_EVERY_S = 0.05
"""Pause between two promotions, in seconds, so that they do not hold up everything else."""


def relu(size: int) -> Graph:
    """A network of one op on so many values."""
    kind = TensorType("float32", (1, size))
    node = Node("n", "Relu", ("x",), ("y",))
    return Graph(f"relu-{size}", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})


def measured(size: int) -> tuple[Measurement, Graph]:
    """A measurement of `relu(size)`, whose latency in milliseconds is the size."""
    graph = relu(size)
    told = Measurement(
        f"r{size}",
        hash_of(graph),
        PLATFORM,
        "query",
        Outcome.OK,
        latency_ms=float(size),
        received_at_s=1e9 + size,
    )
    return told, graph


def write(store: DuckDBStore) -> None:
    """Write what standard input asks for, until it ends."""
    for line in sys.stdin:
        store.add_measurements("c", [measured(int(line))])
        print(int(line), flush=True)


def other(number: str) -> str:
    """The model that is promoted after that one."""
    return MODELS[number == MODELS[0]]


def promote(folder: Path, done: Path) -> None:
    """Promote one model after the other, until this process ends."""
    pause = threading.Event()
    while True:
        with changed_register(folder) as box:
            number = other(box[0].promoted)
            box[0] = box[0].promote(number, at_s=0.0)
        with done.open("a") as file:
            file.write(f"{number}\n")
        pause.wait(PROMOTE_EVERY_S)


async def main() -> None:
    """Serve until standard input ends."""
    config = load_config()
    server = await ControllerServer.open(config, public=True)
    goal = (config.bundles_dir / PROMOTED_PLATFORM, config.home / PROMOTIONS)
    threading.Thread(target=promote, args=goal, daemon=True).start()
    print(server.address, flush=True)
    await asyncio.to_thread(write, server.store)
    await server.close()


if __name__ == "__main__":
    asyncio.run(main())
