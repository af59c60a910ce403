"""Ports for servers that a test starts in another process."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
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
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many TCP ports in a row on which no process listens now; see `free_port`.

    Raises:
        OSError: there are not so many.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    firsts = range(_LOWEST, end - count + 1)
    for first in random.sample(firsts, len(firsts)):
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
                return first
        except OSError:
            continue
    raise OSError(f"no {count} ports in a row of {_LOWEST}-{end} are free")
