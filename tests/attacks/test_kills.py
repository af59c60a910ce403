"""kill -9 of every process of a board at every stage: what was told stays, and work goes on.

The processes of the controller are killed in `tests/integration/commands/test_cli_stops.py`,
`tests/controller/farm/processes/test_ray.py` and `tests/controller/store/test_durability.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil
import pytest
from latfarm_protos.v1 import agent_pb2 as pb

from tests.agent.service.conftest import Client
from tests.attacks.conftest import (
    HOUR_MS,
    HalfUpload,
    Site,
    Waiting,
    kill,
    lives,
    model,
    process,
    until,
)
from tests.integration.conftest import PLATFORM

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("kills")]
PACED_AGENT = Path(__file__).parents[1] / "integration" / "paced_agent.py"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A board whose agent lives through all tests that kill its workers."""
    site = Site(tmp_path_factory.mktemp("board"))
    site.agent.start()
    yield site
    assert site.agent.alive, site.agent.log_tail()
    site.close()


@pytest.fixture
def lease(lasting: Site) -> Iterator[tuple[Client, int]]:
    """A client of the lasting board with a lease, which is given back; no result is left behind."""
    client = lasting.open()
    token = client.acquire(ttl_ms=HOUR_MS)
    yield client, token
    client.acknowledge(*(result.request_id for result in client.spooled()))
    client.release(token)


@pytest.mark.parametrize("victim", ["worker", "keeper"])
@pytest.mark.parametrize("stage", ["idle", "uploading", "measuring", "finished"])
def test_a_killed_worker_or_keeper_costs_nothing(
    lasting: Site, lease: tuple[Client, int], victim: str, stage: str
) -> None:
    client, token = lease
    lasting.measured(client, token)  # from now on, a worker waits
    before = lasting.workers()
    if stage == "uploading":
        upload = HalfUpload(client, token, model(500) * (100 if victim == "worker" else 200))
        kill(before[victim])
        upload.go_on()
        assert upload.call.result().complete
    elif stage == "measuring":
        waiting = Waiting(lasting, client, lasting.request(client, token))
        kill(before[victim])
        lasting.board.allow(None)
        result = waiting.result()
        assert result.outcome == "ok", result.error_message
        assert result.conditions["tried_again_after"] in ("MODEL_CRASHED", "OUT_OF_MEMORY")
    elif stage == "finished":
        result = lasting.measured(client, token)
        kill(before[victim])
        assert result in client.spooled()
    else:
        kill(before[victim])
    lasting.measured(client, token)
    until(lambda: not any(map(lives, before.values())), "the end of the worker and its keeper")
    assert lasting.workers() != before


def kill_agent(site: Site) -> None:
    """Kill the agent; everything that it started must end by itself."""
    started = psutil.Process(site.agent_pid).children(recursive=True)
    kill(site.agent_pid)
    until(lambda: not any(lives(process.pid) for process in started), "the end of its workers")


def test_an_agent_that_is_killed_while_it_starts_can_be_started(site: Site) -> None:
    command = site.agent.options.command(site.state / "address")
    with process(command, site.folder / "first.log") as first:
        until(lambda: (site.state / "lock").exists(), "the state directory")
        kill(first.pid)
    site.agent.start()
    client = site.open()
    site.measured(client, client.acquire(ttl_ms=HOUR_MS))


def test_a_killed_agent_keeps_what_it_told(site: Site) -> None:
    """Killed while it is idle, while it receives, while it measures, and with a result."""
    site.agent.start()
    client = site.open()
    told = site.measured(client, client.acquire(ttl_ms=HOUR_MS))
    kill_agent(site)

    site.restart()
    client = site.open()
    token = client.acquire(ttl_ms=HOUR_MS)
    data = model(600) * 100
    upload = HalfUpload(client, token, data)
    kill_agent(site)
    upload.go_on()
    assert upload.call.exception() is not None

    site.restart()
    client = site.open()
    newer = client.acquire(ttl_ms=HOUR_MS)
    assert newer > token, "the old token is worth nothing"
    assert client.blob(upload.sha256).received_bytes == upload.half
    client.upload(newer, data, upload.half)
    request = site.request(client, newer)
    waiting = Waiting(site, client, request)
    kill_agent(site)
    with pytest.raises(grpc.RpcError):
        waiting.result()

    site.restart()
    client = site.open()
    request.token = client.acquire(ttl_ms=HOUR_MS)
    *_, last = client.stub.Measure(request)
    assert last.result.outcome == "ok", "it is measured anew"
    assert told in client.spooled(), "it outlived three kills"
    *_, again = client.stub.Measure(request)
    assert again.result == last.result, "it is told, not measured again"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[Site, list[str]]]:
    """An agent that asks another process to measure, and the command that starts that process."""
    site = Site(tmp_path)
    socket = tmp_path / "b.sock"
    profile = str(tmp_path / "profile.json")
    work = [sys.executable, str(PACED_AGENT), "work", "--socket", str(socket)]
    work += ["--state-dir", str(tmp_path / "work"), "--simulate", profile, "--name", "b"]
    yield site, work
    site.close()


def test_a_killed_process_that_measures_is_missed_until_it_is_back(
    apart: tuple[Site, list[str]], tmp_path: Path
) -> None:
    site, work = apart
    port_file = tmp_path / "address"
    serve = [sys.executable, "-m", "latfarm_agent.cli", "serve", "--listen", "127.0.0.1:0"]
    serve += ["--bench", str(tmp_path / "b.sock"), "--state-dir", str(tmp_path / "apart")]
    serve += ["--port-file", str(port_file), "--name", "b"]
    with ExitStack() as stack:
        first = stack.enter_context(process(work, tmp_path / "work.log"))
        stack.enter_context(process(serve, tmp_path / "serve.log"))
        until(port_file.exists, "the agent")
        channel = stack.enter_context(grpc.insecure_channel(port_file.read_text().strip()))
        client = Client(channel)
        client.platform = PLATFORM
        token = client.acquire(ttl_ms=HOUR_MS)
        site.measured(client, token)
        request = site.request(client, token)
        waiting = Waiting(site, client, request)
        started = psutil.Process(first.pid).children(recursive=True)
        kill(first.pid)
        result = waiting.result()
        assert (result.outcome, result.error_code) == ("infrastructure_error", "WORKER_FAILED")
        until(lambda: not any(lives(each.pid) for each in started), "the end of its workers")
        site.board.allow(None)
        stack.enter_context(process(work, tmp_path / "work.log"))
        *_, last = client.stub.Measure(request)
        assert last.result.outcome == "ok", last.result.error_message
        assert client.stub.Describe(pb.DescribeRequest()).state == "leased"
