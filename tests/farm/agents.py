"""The agent as a service on a board, with certificates of a farm made for the test."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.tls import ControllerTlsFiles

from tests.farm import wheels
from tests.farm.virtual_board import VirtualBoard

PORT = 50051
STATE = "/var/lib/latfarm"
PATIENCE = Patience(call_ms=180_000.0, away_ms=60_000.0, quiet_ms=60_000.0)
"""Of a client: emulated boards take their time, and a board may be cut off for a while."""

_SECRETS = "/etc/latfarm"
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


class Farm:
    """An authority, and what it signs.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca = folder / "ca.pem"
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        made = ("-keyout", folder / "ca.key", "-out", self.ca, "-days", "2")
        _openssl(*new, *made, "-subj", "/CN=farm")

    def issue(self, name: str, role: str = "agent") -> ControllerTlsFiles:
        """A key and a certificate for `name`."""
        stem = self._folder / name
        key, ask, cert = (stem.with_suffix(kind) for kind in (".key", ".csr", ".pem"))
        new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        _openssl(*new, "-keyout", key, "-out", ask, "-subj", f"/CN={name}")
        names = stem.with_suffix(".ext")
        names.write_text(f"subjectAltName=DNS:{name},URI:urn:latfarm:role:{role}\n")
        signer = ("-CA", self.ca, "-CAkey", self._folder / "ca.key", "-CAcreateserial")
        _openssl("x509", "-req", "-in", ask, *signer, "-out", cert, "-days", "2", "-extfile", names)
        return ControllerTlsFiles(self.ca, cert, key)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def serve(board: VirtualBoard, farm: Farm, options: Sequence[str] = ()) -> ControllerTlsFiles:
    """Run the agent that `wheels.install` brought as a service of the board.

    Returns once it has answered.

    Args:
        board: it is on.
        farm: signs the board's certificate.
        options: more of `latfarm-agent serve`.

    Returns:
        What a client proves itself with, and knows the board by.
    """
    own = farm.issue(board.name)
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
    ours = farm.issue("controller", "controller")
    tls = ControllerTlsFiles(ours.ca, ours.cert, ours.key, server_name=board.name)
    asyncio.run(_describe(board, tls))
    return tls


def client(board: VirtualBoard, tls: ControllerTlsFiles | None) -> AgentClient:
    """A patient client of the board's agent."""
    return AgentClient(f"{board.address}:{PORT}", "test", tls, patience=PATIENCE)


async def _describe(board: VirtualBoard, tls: ControllerTlsFiles) -> None:
    async with client(board, tls) as asking:
        await asking.describe()
