"""Starting and ending agent processes, with small programs in the agent's place."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.errors import AgentError, AgentLostError

SERVE = """
import grpc, subprocess, sys, time
from concurrent import futures
from pathlib import Path
from grpc_health.v1 import health, health_pb2_grpc
port_file, child_file = Path(sys.argv[1]), Path(sys.argv[1] + ".child")
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
child_file.write_text(str(child.pid))
server = grpc.server(futures.ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
port_file.write_text(f"127.0.0.1:{port}\\n")
print("ready", flush=True)
server.wait_for_termination()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE
FAILS = "import sys; print('line 1', flush=True); sys.exit('no such runtime')"
SILENT = "import time; print('thinking', flush=True); time.sleep(600)"
LIES = """
import sys, time
from pathlib import Path
Path(sys.argv[1]).write_text("127.0.0.1:1\\n")
time.sleep(600)
"""
NO_NEWLINE = LIES.replace("\\n", "")


@dataclass(frozen=True, slots=True)
class Program(LocalAgentOptions):
    """An agent whose program is a script of ours."""

    script: str = ""

    def command(self, port_file: Path) -> list[str]:
        return [sys.executable, "-c", self.script, str(port_file)]


def agent(folder: Path, script: str) -> LocalAgent:
    return LocalAgent(Program(folder / "state", folder / "logs" / "agent.log", script=script))


def gone(pid: int) -> bool:
    """Whether a process ends soon; one that is only not reaped yet has ended."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.005)
    return False


def child_of(folder: Path) -> int:
    return int((folder / "state" / "address.child").read_text())


def test_started_means_ready_and_stopped_means_gone(tmp_path: Path) -> None:
    local = agent(tmp_path, SERVE)
    address = local.start()
    pid = local.pid
    assert pid is not None
    try:
        assert address == local.address
        assert local.alive
        assert os.getpgid(pid) == pid != os.getpgid(0)
        assert local.start() == address
        assert local.pid == pid
        assert "ready" in local.log_tail()
    finally:
        local.stop()
    assert gone(pid)
    assert gone(child_of(tmp_path))
    assert local.address == ""


def test_what_does_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    with agent(tmp_path, STUBBORN) as local:
        pid = local.pid
        assert pid is not None
        local.stop(grace_ms=50)
        assert gone(pid)
        assert gone(child_of(tmp_path))


def test_children_of_an_agent_that_died_are_ended_too(tmp_path: Path) -> None:
    with agent(tmp_path, SERVE) as local:
        assert local.pid is not None
        psutil.Process(local.pid).kill()
        while local.alive:
            time.sleep(0.001)
        assert psutil.pid_exists(child_of(tmp_path))
    assert gone(child_of(tmp_path))


def test_one_that_fails_tells_the_end_of_its_log(tmp_path: Path) -> None:
    local = agent(tmp_path, FAILS)
    with pytest.raises(AgentError, match=r"(?s)ended while it started.*line 1.*no such runtime"):
        local.start()
    assert local.pid is None


@pytest.mark.parametrize("script", [SILENT, LIES, NO_NEWLINE])
def test_one_that_is_never_ready_is_ended(tmp_path: Path, script: str) -> None:
    local = agent(tmp_path, script)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(AgentLostError, match="was not ready"):
        local.start(timeout_ms=300)
    assert local.pid is None
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_an_old_address_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "address").write_text("127.0.0.1:1\n")
    with pytest.raises(AgentLostError) as caught:
        agent(tmp_path, SILENT).start(timeout_ms=300)
    assert "127.0.0.1:1" not in str(caught.value)


def test_the_log_before_is_kept(tmp_path: Path) -> None:
    for script in (FAILS, FAILS.replace("line 1", "line 2")):
        with pytest.raises(AgentError):
            agent(tmp_path, script).start()
    logs = tmp_path / "logs"
    assert "line 2" in (logs / "agent.log").read_text()
    assert "line 1" in (logs / "agent.log.1").read_text()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(AgentError, match="cannot start the agent"):
        agent(tmp_path, SERVE).start()


def test_the_real_command_line() -> None:
    options = LocalAgentOptions(
        Path("/s"), Path("/l"), "n", "hw", Path("/profile.json"), cpu=0, metrics_port=0
    )
    words = options.command(Path("/s/address"))
    assert words[:5] == [sys.executable, "-P", "-m", "latfarm_agent.cli", "serve"]
    pairs = dict(zip(words[5::2], words[6::2], strict=True))
    assert pairs == {
        "--listen": "127.0.0.1:0",
        "--name": "n",
        "--state-dir": "/s",
        "--port-file": "/s/address",
        "--exit-with-parent": str(os.getpid()),
        "--hardware": "hw",
        "--simulate": "/profile.json",
        "--cpu": "0",
        "--metrics-port": "0",
    }


def test_the_agent_imports_no_modules_of_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latfarm_agent.py").write_text("raise SystemExit('planted')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = LocalAgentOptions(tmp_path, tmp_path / "log").command(tmp_path / "port")
    assert command[:2] == [sys.executable, "-P"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
