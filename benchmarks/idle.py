"""Memory and processor time of an idle agent.

The agent runs behind TLS with a real bench, as on a board, and has described its board once. It is
observed without a lease, and again while a controller holds a lease and renews it. Memory is that
of the agent's process and of all processes that it started, with shared pages counted once (PSS).

    python -m benchmarks.idle --write benchmarks/idle.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import psutil
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.tls import ControllerTlsFiles

from benchmarks.fuzzing.processes import started, wait_for

MEMORY_LIMIT_BYTES = 60 << 20
"""Most memory of an idle agent."""

CPU_LIMIT = 0.005
"""Largest share of one core that an idle agent uses."""

LEASE_MS = 30_000
"""Duration of the lease, which is renewed three times within it."""


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started."""
    return [process, *process.children(recursive=True)]


def memory_bytes(process: psutil.Process) -> dict[str, int]:
    """Resident and proportional memory of the agent itself, and proportional memory of all."""
    own = process.memory_full_info()
    return {
        "agent_rss_bytes": own.rss,
        "agent_pss_bytes": own.pss,
        "all_pss_bytes": sum(one.memory_full_info().pss for one in family(process)),
        "processes": len(family(process)),
    }


def cpu_s(process: psutil.Process) -> float:
    """Processor time of the process and of all that it started, so far."""
    return sum(sum(one.cpu_times()[:2]) for one in family(process))


async def observe(process: psutil.Process, seconds: float) -> dict[str, Any]:
    """Used share of one core over some seconds, and the memory at their end."""
    before_s, began_s = cpu_s(process), time.monotonic()
    await asyncio.sleep(seconds)
    share = (cpu_s(process) - before_s) / (time.monotonic() - began_s)
    return {"seconds": seconds, "cpu_share": round(share, 6), **memory_bytes(process)}


async def leased(
    address: str, tls: ControllerTlsFiles, process: psutil.Process, seconds: float
) -> Any:
    """Observe the agent while a client renews a lease on it."""
    async with AgentClient(address, "idle", tls) as client:
        await client.acquire(LEASE_MS)

        async def renew() -> None:
            while True:
                await asyncio.sleep(LEASE_MS / 3000)
                await client.renew()

        renewing = asyncio.create_task(renew())
        try:
            return await observe(process, seconds)
        finally:
            renewing.cancel()
            await client.release()


def run(seconds: float, folder: Path, profile: Path | None = None) -> dict[str, Any]:
    """Start an agent, and observe it without and with a lease."""
    authority = Authority(folder / "tls")
    authority.init()
    cert = authority.issue("idle", "agent", ["127.0.0.1"])
    tls = ControllerTlsFiles(
        authority.cert, folder / "tls/controller.crt", folder / "tls/controller.key"
    )
    port_file = folder / "port"
    command = [sys.executable, "-m", "latfarm_agent.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--name", "idle", "--state-dir", str(folder / "state")]
    command += ["--tls-cert", str(cert), "--tls-key", str(cert.with_suffix(".key"))]
    command += ["--tls-ca", str(authority.cert), "--port-file", str(port_file)]
    if profile is not None:
        command += ["--simulate", str(profile)]
    with started(command, folder) as popen:
        address = wait_for(
            lambda: port_file.read_text().strip() if port_file.exists() else "", popen, "the agent"
        )
        process = psutil.Process(popen.pid)
        idle = asyncio.run(observe(process, seconds))
        held = asyncio.run(leased(address, tls, process, seconds))
    return {"idle": idle, "leased": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="latfarm-idle-") as folder:
        found = run(arguments.seconds, Path(folder))
    result = {
        "python": platform.python_version(),
        "grpc": grpc.__version__,
        "machine": platform.machine(),
        "limits": {"memory_bytes": MEMORY_LIMIT_BYTES, "cpu_share": CPU_LIMIT},
        **found,
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        arguments.write.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
