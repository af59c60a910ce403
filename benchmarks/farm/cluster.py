"""A Ray cluster of two nodes on this machine, of which one raylet is killed during a row."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_PROGRAM = """
import sys
from ray.cluster_utils import Cluster
args = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20,
        "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=args)
second = cluster.add_node(**args)
(raylet,) = second.all_processes["raylet"]
print(cluster.address, raylet.process.pid, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""Starts two nodes, tells the address and the id of the second raylet, and ends with its input."""

TRIES = 3
"""How often the cluster is started: a raylet gives its agents 15 s, which a slow start exceeds."""


class TwoRaylets:
    """A running cluster of two nodes.

    Args:
        address: `host:port` of the cluster.
        pid: of the process that started it.
        raylet: process id of the second node's raylet.
    """

    def __init__(self, address: str, pid: int, raylet: int) -> None:
        self.address = address
        self.pid = pid
        self._raylet = raylet
        self.killed = False

    @contextmanager
    def killed_after(self, wait_s: float) -> Iterator[None]:
        """Kill one raylet after so many seconds, unless the block has ended before."""
        timer = threading.Timer(wait_s, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def kill(self) -> None:
        """Kill the second node's raylet."""
        with suppress(ProcessLookupError):
            os.kill(self._raylet, signal.SIGKILL)
            self.killed = True


@contextmanager
def two_raylets() -> Iterator[TwoRaylets]:
    """A Ray cluster of two nodes of two cores; it ends with the block.

    Raises:
        RuntimeError: it cannot be started.
    """
    for _ in range(TRIES):
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},  # loopback alone
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            found = _told(process.stdout)
            if found is not None:
                yield TwoRaylets(found[1], process.pid, int(found[2]))
                return
    raise RuntimeError("a Ray cluster of two nodes cannot be started on this machine")


def _told(output: IO[str]) -> re.Match[str] | None:
    """The line with the address and the raylet; None if the process ended before."""
    for line in output:
        found = re.match(r"(127\.0\.0\.1:\d+) (\d+)$", line)
        if found is not None:
            return found
    return None
