"""The agent as a service of a virtual board, with certificates that a test has signed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.tls import ControllerTlsFiles

from tests.farm.boards import wheels
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.lab.authority import LabAuthority

PORT = 50051
"""TCP port of the agent on the board."""

STATE = "/var/lib/latfarm"
"""Folder of the agent's state on the board."""

PATIENCE = Patience(call_ms=180_000.0, away_ms=60_000.0, quiet_ms=60_000.0)
"""How long clients wait: emulated boards are slow, and a test may cut a board off for a while."""

_SECRETS = "/etc/latfarm"
"""Folder of the agent's key and certificates on the board."""

_UNIT = """[Unit]
Description=latfarm agent
After=network.target
StartLimitIntervalSec=0
[Service]
ExecStart={command}
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
"""


def serve(
    board: VirtualBoard, authority: LabAuthority, options: Sequence[str] = ()
) -> ControllerTlsFiles:
    """Run the agent as a service of a board, and wait until it answers.

    Args:
        board: a running board to which `wheels.install` has copied the agent.
        authority: signs the certificates of the board and of the client.
        options: further options of `latfarm-agent serve`.

    Returns:
        The files with which a client of this agent identifies itself and checks the board.
    """
    own = authority.issue(board.name)
    for name, path in (("ca.pem", own.ca), ("board.pem", own.cert), ("board.key", own.key)):
        board.push(path, f"{_SECRETS}/{name}")
    command = [
        *(wheels.AGENT, "serve", "--name", board.name, "--listen", f"{board.address}:{PORT}"),
        *("--state-dir", STATE, "--tls-ca", f"{_SECRETS}/ca.pem"),
        *("--tls-cert", f"{_SECRETS}/board.pem", "--tls-key", f"{_SECRETS}/board.key", *options),
    ]
    unit = _UNIT.format(command=" ".join(command))
    board.write("/etc/systemd/system/latfarm-agent.service", unit)
    board.run("systemctl daemon-reload && systemctl enable --quiet --now latfarm-agent")
    ours = authority.issue("controller", "controller")
    tls = ControllerTlsFiles(ours.ca, ours.cert, ours.key, server_name=board.name)
    asyncio.run(_describe(board, tls))
    return tls


def client(board: VirtualBoard, tls: ControllerTlsFiles | None) -> AgentClient:
    """A client of the board's agent that waits as long as `PATIENCE` says."""
    return AgentClient(f"{board.address}:{PORT}", "test", tls, patience=PATIENCE)


async def _describe(board: VirtualBoard, tls: ControllerTlsFiles) -> None:
    async with client(board, tls) as asking:
        await asking.describe()
