"""Racks of a few boards, and a small client for one board."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from latfarm_agent.rack.rack import Rack, RackConfig
from latfarm_agent.service.server import ServiceConfig
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

PLATFORM = "sim-rack"
PROFILE = {"platform": PLATFORM, "noise": 0.01, "session_noise": 0.01, "seed": 3}
WAIT_S = 60.0
SETTINGS = pb.Settings(
    sessions=2,
    warmup_runs=1,
    min_runs=3,
    max_runs=5,
    max_ms=1.0,
    compile_timeout_ms=60_000.0,
    run_timeout_ms=60_000.0,
)


class BoardCalls:
    """Calls of one board."""

    def __init__(self, address: str) -> None:
        # A board that was restarted has its address again, but not its old connections.
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        self.channel = grpc.insecure_channel(address, options=options)
        self.stub = agent_pb2_grpc.AgentServiceStub(self.channel)

    def describe(self) -> pb.DescribeResponse:
        described: pb.DescribeResponse = self.stub.Describe(
            pb.DescribeRequest(), timeout=WAIT_S, wait_for_ready=True
        )
        return described

    def acquire(self, ttl_ms: int = 600_000) -> int:
        request = pb.AcquireLeaseRequest(holder="test", ttl_ms=ttl_ms)
        lease = self.stub.AcquireLease(request, timeout=WAIT_S, wait_for_ready=True)
        return int(lease.token)

    def upload(self, token: int, model: Path) -> str:
        data = model.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        messages = iter(
            [
                pb.UploadBlobRequest(token=token, sha256=sha256, size_bytes=len(data)),
                pb.UploadBlobRequest(data=data),
            ]
        )
        assert self.stub.UploadBlob(messages, timeout=WAIT_S).complete
        return sha256

    def measure(self, token: int, sha256: str, request_id: str = "r1", **settings: Any) -> Any:
        wanted = pb.Settings()
        wanted.CopyFrom(SETTINGS)
        wanted.MergeFrom(pb.Settings(**settings))
        return self.stub.Measure(
            pb.MeasureRequest(
                request_id=request_id,
                token=token,
                platform=PLATFORM,
                blob_sha256=sha256,
                settings=wanted,
            ),
            timeout=WAIT_S,
        )

    def result(self, token: int, sha256: str, request_id: str = "r1", **settings: Any) -> pb.Result:
        events = list(self.measure(token, sha256, request_id, **settings))
        assert events[-1].WhichOneof("event") == "result"
        result: pb.Result = events[-1].result
        return result

    def spooled(self) -> list[str]:
        listed = self.stub.ListResults(pb.ListResultsRequest(), timeout=WAIT_S)
        return [result.request_id for result in listed.results]

    def close(self) -> None:
        self.channel.close()


class Racks:
    """Starts racks over one folder, and clients of their boards; all end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile = folder / "profile.json"
        self.profile.write_text(json.dumps(PROFILE))
        self._running: list[Rack] = []
        self._calls: list[BoardCalls] = []

    def config(self, boards: int = 2, *, state: str = "state", **values: Any) -> RackConfig:
        service = ServiceConfig(self.folder / state, **values.pop("service", {}))
        return RackConfig(self.profile, boards, service, **values)

    def start(self, boards: int = 2, **values: Any) -> Rack:
        rack = Rack(self.config(boards, **values))
        rack.start()
        self._running.append(rack)
        return rack

    def stop(self, rack: Rack) -> None:
        self._running.remove(rack)
        rack.stop(1.0)

    def calls(self, rack: Rack, number: int) -> BoardCalls:
        """The client of a board; boards are numbered from 1."""
        return self.calls_at(rack.inventory()["boards"][f"rack-{number:04d}"]["address"])

    def calls_at(self, address: str) -> BoardCalls:
        self._calls.append(BoardCalls(address))
        return self._calls[-1]

    def close(self) -> None:
        for calls in self._calls:
            calls.close()
        for rack in list(self._running):
            self.stop(rack)


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    made = Racks(tmp_path)
    yield made
    made.close()


@pytest.fixture
def model(tmp_path: Path, conv_graph: Callable[..., Path]) -> Path:
    return conv_graph(tmp_path / "model.json")


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits until a state is there."""

    def wait(there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not there():
            assert time.monotonic() < deadline_s, "the state never came"
            time.sleep(0.01)

    return wait
