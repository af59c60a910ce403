"""How much slower a server answers while a campaign writes into its store.

A campaign writes in the process of the server, in a thread. So this module is also a program: a
server with such a thread, which starts to write when it reads a line, and stops at the next one.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from latfarm_controller.app.question import Question
from latfarm_controller.config import load_config

from benchmarks.query.store import PLATFORMS, measurement, network

if TYPE_CHECKING:
    from latfarm_controller.store.base import Store

ROWS_PER_S = 500
"""How many rows a second the campaign writes."""
BATCH = 50
"""How many rows it writes in one transaction."""
FIRST_NEW = 1 << 24
"""Number of the first measurement that is written; those of the store are below."""
END_S = 120.0
"""Longest wait for the end of the server, in seconds."""


def beside_writing(
    hits_ms: Callable[[Sequence[Question]], list[float]], asked: Sequence[Question]
) -> dict[str, float]:
    """Median time of a hit alone, and beside a campaign that writes, in milliseconds.

    Args:
        hits_ms: asks the running server, and returns how long each answer took.
        asked: the questions.
    """
    command = [sys.executable, "-m", "benchmarks.query.writer"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise SystemExit("the server that writes did not start")
            hits_ms(asked[:20])
            alone_ms = statistics.median(hits_ms(asked))
            print("write", file=process.stdin, flush=True)
            process.stdout.readline()  # it has written the first rows
            beside_ms = statistics.median(hits_ms(asked))
            print("stop", file=process.stdin, flush=True)
            rows_per_s = float(json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(END_S)
    return {
        "alone_ms": alone_ms,
        "beside_ms": beside_ms,
        "times": beside_ms / alone_ms,
        "rows_per_s": rows_per_s,
    }


def write(store: Store, began: threading.Event, stop: threading.Event) -> float:
    """Write rows until `stop` is set; returns how many a second were written."""
    graphs = [network(number) for number in range(BATCH)]
    campaign = f"written-{time.time_ns()}"  # what an earlier run has written is something else
    written, began_s = 0, time.monotonic()
    while not stop.is_set():
        told = [
            (measurement(graph, FIRST_NEW + written + number, PLATFORMS[0]), graph)
            for number, graph in enumerate(graphs)
        ]
        store.add_measurements(campaign, told)
        written += BATCH
        began.set()
        stop.wait(max(0.0, began_s + written / ROWS_PER_S - time.monotonic()))
    return written / (time.monotonic() - began_s)


async def serve() -> None:
    """Serve, and write while a person, or `beside_writing`, asks for it."""
    from latfarm_controller.api.server import ControllerServer

    server = await ControllerServer.open(load_config(), public=True)
    try:
        assert server._store is not None
        print("ready", flush=True)
        if await asyncio.to_thread(sys.stdin.readline):
            began, stop = threading.Event(), threading.Event()
            writing = asyncio.create_task(asyncio.to_thread(write, server._store, began, stop))
            await asyncio.to_thread(began.wait)
            print("writes", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            stop.set()
            print(json.dumps(await writing), flush=True)
    finally:
        await server.close()


if __name__ == "__main__":
    asyncio.run(serve())
