"""A real gRPC agent with a fake bench on a free port, and a small client for it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from latfarm_agent.service.server import AgentServer, ServiceConfig
from latfarm_agent.session.session import SessionLimits
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

if TYPE_CHECKING:
    from tests.agent.service.fake_bench import FakeBench

FAKE_BENCH = Path(__file__).with_name("fake_bench.py")


def load_fake_bench() -> Any:
    """The module `fake_bench` in this folder, which is not a package."""
    name = "latfarm_fake_bench"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FAKE_BENCH)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1000.0

    def __call__(self) -> float:
        return self.now_ms


class Client:
    """Calls of the agent's service, with defaults for the tests."""

    platform = "fake-onnxruntime1.0-fp32-1t"

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.stub = agent_pb2_grpc.AgentServiceStub(channel)

    def acquire(self, holder: str = "ann", ttl_ms: int = 60_000, holder_id: str = "") -> int:
        request = pb.AcquireLeaseRequest(holder=holder, ttl_ms=ttl_ms, holder_id=holder_id)
        return int(self.stub.AcquireLease(request).token)

    def release(self, token: int) -> None:
        self.stub.ReleaseLease(pb.ReleaseLeaseRequest(token=token))

    def state(self) -> str:
        return str(self.stub.Describe(pb.DescribeRequest()).state)

    def blob(self, sha256: str) -> pb.BlobState:
        state: pb.BlobState = self.stub.GetBlob(pb.GetBlobRequest(sha256=sha256))
        return state

    def send(self, messages: Iterable[pb.UploadBlobRequest]) -> pb.BlobState:
        state: pb.BlobState = self.stub.UploadBlob(iter(messages))
        return state

    def upload(self, token: int, data: bytes = b"model", offset: int = 0) -> str:
        state = self.send(self.messages(token, data, offset))
        assert state.complete
        return str(state.sha256)

    @staticmethod
    def messages(
        token: int, data: bytes, offset: int = 0, chunk: int = 1 << 20
    ) -> Iterator[pb.UploadBlobRequest]:
        yield pb.UploadBlobRequest(
            token=token,
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            offset=offset,
        )
        for start in range(offset, len(data), chunk):
            yield pb.UploadBlobRequest(data=data[start : start + chunk])

    def request(self, token: int, sha256: str, request_id: str = "r1") -> pb.MeasureRequest:
        return pb.MeasureRequest(
            request_id=request_id, token=token, platform=self.platform, blob_sha256=sha256
        )

    def measure(self, token: int, sha256: str, request_id: str = "r1") -> Any:
        return self.stub.Measure(self.request(token, sha256, request_id))

    def result(self, token: int, sha256: str, request_id: str = "r1") -> pb.Result:
        return result_of(self.measure(token, sha256, request_id))

    def spooled(self, after: str = "") -> list[pb.Result]:
        return list(self.stub.ListResults(pb.ListResultsRequest(after=after)).results)

    def acknowledge(self, *request_ids: str) -> int:
        reply = self.stub.Acknowledge(pb.AcknowledgeRequest(request_ids=request_ids))
        return int(reply.removed)


def result_of(events: Iterable[pb.MeasureEvent]) -> pb.Result:
    """The only result of a stream of events, which ends it."""
    *stages, last = list(events)
    assert all(event.WhichOneof("event") == "stage" for event in stages)
    assert last.WhichOneof("event") == "result"
    return last.result


class Farm:
    """Agents and clients that a test starts; they end with the test."""

    def __init__(self, directory: Path) -> None:
        self.state_dir = directory / "state"
        self.clock = Clock()
        self.bench: FakeBench = load_fake_bench().FakeBench()
        self._servers: list[AgentServer] = []
        self._channels: list[grpc.Channel] = []

    def start(
        self, make_bench: Callable[[], FakeBench] | None = None, **config: Any
    ) -> AgentServer:
        settings = {
            "state_dir": self.state_dir,
            "limits": SessionLimits(cooldown_ms=100, faults_to_quarantine=2, quarantine_ms=1000),
            **config,
        }
        server = AgentServer(
            ServiceConfig(**settings), make_bench or (lambda: self.bench), now_ms=self.clock
        )
        self._servers.append(server)
        server.start()
        return server

    def stop(self, server: AgentServer) -> None:
        self._servers.remove(server)
        server.stop(grace_s=5)

    def client(self, server: AgentServer, credentials: Any = None) -> Client:
        if credentials is None:
            channel = grpc.insecure_channel(server.address)
        else:
            channel = grpc.secure_channel(server.address, credentials)
        self._channels.append(channel)
        return Client(channel)

    def pass_time(self, server: AgentServer, step_ms: float) -> None:
        self.clock.now_ms += step_ms
        server.conductor.describe()  # each call lets the session see the time

    def close(self) -> None:
        self.bench.let_go()
        for channel in self._channels:
            channel.close()
        for server in list(self._servers):
            self.stop(server)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Starts agents and clients."""
    started = Farm(tmp_path)
    yield started
    started.close()


@pytest.fixture
def server(farm: Farm) -> AgentServer:
    """A running agent."""
    return farm.start()


@pytest.fixture
def client(farm: Farm, server: AgentServer) -> Client:
    """A client of `server`."""
    return farm.client(server)
