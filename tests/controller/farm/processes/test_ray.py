"""The farm on Ray, with agents of simulated boards: the whole chain, and what is left of it."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.host import host_boot_id
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.processes import cleanup
from latfarm_controller.farm.processes.backends import RayBackend
from latfarm_controller.farm.processes.building import SMALL_BYTES
from latfarm_controller.farm.processes.ray_runtime import (
    MARK,
    SESSION_PATH_LENGTH,
    SOCKET_PATH_LIMIT,
    RayRuntime,
    make_folder,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.measurement import Outcome, Settings

pytestmark = [
    pytest.mark.xdist_group("command"),  # one Ray at a time
    pytest.mark.timeout(180),
    # Ray gets the running event loop in a way that newer Pythons warn of.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]
PLATFORM = "simulated-ray"
QUICK = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=3, max_ms=1.0)


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[BoardEntry]]:
    """Two agents, whose boards refuse Tanh."""
    with ExitStack() as stack:
        entries = []
        for name in ("one", "two"):
            profile = tmp_path / f"{name}.json"
            profile.write_text(
                json.dumps({"platform": PLATFORM, "unsupported_ops": ["Tanh"], "measure_ms": 5})
            )
            options = LocalAgentOptions(
                state_dir=tmp_path / name,
                log_path=tmp_path / f"{name}.log",
                name=name,
                hardware=name,
                simulate=profile,
            )
            entries.append(BoardEntry(name, stack.enter_context(LocalAgent(options)).address))
        yield entries


def request(number: int, op: str = "relu", *, constant: bool = False) -> MeasurementRequest:
    builder = GraphBuilder(f"g{number}")
    x = builder.input((1, 4, 8, 8 + number))
    x = getattr(builder, op)(builder.conv(x, 4, 3))
    if constant:
        kind = builder.type_of(x)
        values = tuple(float(value) for value in range(kind.elements))
        x = builder.add(x, builder.weight(kind.shape, values=values))
    return MeasurementRequest(builder.build([x]), PLATFORM, "kernel", QUICK)


def shard_pids(runtime: RayRuntime) -> list[int]:
    found = []
    for pid in processes_of(runtime):
        try:
            if "InlineShard" in " ".join(psutil.Process(pid).cmdline()):
                found.append(pid)
        except psutil.Error:
            continue
    return found


def test_the_whole_chain_and_its_end(tmp_path: Path, boards: list[BoardEntry]) -> None:
    runtime = RayRuntime(tmp_path / "ray", cpus=2)
    seen: dict[str, Any] = {}

    async def scenario() -> None:
        settings = ShardSettings("test", host_boot_id(), lease_ms=2_000)
        farm = Farm(RayBackend(runtime), "test", settings=settings)
        await farm.start(boards)
        try:
            await farm.wait_for(PLATFORM, 60)
            assert not farm.quiet(PLATFORM)  # simulated time: the host's load cannot disturb it
            inbox = farm.listen("c")
            requests = [request(i) for i in range(20)]
            bad, large = request(50, "tanh"), request(600, constant=True)
            assert len(large.graph.dumps()) > SMALL_BYTES
            farm.submit("c", [*requests, bad, large])
            answers = {}
            for _ in range(len(requests) + 2):
                item = await inbox.get()
                assert isinstance(item, Delivery)
                measurement = item.measurement
                assert measurement.request_id not in answers
                answers[measurement.request_id] = measurement
            assert answers.pop(bad.request_id).outcome is Outcome.MODEL_ERROR
            assert all(answer.ok for answer in answers.values()), answers
            assert {answer.board_id for answer in answers.values()} == {
                status.info.board_id for status in farm.boards() if status.info
            }
            seen["listeners"] = listeners_of(runtime)
            seen["metrics"] = await asyncio.to_thread(open_metrics, seen["listeners"])
            seen["environment"] = dict(os.environ)

            # A shard that is killed is replaced, and its work goes on.
            (pid,) = shard_pids(runtime)
            farm.submit("c", [request(i) for i in range(100, 120)])
            os.kill(pid, signal.SIGKILL)
            for _ in range(20):
                item = await inbox.get()
                assert isinstance(item, Delivery)
                assert item.measurement.ok
            assert shard_pids(runtime) != [pid]
            seen["processes"], seen["folder"] = processes_of(runtime), runtime.folder
        finally:
            await farm.stop()

    asyncio.run(scenario())
    check_listeners(seen["listeners"])
    assert seen["metrics"] == [], "whoever has no token may not read anything"
    assert "RAY_AUTH_TOKEN" not in seen["environment"]
    assert MARK not in seen["environment"]
    assert len(seen["processes"]) >= 4
    assert not any(psutil.pid_exists(pid) and alive(pid) for pid in seen["processes"])
    assert not seen["folder"].exists()


class Listener(NamedTuple):
    """A socket on which a process of a run takes connections."""

    process: str
    ip: str
    port: int


def processes_of(runtime: RayRuntime) -> list[int]:
    """The ids of Ray's processes."""
    return cleanup.marked(runtime.mark.encode())


def listeners_of(runtime: RayRuntime) -> list[Listener]:
    """Every socket on which Ray's processes, or its part of this process, listen."""
    found = []
    for pid in [os.getpid(), *processes_of(runtime)]:
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
    """Ray's processes, and its part of this process, take connections on loopback only."""
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


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


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
