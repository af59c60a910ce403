"""Agents as processes of their own: called plainly, called with certificates, or dialling in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_protos.trust.identity import AGENT

from benchmarks.farm.figures import DIALLING, PLAIN, FarmRow

HOST = "127.0.0.1"
"""Where everything of this benchmark listens, and what its certificates name."""

START_S = 300.0
"""Longest time in seconds until boards serve."""


def authority_in(folder: Path) -> Authority:
    """The authority of a row, with the controller's certificate; it is made at the first call."""
    authority = Authority(folder / "tls")
    if not authority.cert.exists():
        authority.init([HOST])
    return authority


def start_agents(
    stack: ExitStack, row: FarmRow, folder: Path, profile: Path, controller: str
) -> tuple[int, ...]:
    """Start the agents of a row, and add them to the inventory in the folder.

    Args:
        stack: ends them.
        row: says how many, and how they are reached.
        folder: of the row.
        profile: the file with what they simulate.
        controller: `host:port` that dialling agents call.

    Returns:
        The ids of their processes.
    """
    registry = Registry(folder / "boards.json")
    return tuple(
        _started(stack, row, f"agent-{number + 1}", folder, profile, registry, controller)
        for number in range(row.boards)
    )


def _started(
    stack: ExitStack,
    row: FarmRow,
    name: str,
    folder: Path,
    profile: Path,
    registry: Registry,
    controller: str,
) -> int:
    if row.link == PLAIN:
        options = LocalAgentOptions(
            folder / "boards" / name, folder / f"{name}.log", name, "agent", profile
        )
        agent = stack.enter_context(LocalAgent(options))
        registry.add(name, agent.address)
        assert agent.pid is not None
        return agent.pid
    port_file = folder / f"{name}.address"
    dialling = row.link == DIALLING
    if dialling:
        registry.add(name, "", dials_in=True)
        where = ["--controller", controller]
    else:
        where = ["--listen", f"{HOST}:0", "--port-file", str(port_file)]
    authority = authority_in(folder)
    cert = authority.issue(name, AGENT, [HOST], dials_in=dialling)
    command = [sys.executable, "-m", "latfarm_agent.cli", "serve", "--name", name, *where]
    command += ["--hardware", "agent", "--simulate", str(profile)]
    command += ["--state-dir", str(folder / "boards" / name)]
    command += ["--tls-cert", str(cert), "--tls-key", str(cert.with_suffix(".key"))]
    command += ["--tls-ca", str(authority.cert), "--exit-with-parent", str(os.getpid())]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(end_process, process)
    if not dialling:
        wait_for_file(port_file, process, folder / f"{name}.log")
        own = authority.folder / "controller.crt"
        tls = ControllerTlsFiles(authority.cert, own, own.with_suffix(".key"))
        registry.add(name, port_file.read_text("utf-8").strip(), tls)
    return process.pid


def wait_for_file(path: Path, process: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until a process has written a file, by which it says that it serves.

    Raises:
        RuntimeError: it has ended, or needs too long; the message ends with its log.
    """
    deadline_s = time.monotonic() + START_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"boards do not serve: {log_path.read_text()[-2000:]}")
        time.sleep(0.05)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
