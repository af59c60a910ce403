"""The agent as a process: killed while it measures, stopped, without its parent, started twice."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client

FAKE_AGENT = Path(__file__).with_name("fake_bench.py")
WAIT_S = 60
PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


class Agents:
    """Processes that a test starts; they end with the test."""

    def __init__(self, directory: Path) -> None:
        self.port_file = directory / "port"
        self.state_dir = directory / "state"
        self._processes: list[subprocess.Popen[str]] = []
        self._channels: list[grpc.Channel] = []

    def command(self, *args: str) -> list[str]:
        return [
            *(sys.executable, str(FAKE_AGENT), "serve", "--listen", "127.0.0.1:0"),
            *("--state-dir", str(self.state_dir), "--port-file", str(self.port_file), *args),
        ]

    def run(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = self.run(self.command(*args))
        self.wait_until_serving(process)
        return process

    @staticmethod
    def wait_until_serving(process: subprocess.Popen[str]) -> list[str]:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "serves on" in line:
                return lines
        raise AssertionError(f"the agent ended: {lines}")

    def client(self, make_client: Callable[[grpc.Channel], Client]) -> Client:
        channel = grpc.insecure_channel(self.port_file.read_text().strip())
        self._channels.append(channel)
        return make_client(channel)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            process.kill()
            process.communicate(timeout=WAIT_S)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    started = Agents(tmp_path)
    yield started
    started.close()


@pytest.fixture
def make_client(farm: Any) -> Callable[[grpc.Channel], Client]:
    """The client of the tests; `farm` alone starts no agent."""
    from importlib import import_module

    conftest = import_module(type(farm).__module__)
    make: Callable[[grpc.Channel], Client] = conftest.Client
    return make


def test_kill_9_in_the_middle_of_an_upload_loses_nothing_that_arrived(
    agents: Agents, make_client: Callable[[grpc.Channel], Client]
) -> None:
    agent = agents.start()
    client = agents.client(make_client)
    token = client.acquire()
    data = bytes(range(256)) * 12_000  # random bytes may look like a pickle, which is refused
    sha256 = hashlib.sha256(data).hexdigest()
    arrived = threading.Event()

    def messages() -> Iterator[pb.UploadBlobRequest]:
        yield pb.UploadBlobRequest(
            token=token, sha256=sha256, size_bytes=len(data), data=data[:1_000_000]
        )
        yield pb.UploadBlobRequest(data=data[1_000_000:1_234_567])
        arrived.wait(WAIT_S)

    call = client.stub.UploadBlob.future(messages())
    while client.blob(sha256).received_bytes < 1_234_567:
        assert not call.done()
    agent.kill()
    assert agent.wait(WAIT_S) == -signal.SIGKILL
    assert isinstance(call.exception(timeout=WAIT_S), grpc.RpcError)
    arrived.set()

    agents.start()
    client = agents.client(make_client)
    state = client.blob(sha256)
    assert (state.received_bytes, state.complete) == (1_234_567, False)
    newer = client.acquire()
    assert newer > token
    client.upload(newer, data, 1_234_567)
    assert client.result(newer, sha256).outcome == "ok"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_agent_and_leaves_no_port_file(
    agents: Agents, number: signal.Signals, code: int
) -> None:
    agent = agents.start("--name", "here")
    assert agents.port_file.exists()
    agent.send_signal(number)
    output, errors = agent.communicate(timeout=WAIT_S)
    assert (agent.returncode, output, errors) == (code, "", "")
    assert not agents.port_file.exists()


def test_a_second_agent_on_the_same_state_names_the_first(agents: Agents) -> None:
    first = agents.start()
    second = agents.run(agents.command())
    output, errors = second.communicate(timeout=WAIT_S)
    assert (second.returncode, output) == (1, "")
    assert errors.count("\n") == 1
    assert f"in use by process {first.pid}" in errors
    assert agents.port_file.exists(), "still the first one's"


def test_the_port_of_another_agent_is_not_shared(agents: Agents, tmp_path: Path) -> None:
    agents.start()
    address = agents.port_file.read_text().strip()
    other = [*("--listen", address), *("--state-dir", str(tmp_path / "other"))]
    second = agents.run([sys.executable, str(FAKE_AGENT), "serve", *other])
    _, errors = second.communicate(timeout=WAIT_S)
    assert second.returncode == 2
    assert f"cannot listen on {address}" in errors


def test_the_agent_ends_with_its_parent_even_if_that_is_killed(agents: Agents) -> None:
    command = agents.command("--exit-with-parent")
    parent = agents.run([sys.executable, "-c", PARENT, *command])
    agents.wait_until_serving(parent)
    parent.kill()
    # The agent has the other end of this pipe, so the pipe ends when the agent has ended.
    assert parent.stderr is not None
    assert parent.stderr.read() == ""
    assert not agents.port_file.exists()


def test_a_parent_that_was_gone_before_the_start_is_noticed(agents: Agents) -> None:
    agent = agents.run(agents.command("--exit-with-parent", str(2**22 + 1)))
    assert agent.wait(WAIT_S) == 0


def test_the_end_of_the_thread_that_started_the_agent_is_not_the_end_of_the_parent(
    agents: Agents, make_client: Callable[[grpc.Channel], Client]
) -> None:
    started: list[subprocess.Popen[str]] = []
    thread = threading.Thread(target=lambda: started.append(agents.start("--exit-with-parent")))
    thread.start()
    thread.join(WAIT_S)
    (agent,) = started
    assert agents.client(make_client).state() == "idle"
    agent.terminate()
    assert agent.wait(WAIT_S) == 0


def test_metrics_are_served_when_asked_for(agents: Agents) -> None:
    from urllib.request import urlopen

    agent = agents.run(agents.command("--metrics-port", "0"))
    lines = agents.wait_until_serving(agent)
    (url,) = [line.split()[-1] for line in lines if "/metrics" in line]
    with urlopen(url, timeout=WAIT_S) as reply:
        text = reply.read().decode()
    assert 'latfarm_agent_state{state="idle"} 1.0' in text
