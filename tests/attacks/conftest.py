"""A board under attack: a real agent whose measurements wait for the test."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from latfarm_controller.agents.local import LocalAgent
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_protos.v1 import agent_pb2 as pb

from tests.agent.service.conftest import Client
from tests.integration.conftest import PLATFORM, PROFILE, Board, PacedAgentOptions

GIVE_UP_S = 100.0
"""Longest wait for a state, in seconds; a busy host is slow."""

HOUR_MS = 3_600_000
"""Length of leases that no test outlives."""

QUICK = pb.Settings(
    tier="survey",
    sessions=1,
    warmup_runs=1,
    min_runs=3,
    max_runs=3,
    max_ms=20.0,
    compile_timeout_ms=100_000.0,
    run_timeout_ms=100_000.0,
)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain: {what}"
        time.sleep(0.005)


def lives(pid: int) -> bool:
    """Whether a process still runs; one that nobody has waited for yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    """Send SIGKILL, and wait until the process has ended."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid), "the end of a killed process")


def model(number: int) -> bytes:
    """A model for simulated boards; each number gives another one."""
    builder = GraphBuilder(f"net{number}")
    x = builder.input((1, number + 1, 8, 8))
    return builder.build([builder.relu(x)]).dumps().encode()


class Site:
    """The board, and what a controller asks of it; everything lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        profile = folder / "profile.json"
        profile.write_text(json.dumps(PROFILE))
        self.state = folder / "state"
        options = PacedAgentOptions(self.state, folder / "log", "b", "toy", profile)
        self.board = Board("b", LocalAgent(options), folder)
        self._numbers = iter(range(1000))
        self._stack = ExitStack()

    @property
    def agent(self) -> LocalAgent:
        return self.board.agent

    @property
    def agent_pid(self) -> int:
        pid = self.agent.pid
        assert pid is not None
        return pid

    def workers(self) -> dict[str, int]:
        """The process ids of the worker that waits or measures now, and of its keeper."""
        found: dict[str, int] = {}

        def look() -> bool:
            for keeper in psutil.Process(self.agent_pid).children():
                for worker in keeper.children():
                    found.update(keeper=keeper.pid, worker=worker.pid)
            return bool(found)

        until(look, "a worker")
        return found

    def open(self) -> Client:
        """A client of the agent as it serves now."""
        channel = grpc.insecure_channel(self.agent.address)
        self._stack.callback(channel.close)
        client = Client(channel)
        client.platform = PLATFORM
        return client

    def restart(self) -> None:
        """Start the agent again after it was killed; nothing of it may be left before."""
        self.agent.stop()
        for name in ("allowed", "begun"):
            (self.folder / name).unlink(missing_ok=True)
        self.agent.start()

    def request(self, client: Client, token: int, number: int | None = None) -> pb.MeasureRequest:
        """A request for a model, which is uploaded."""
        number = next(self._numbers) if number is None else number
        sha256 = client.upload(token, model(number))
        request = client.request(token, sha256, f"r{number}")
        request.settings.CopyFrom(QUICK)
        return request

    def measured(self, client: Client, token: int) -> pb.Result:
        """The result of a new model, which must be good."""
        *_, last = client.stub.Measure(self.request(client, token))
        assert last.result.outcome == "ok", last.result.error_message
        result: pb.Result = last.result
        return result

    def close(self) -> None:
        self._stack.close()
        self.agent.stop()


class HalfUpload:
    """An upload of which one half has arrived and the other half waits."""

    def __init__(self, client: Client, token: int, data: bytes) -> None:
        self.data, self.half = data, len(data) // 2
        self._go_on = threading.Event()
        self.call = client.stub.UploadBlob.future(self._messages(client, token))
        self.sha256 = hashlib.sha256(data).hexdigest()
        until(
            lambda: client.blob(self.sha256).received_bytes == self.half or self.call.done(),
            "half of an upload",
        )
        assert not self.call.done()

    def _messages(self, client: Client, token: int) -> Iterator[pb.UploadBlobRequest]:
        head = next(iter(client.messages(token, self.data)))
        head.data = self.data[: self.half]
        yield head
        self._go_on.wait(GIVE_UP_S)
        yield pb.UploadBlobRequest(data=self.data[self.half :])

    def go_on(self) -> None:
        """Let the other half follow."""
        self._go_on.set()


class Waiting:
    """A measurement that has begun and waits in its worker."""

    def __init__(self, site: Site, client: Client, request: pb.MeasureRequest) -> None:
        site.board.allow(0)
        self.events = client.stub.Measure(request)
        for event in self.events:
            assert event.HasField("stage"), event
            if event.stage.name == "loading":
                return
        raise AssertionError("the measurement ended")

    def result(self) -> pb.Result:
        """Its result; raises grpc.RpcError if the agent has gone."""
        *_, last = self.events
        result: pb.Result = last.result
        return result


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A board for one test, whose agent the test starts."""
    made = Site(tmp_path)
    yield made
    made.close()


@contextmanager
def process(command: Iterable[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed with the block."""
    with log.open("ab") as out:
        started = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
