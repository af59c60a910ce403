"""Attacks the ports of the agent and the controller with malformed bytes, plain and behind TLS.

There are three ports: the agent without TLS, the agent behind its gate, and the controller behind
its gate. The attacks are raw bytes, damaged HTTP/2 frames, gRPC calls with garbage for messages,
unknown methods, huge headers, and clients that fall silent in the middle. Afterwards each process
must be alive, must not have grown beyond its bound, must not have answered a client without a
certificate, and must answer a real call.

    python -m benchmarks.fuzzing.ports --frames 100000 --write benchmarks/fuzz_ports.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import psutil
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.tls import ControllerTlsFiles

from benchmarks.fuzzing.attacks import Port, bombard
from benchmarks.fuzzing.frames import INSIDE, OUTSIDE
from benchmarks.fuzzing.processes import agent, controller

GROWTH_BYTES = 96 << 20
"""How much a process may grow, in bytes: gRPC and the allocator keep some memory."""
LATE_GROWTH_BYTES = 32 << 20
"""How much it may grow in the second half of the attack, in bytes."""


def check(port: Port, before_bytes: int) -> None:
    """Check that a process survived: it lives, has not grown, and works.

    A client without a certificate must not have got an answer in HTTP/2.

    Raises:
        AssertionError: one of these does not hold.
    """
    assert port.process.is_running(), f"{port.name} is gone"
    assert port.process.status() != psutil.STATUS_ZOMBIE, f"{port.name} died"
    port.grown_bytes = port.process.memory_info().rss - before_bytes
    assert port.grown_bytes < GROWTH_BYTES, f"{port.name} grew by {port.grown_bytes} bytes"
    inside = [name for name in port.answers if "outside" in name and "HTTP/2" in name]
    assert not inside, f"{port.name} let somebody in: {inside}"
    port.works()


def play(port: Port, frames: int, seed: int) -> dict[str, Any]:
    """Carry out all attacks on one port.

    Args:
        port: the port.
        frames: number of pieces to send.
        seed: random seed.

    Returns:
        What was sent, answered and measured, as plain JSON types.

    Raises:
        AssertionError: the process did not survive.
    """
    dice = random.Random(seed)
    port.works()
    for kind in INSIDE:  # memory that the first attacks allocate is not growth
        bombard(port, kind, 30, dice, inside=True)
    before_bytes = port.process.memory_info().rss
    kinds = [(kind, True) for kind in INSIDE]
    if port.files is None:
        kinds.append(("raw", True))
    else:
        kinds += [(kind, False) for kind in OUTSIDE]
    began_s = time.monotonic()
    halves = []
    for _ in range(2):
        for kind, inside in kinds:
            bombard(port, kind, -(-frames // (2 * len(kinds))), dice, inside=inside)
        halves.append(port.process.memory_info().rss)
    check(port, before_bytes)
    # The first half fills the pools of gRPC and the allocator's arenas of all threads.
    late_bytes = halves[1] - halves[0]
    assert late_bytes < LATE_GROWTH_BYTES, f"{port.name} still grows: {late_bytes} bytes"
    return {
        "port": port.name,
        "frames": sum(port.sent.values()),
        "sent": dict(sorted(port.sent.items())),
        "answers": dict(sorted(port.answers.items())),
        "memory_before_bytes": before_bytes,
        "memory_growth_bytes": port.grown_bytes,
        "memory_growth_second_half_bytes": late_bytes,
        "seconds": round(time.monotonic() - began_s, 1),
        "works_afterwards": True,
    }


def run(frames: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Attack all ports with `frames` pieces in total.

    Args:
        frames: number of pieces.
        seed: random seed.
        folder: for the homes of the processes.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    authority = Authority(folder / "tls")
    authority.init()
    authority.issue("toy", "agent", ["127.0.0.1"])
    authority.issue("ada", "operator")
    ours = ControllerTlsFiles(
        authority.cert, folder / "tls/controller.crt", folder / "tls/controller.key"
    )
    share = -(-frames // 3)
    found = []
    with agent(folder / "plain", None, None) as port:
        found.append(play(port, share, seed))
    with agent(folder / "proven", ours, ours.files) as port:
        found.append(play(port, share, seed + 1))
    with controller(folder) as port:
        found.append(play(port, share, seed + 2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="latfarm-fuzz-") as folder:
        found = run(arguments.frames, arguments.seed, Path(folder))
    result = {
        "frames": sum(part["frames"] for part in found),
        "seed": arguments.seed,
        "python": sys.version.split()[0],
        "grpc": grpc.__version__,
        "openssl": ssl.OPENSSL_VERSION,
        "ports": found,
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        arguments.write.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
