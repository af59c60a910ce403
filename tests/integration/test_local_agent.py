"""Tests of the controller's client with a real agent, a separate process on a simulated board."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from latfarm_controller.agents.board import BoardInfo, MeasuringStage
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import LeaseError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import PROTOCOL_VERSION, Outcome, Settings

PLATFORM = "toy-sim1.0-fp32-1t"
PROFILE = {
    "platform": PLATFORM,
    "peak_macs_per_ms": 1e6,
    "vector_ops_per_ms": 1e4,
    "bandwidth_bytes_per_ms": 1e6,
    "overhead_ms": 0.5,
    "call_overhead_ms": 0.25,
    "noise": 0.001,
    "crash_ops": ["Tanh"],
    "unsupported_ops": ["Erf"],
}
QUICK = Settings(sessions=3, warmup_runs=1, warmup_ms=0.0, min_runs=5, max_runs=5, max_ms=20.0)


def graph(op: str = "Relu", size: int = 1000) -> Graph:
    kind = TensorType("float32", (1, size))
    node = Node("n", op, ("x",), ("y",))
    return Graph(op, ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})


def ask(op: str = "Relu", repeat: int = 0, *, profile: bool = False) -> MeasurementRequest:
    return MeasurementRequest(graph(op), PLATFORM, "kernel", QUICK, repeat, profile=profile)


def model(request: MeasurementRequest) -> tuple[str, bytes]:
    data = request.graph.dumps().encode()
    return hashlib.sha256(data).hexdigest(), data


def write_profile(folder: Path) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(PROFILE))
    return path


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAgent]:
    folder = tmp_path_factory.mktemp("agent")
    options = LocalAgentOptions(
        folder / "state", folder / "agent.log", "toy", simulate=write_profile(folder)
    )
    with LocalAgent(options) as local:
        yield local
        assert local.alive, local.log_tail()


def descendants(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def gone(pids: set[int]) -> bool:
    deadline_s = time.monotonic() + 60
    left = set(pids)
    while left and time.monotonic() < deadline_s:
        for pid in list(left):
            try:
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    left.discard(pid)
            except psutil.NoSuchProcess:
                left.discard(pid)
        time.sleep(0.01)
    return not left


def test_describe(agent: LocalAgent) -> None:
    async def main() -> BoardInfo:
        async with AgentClient(agent.address, "test") as client:
            return await client.describe()

    board = asyncio.run(main())
    assert board.name == "toy"
    assert board.protocol_version == PROTOCOL_VERSION
    platform = board.platform(PLATFORM)
    assert platform is not None
    assert platform.model_format == "graph-json"
    assert platform.fingerprint
    assert not platform.real_time


def test_from_question_to_stored_answer(agent: LocalAgent, tmp_path: Path) -> None:
    request = ask()
    sha256, data = model(request)
    stages: list[MeasuringStage] = []

    async def main() -> None:
        async with AgentClient(agent.address, "test") as client:
            await client.acquire(30_000)
            assert await client.upload(sha256, data) == len(data)
            assert await client.upload(sha256, data) == 0
            first = await client.measure(BoardRequest.of(request), sha256, stages.append)
            again = await client.measure(BoardRequest.of(request), sha256)
            assert again.received_at_s > first.received_at_s
            assert replace(again, received_at_s=first.received_at_s) == first
            with DuckDBStore(tmp_path / "s") as store:
                store.add_measurements("c", [(first, request.graph)])
                assert list(store.measurements(purpose="kernel")) == [first]
                assert store.get_graph(first.graph_hash) == request.graph
                assert store.latest(hash_of(request.graph), PLATFORM) == first
            assert await client.acknowledge([request.request_id]) == 1
            assert await client.acknowledge([request.request_id]) == 0
            await client.release()
            # 1000 elements at 1e4 per ms take 0.1 ms; the profile adds overheads of 0.5 + 0.25 ms.
            assert first.ok, first
            assert first.latency_ms == pytest.approx(0.75 + 0.1, rel=0.05)
            assert first.runs == 15
            assert len(first.session_ms) == 3
            assert not first.unstable
            assert first.platform == PLATFORM
            assert first.fingerprint
            assert first.measured_at_s > 1e9

    asyncio.run(main())
    assert "timing" in {stage.name for stage in stages}


def test_the_stream_and_plain_calls_give_the_same_measurement(agent: LocalAgent) -> None:
    """An older controller makes plain calls, and a newer one uses the stream of the same agent."""
    request = ask(repeat=7)
    sha256, data = model(request)
    stages: list[MeasuringStage] = []

    async def main() -> None:
        async with StreamingClient(agent.address, "test") as client:
            await client.describe()
            assert client.streams
            await client.acquire(30_000)
            assert await client.upload(sha256, data) == 0  # it goes with the order
            streamed = await client.measure(BoardRequest.of(request), sha256, stages.append)
            assert (await client.renew()).ttl_ms == 30_000
            async with AgentClient(agent.address, "test") as older:
                older._lease = client.lease
                assert await older.upload(sha256, data) == 0
                plain = await older.measure(BoardRequest.of(request), sha256)
            assert replace(plain, received_at_s=streamed.received_at_s) == streamed
            assert streamed.ok
            assert "timing" in [stage.name for stage in stages]
            await client.acknowledge([request.request_id])
            await client.release()  # which first sends what waits
        async with AgentClient(agent.address, "test") as older:
            await older.acquire(30_000)
            assert await older.acknowledge([request.request_id]) == 0
            await older.release()

    asyncio.run(main())


def test_failures_of_models_are_data(agent: LocalAgent) -> None:
    async def main() -> None:
        async with AgentClient(agent.address, "test") as client:
            await client.acquire(30_000)
            for op, code in (("Erf", "MODEL_UNSUPPORTED"), ("Tanh", "MODEL_CRASHED")):
                request = ask(op)
                sha256, data = model(request)
                await client.upload(sha256, data)
                measurement = await client.measure(BoardRequest.of(request), sha256)
                assert measurement.outcome is Outcome.MODEL_ERROR
                assert measurement.error_code == code
                assert measurement.latency_ms is None
            await client.release()

    asyncio.run(main())


def test_profile(agent: LocalAgent) -> None:
    request = ask(profile=True)
    sha256, data = model(request)

    async def main() -> None:
        async with AgentClient(agent.address, "test") as client:
            await client.acquire(30_000)
            await client.upload(sha256, data)
            measurement = await client.measure(BoardRequest.of(request), sha256)
            await client.release()
            assert measurement.outcome is Outcome.OK
            assert [layer.op for layer in measurement.layers] == ["Relu"]

    asyncio.run(main())


def test_two_holders(agent: LocalAgent) -> None:
    async def main() -> None:
        async with (
            AgentClient(agent.address, "first") as first,
            AgentClient(agent.address, "second") as second,
        ):
            await first.acquire(30_000)
            with pytest.raises(LeaseError, match="first"):
                await second.acquire(30_000)
            await first.release()
            await second.acquire(30_000)
            with pytest.raises(LeaseError, match="not leased to first"):
                await first.renew()
            await second.release()

    asyncio.run(main())


def test_a_restarted_agent_still_has_what_was_measured(tmp_path: Path) -> None:
    request = ask()
    sha256, data = model(request)
    options = LocalAgentOptions(
        tmp_path / "state", tmp_path / "agent.log", "toy", simulate=write_profile(tmp_path)
    )

    async def measure(address: str) -> tuple[float, int]:
        async with AgentClient(address, "test") as client:
            await client.acquire(30_000)
            sent = await client.upload(sha256, data)
            return (await client.measure(BoardRequest.of(request), sha256)).measured_at_s, sent

    with LocalAgent(options) as local:
        assert local.pid is not None
        before = asyncio.run(measure(local.address))
        workers = descendants(local.pid)
        os.kill(local.pid, signal.SIGKILL)
    assert gone(workers)
    with LocalAgent(options) as local:
        after = asyncio.run(measure(local.address))
    assert before[1] == len(data)
    assert after == (before[0], 0)


PARENT = """
import sys
from pathlib import Path
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
folder = Path(sys.argv[1])
local = LocalAgent(LocalAgentOptions(
    folder / "state", folder / "agent.log", "toy", simulate=folder / "profile.json"))
local.start()
print(local.pid, flush=True)
sys.stdin.readline()
"""


def test_a_killed_controller_leaves_no_agent(tmp_path: Path) -> None:
    write_profile(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            everything = {pid} | descendants(pid)
        finally:
            parent.kill()
    assert gone(everything)
