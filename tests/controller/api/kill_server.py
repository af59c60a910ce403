"""A serving controller that writes the rows which it is told to, for `test_database_kills.py`.

Usage: `python kill_server.py`, in the environment of a home. It prints its address, then reads a
number from each line of its standard input, writes a measurement of that latency as a campaign
would, and prints the number again once the write is acknowledged.
"""

from __future__ import annotations

import asyncio
import sys

from latfarm_controller.api.server import ControllerServer
from latfarm_controller.config import load_config
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

PLATFORM = "toy-sim1.0-fp32-1t"


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


async def main() -> None:
    """Serve until standard input ends."""
    server = await ControllerServer.open(load_config(), public=True)
    print(server.address, flush=True)
    await asyncio.to_thread(write, server.store)
    await server.close()


if __name__ == "__main__":
    asyncio.run(main())
