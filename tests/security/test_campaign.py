"""During a query to a board with TLS, no secret is logged and only loopback ports are open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.registry import Registry
from latfarm_controller.agents.tls import ControllerTlsFiles

from benchmarks.fuzzing.processes import PROFILE, started, wait_for
from tests.integration.conftest import write_model

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("command")]


class Played:
    """What the test saw during the query: output, open ports, Ray's tokens, and the answer."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.printed = ""
        self.listening: set[str] = set()
        self.tokens: set[str] = set()
        self.answer: dict[str, object] = {}

    def look(self) -> None:
        """Note the addresses on which the processes of this home listen, and their Ray token."""
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if environment.get("LATFARM_HOME") != str(self.home):
                    continue
                self.tokens |= {environment[k] for k in ("RAY_AUTH_TOKEN",) if k in environment}
                self.listening |= {
                    c.laddr.ip
                    for c in process.net_connections("inet")
                    if c.status == psutil.CONN_LISTEN
                }
            except psutil.Error:
                continue


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    home = tmp_path_factory.mktemp("home")
    authority = Authority(home / "tls")
    authority.init()
    cert = authority.issue("toy", "agent", ["127.0.0.1"])
    profile = home / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    agent = [sys.executable, "-m", "latfarm_agent.cli", "serve", "-vv", "--name", "toy"]
    agent += ["--listen", "127.0.0.1:0", "--simulate", str(profile), "--state-dir", str(home / "a")]
    agent += ["--tls-cert", str(cert), "--tls-key", str(cert.with_suffix(".key"))]
    agent += ["--tls-ca", str(authority.cert), "--port-file", str(home / "port")]
    latfarm = [sys.executable, "-m", "latfarm_controller.cli.main", "-vv"]
    settings = {"LATFARM_LOCAL_AGENT": "false", "LATFARM_RAY_CPUS": "1"}
    model = home / "model.onnx"
    write_model(model, 4)
    found = Played(home)
    with started(agent, home) as board:
        port = home / "port"
        address = wait_for(
            lambda: port.read_text().strip() if port.exists() else "", board, "the agent"
        )
        tls = ControllerTlsFiles(
            authority.cert, home / "tls/controller.crt", home / "tls/controller.key"
        )
        Registry(home / "boards.json").add("toy", address, tls)
        serve = [*latfarm, "serve", "--listen", "127.0.0.1:0"]
        with started(serve, home, **settings) as controller:
            log = home / "log"
            mark = "serves other machines"
            wait_for(lambda: mark if mark in log.read_text() else "", controller, "the controller")
            ended = subprocess.run(
                [*latfarm, "query", str(model), "--platform", "toy", "--json"],
                env={**os.environ, "LATFARM_HOME": str(home), **settings},
                capture_output=True, text=True, check=False, timeout=200,
            )  # fmt: skip
            found.look()
            found.printed = ended.stdout + ended.stderr
            assert ended.returncode == 0, found.printed
            found.answer = json.loads(ended.stdout)
    return found


def test_a_board_behind_tls_answers(played: Played) -> None:
    assert played.answer


def test_nothing_listens_beyond_loopback(played: Played) -> None:
    assert played.tokens, "Ray ran"
    assert played.listening
    for text in played.listening:
        address = ip_address(text)
        mapped = getattr(address, "ipv4_mapped", None)
        assert (mapped or address).is_loopback, text


def test_no_key_and_no_token_is_in_any_log(played: Played) -> None:
    keys = list((played.home / "tls").rglob("*.key"))
    assert len(keys) >= 4
    secrets = {
        line
        for key in keys
        for line in key.read_text().splitlines()
        if line and not line.startswith("-----")
    } | played.tokens
    assert len(played.tokens) == 1
    logs = [played.home / "log", *(played.home / "logs").rglob("*")]
    texts = [played.printed, *(path.read_text(errors="replace") for path in logs if path.is_file())]
    assert sum(map(len, texts)) > 1000, "there are logs to look at"
    for text in texts:
        assert "PRIVATE KEY" not in text
        assert not [secret for secret in secrets if secret in text]
