"""Ports for servers that a test starts in another process."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of loopback that nobody listens on now.

    It lies below the range that the kernel takes the near ends of connections from: between the
    answer and the moment when the server listens, a connection of any process could take one of
    that range. Drawn at random, so that tests in several processes do not meet.

    Raises:
        OSError: No port is free.
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
