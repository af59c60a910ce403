"""Ports for servers that a test starts in another process."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
"""Lowest port that `free_port` returns; many services have fixed ports below it."""

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A TCP port of the loopback interface on which no process listens now.

    The port is below the range from which the kernel takes local ports of connections: a connection
    of any process could take a port of that range before the server listens. The port is chosen at
    random, so that tests in several processes get different ones.

    Raises:
        OSError: no port is free.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    ports = range(_LOWEST, first)
    for port in random.sample(ports, len(ports)):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(f"no port of {_LOWEST}-{first} is free")
