"""The farm on Ray, with agents of simulated boards: the whole chain, and what is left of it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.boards.model_builder import BuilderState
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.host import host_boot_id
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.processes import cleanup
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
from latfarm_controller.farm.processes.building import SMALL_BYTES
from latfarm_controller.farm.processes.ray_runtime import (
    MARK,
    SESSION_PATH_LENGTH,
    SOCKET_PATH_LIMIT,
    RayRuntime,
    make_folder,
)
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.processes.ray_farm import (
    PLATFORM,
    alive,
    pid_of,
    processes_of,
    request,
    shard_pids,
    two_boards,
)

pytestmark = [
    pytest.mark.xdist_group("command"),  # one Ray at a time
    pytest.mark.timeout(600),
    # Ray gets the running event loop in a way that newer Pythons warn of.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[BoardEntry]]:
    with two_boards(tmp_path) as entries:
        yield entries


async def answers_of(inbox: asyncio.Queue[Any], count: int) -> dict[str, Measurement]:
    """The next answers by request id; each comes once."""
    answers: dict[str, Measurement] = {}
    for _ in range(count):
        item = await inbox.get()
        assert isinstance(item, Delivery)
        assert item.measurement.request_id not in answers
        answers[item.measurement.request_id] = item.measurement
    return answers


async def kill_a_shard(farm: Farm, backend: RayBackend, inbox: asyncio.Queue[Any]) -> None:
    """A shard that is killed is replaced, and its work goes on."""
    (pid,) = shard_pids(backend)
    farm.submit("c", [request(i) for i in range(100, 120)])
    os.kill(pid, signal.SIGKILL)
    assert all(answer.ok for answer in (await answers_of(inbox, 20)).values())
    while shard_pids(backend) in ([], [pid]):
        await asyncio.sleep(0.01)


async def kill_gcs(farm: Farm, backend: RayBackend, inbox: asyncio.Queue[Any]) -> None:
    """After the death of GCS all of Ray is started again, and its work goes on."""
    run = backend.keeper.run
    farm.submit("c", [request(i) for i in range(200, 210)])
    os.kill(pid_of(backend, "gcs_server"), signal.SIGKILL)
    assert all(answer.ok for answer in (await answers_of(inbox, 10)).values())
    while backend.keeper.run in (None, run):
        await asyncio.sleep(0.01)


def test_the_whole_chain_and_its_end(
    tmp_path: Path, boards: list[BoardEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One board in the controller's own loop, and one in a shard of its own.
    monkeypatch.setattr(shard_pool, "OWN_BOARDS", 1)
    backend = RayBackend(RayOptions(tmp_path / "ray", cpus=2, log_path=tmp_path / "ray.log"))
    seen: dict[str, Any] = {}

    async def scenario() -> None:
        settings = ShardSettings("test", host_boot_id(), lease_ms=2_000)
        farm = Farm(backend, "test", settings=settings)
        assert farm.builders.away
        await farm.start(boards)
        try:
            await farm.wait_for(PLATFORM, 300)
            assert not farm.quiet(PLATFORM)  # simulated time: the host's load cannot disturb it
            while not all(status.online for status in farm.boards()):
                await asyncio.sleep(0.01)
            inbox = farm.listen("c")
            requests = [request(i) for i in range(20)]
            bad, large = request(50, "tanh"), request(600, constant=True)
            assert len(large.graph.dumps()) > SMALL_BYTES
            farm.submit("c", [*requests, bad, large])
            answers = await answers_of(inbox, len(requests) + 2)
            assert answers.pop(bad.request_id).outcome is Outcome.MODEL_ERROR
            assert all(answer.ok for answer in answers.values()), answers
            assert {answer.board_id for answer in answers.values()} == {
                status.info.board_id for status in farm.boards() if status.info
            }
            assert farm.builders == BuilderState(1)
            seen["listeners"] = listeners_of(backend)
            seen["metrics"] = await asyncio.to_thread(open_metrics, seen["listeners"])
            seen["environment"] = dict(os.environ)

            await kill_a_shard(farm, backend, inbox)
            await kill_gcs(farm, backend, inbox)
            seen["processes"] = [*processes_of(backend), backend.keeper.pid]
            assert backend.keeper.run is not None
            seen["folder"] = Path(backend.keeper.run.folder)
        finally:
            await farm.stop()

    asyncio.run(scenario())
    check_listeners(seen["listeners"])
    assert seen["metrics"] == [], "whoever has no token may not read anything"
    assert "RAY_AUTH_TOKEN" not in seen["environment"]
    assert MARK not in seen["environment"]
    assert len(seen["processes"]) >= 5
    assert not any(psutil.pid_exists(pid) and alive(pid) for pid in seen["processes"])
    assert not seen["folder"].exists()
    assert list((tmp_path / "ray").iterdir()) == []


class Listener(NamedTuple):
    """A socket on which a process of a run takes connections."""

    process: str
    ip: str
    port: int


def listeners_of(backend: RayBackend) -> list[Listener]:
    """Every socket on which Ray's processes, the Ray process or this process listen."""
    found = []
    for pid in [os.getpid(), backend.keeper.pid, *processes_of(backend)]:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            name = " ".join(process.cmdline()[:3]) or process.name()
            found += [
                Listener(name, connection.laddr.ip, connection.laddr.port)
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
            ]
    return found


def check_listeners(listeners: list[Listener]) -> None:
    """Ray's processes and the Ray process take connections on loopback only."""
    assert {"gcs_server", "raylet"} <= {
        Path(listener.process.split()[0]).name for listener in listeners
    }
    for listener in listeners:
        address = ipaddress.ip_address(listener.ip)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            assert address.ipv4_mapped.is_loopback, listener
        else:
            assert address.is_loopback, listener


def open_metrics(listeners: list[Listener]) -> list[Listener]:
    """The listeners that answer a request for metrics which shows no token."""
    found = []
    for listener in listeners:
        with suppress(OSError), socket.create_connection(listener[1:], timeout=2) as plain:
            plain.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            status = plain.makefile("rb").readline(100).split()
            if len(status) > 1 and status[0].startswith(b"HTTP/") and status[1] == b"200":
                found.append(listener)
    return found


DRIVER = """
import sys
from pathlib import Path
from latfarm_controller.farm.processes.ray_runtime import RayRuntime
runtime = RayRuntime(Path(sys.argv[1]), cpus=1)
runtime.start()
import ray
ray.get(ray.remote(lambda: 1).remote())
print(runtime.mark, runtime.folder, flush=True)
sys.stdin.read()
"""


def test_a_killed_driver_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "ray")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stderr is not None
        mark, folder = driver.stdout.readline().split()
        left = [psutil.Process(pid) for pid in cleanup.marked(mark.encode())]
        assert len(left) >= 4
        driver.kill()
        driver.wait()
        _, living = psutil.wait_procs(left, timeout=60)
        assert not [process for process in living if alive(process.pid)]
        # The cleanup process holds this pipe until it is done; then the folder is gone too.
        assert driver.stderr.read() == ""
    assert not wait_while_exists(Path(folder))


def wait_while_exists(folder: Path) -> bool:
    """Wait until the cleanup process, whose parent is dead, has removed the folder."""
    for process in psutil.process_iter():
        try:
            if str(folder) in process.cmdline():
                psutil.wait_procs([process], timeout=30)
        except psutil.Error:
            continue
    return folder.exists()


def test_the_folder_is_short_enough_for_sockets_and_private(tmp_path: Path) -> None:
    short = Path("/tmp") / f"latfarm-test-{os.getpid()}"
    try:
        folder = make_folder(short)
        assert folder.parent == short
    finally:
        if short.exists():
            for child in short.iterdir():
                child.rmdir()
            short.rmdir()
    long = tmp_path / ("x" * 60)
    folder = make_folder(long)
    try:
        assert not long.exists()
        assert len(str(folder)) + SESSION_PATH_LENGTH <= SOCKET_PATH_LIMIT
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        folder.rmdir()


def test_a_folder_that_cannot_be_made_is_told() -> None:
    home = Path(f"/proc/{os.getpid()}/nowhere")
    with pytest.raises(FarmError, match="Ray cannot be started: no folder for Ray under"):
        RayRuntime(home).start()


def test_the_cleanup_ends_what_is_marked_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    code = "import sys; print('up', flush=True); sys.stdin.read()"

    def start(environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    with start({"MARK": "abc"}) as marked, start({"MARK": "abcd"}) as other:
        assert cleanup.marked(b"MARK=abc") == [marked.pid]
        # It is our child: nobody reaps it meanwhile, and a zombie has no environment.
        assert cleanup.reap(b"MARK=abc", folder)
        assert marked.wait() == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
    assert not folder.exists()
