"""What an agent does over real gRPC when a bench, a board, a disk or a client fails."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from latfarm_agent import errors
from latfarm_agent.bench.records import BenchResult, MeasuredSession
from latfarm_agent.service.server import SERVICE_NAME, AgentServer
from latfarm_agent.service.servicer import STATUS_CODES, status_of
from latfarm_protos.v1 import agent_pb2 as pb
from tests.agent.service.calls import WAIT_S, Code, fails, first_stage, result_of, until

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm


def test_a_bench_that_breaks_its_promise_is_an_infrastructure_error(
    farm: Farm, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.answers.append(ValueError("oops"))
    result = client.result(token, sha256)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "AGENT_FAULT")
    assert result.error_message == "ValueError: oops"
    assert client.result(token, sha256).outcome == "ok"


def test_a_model_error_is_final_and_harms_no_board(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    for number in range(4):
        farm.bench.answers.append(BenchResult(outcome="model_error", error_code="MODEL_INVALID"))
        assert client.result(token, sha256, f"r{number}").error_code == "MODEL_INVALID"
    assert client.result(token, sha256, "r0").outcome == "model_error"
    assert farm.bench.measured == ["r0", "r1", "r2", "r3"]
    assert client.state() == "leased"


def health_of(client: Client, service: str = SERVICE_NAME) -> int:
    stub = health_pb2_grpc.HealthStub(client.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service)).status)


def test_a_sick_board_is_quarantined_and_says_so(
    farm: Farm, server: AgentServer, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    assert health_of(client) == health_of(client, "") == health_pb2.HealthCheckResponse.SERVING
    for _ in range(2):
        farm.bench.answers.append(
            BenchResult(outcome="infrastructure_error", error_code="WORKER_LOST")
        )
        client.result(token, sha256)
    assert client.state() == "quarantined"
    assert health_of(client) == health_pb2.HealthCheckResponse.NOT_SERVING
    refused = fails(client.measure, token, sha256)
    assert (refused.status, refused.code) == (Code.UNAVAILABLE, "QUARANTINED")
    farm.pass_time(server, 1000)
    assert health_of(client) == health_pb2.HealthCheckResponse.SERVING
    assert client.result(token, sha256).outcome == "ok"


def test_a_throttled_board_cools_before_the_next_measurement(
    farm: Farm, server: AgentServer, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.answers.append(BenchResult(outcome="infrastructure_error", error_code="THROTTLED"))
    client.result(token, sha256)
    assert client.state() == "cooling"
    call = client.measure(token, sha256)
    assert first_stage(call) == "queued"
    assert farm.bench.measured == ["r1"]
    farm.pass_time(server, 100)
    assert result_of(call).outcome == "ok"


def test_a_full_spool_refuses_new_questions_only(farm: Farm) -> None:
    client = farm.client(farm.start(max_spooled=2))
    token = client.acquire()
    sha256 = client.upload(token)
    client.result(token, sha256, "r1")
    client.result(token, sha256, "r2")
    refused = fails(client.measure, token, sha256, "r3")
    assert (refused.status, refused.code) == (Code.RESOURCE_EXHAUSTED, "SPOOL_FULL")
    assert client.result(token, sha256, "r1").outcome == "ok"
    client.acknowledge("r1")
    assert client.result(token, sha256, "r3").outcome == "ok"


def test_a_result_that_cannot_be_spooled_is_still_sent(
    farm: Farm, server: AgentServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latfarm_agent.files.spool import Spool

    def full(spool: Spool, entry: object) -> None:
        raise errors.AgentDiskFullError("no room")

    token = client.acquire()
    sha256 = client.upload(token)
    monkeypatch.setattr(Spool, "put", full)
    assert client.result(token, sha256).outcome == "ok"
    assert client.spooled() == []
    assert "latfarm_agent_spool_failures_total 1.0" in server.metrics.text()


def test_many_results_are_listed_in_parts(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    names = [f"r{number}" for number in range(5)]
    for name in names:
        farm.bench.answers.append(
            BenchResult(outcome="ok", sessions=[MeasuredSession(runs_ms=[1.5] * 100_000)])
        )
        client.result(token, sha256, name)
    seen = []
    while True:
        results = client.spooled()
        if not results:
            break
        assert sum(result.ByteSize() for result in results) < 4 << 20
        seen += [result.request_id for result in results]
        client.acknowledge(*[result.request_id for result in results])
    assert seen == names


def test_stopping_gives_listeners_a_result_and_ends_the_bench(
    farm: Farm, server: AgentServer, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    call = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)
    farm.stop(server)
    assert result_of(call).error_code == "AGENT_STOPPED"
    assert farm.bench.closed
    assert fails(client.state).status is Code.UNAVAILABLE


def test_an_unexpected_error_tells_no_insides(
    farm: Farm, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(farm.bench, "describe", broken)
    failed = fails(client.stub.Describe, pb.DescribeRequest())
    assert failed.status is Code.INTERNAL
    assert failed.details == "the agent failed (RuntimeError); its log tells more"


def test_every_error_has_a_status() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.LatfarmAgentError)
    ]
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    for kind in kinds:
        internal = status_of(kind("text")) is Code.INTERNAL
        own_fault = issubclass(kind, errors.StateError) or kind in (
            errors.LatfarmAgentError,
            errors.AgentUsageError,
        )
        assert internal == (own_fault and kind is not errors.AgentDiskFullError)
    assert set(STATUS_CODES) <= set(kinds)


def test_reflection_is_there_when_asked_for(farm: Farm) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    request = reflection_pb2.ServerReflectionRequest(list_services="")
    plain = farm.client(farm.start())
    stub = reflection_pb2_grpc.ServerReflectionStub(plain.channel)
    assert fails(stub.ServerReflectionInfo, iter([request])).status is Code.UNIMPLEMENTED
    open_server = farm.start(reflection=True, state_dir=farm.state_dir / "other")
    stub = reflection_pb2_grpc.ServerReflectionStub(farm.client(open_server).channel)
    (reply,) = stub.ServerReflectionInfo(iter([request]))
    names = [service.name for service in reply.list_services_response.service]
    assert SERVICE_NAME in names


@pytest.mark.parametrize("method", ["Describe", "Measure", "UploadBlob", "Acknowledge"])
def test_what_is_no_message_is_refused_and_nothing_of_it_is_kept(
    server: AgentServer, client: Client, method: str
) -> None:
    """gRPC never ends a call whose message it cannot read, so the agent reads messages itself."""

    def kept() -> int:
        gc.collect()
        return sum(type(found).__name__ == "_RPCState" for found in gc.get_objects())

    before = kept()
    with grpc.insecure_channel(server.address) as channel:
        path = f"/latfarm_protos.v1.AgentService/{method}"
        calls = {
            "UploadBlob": lambda data: channel.stream_unary(path)(iter([data])),
            "Measure": lambda data: list(channel.unary_stream(path)(data)),
        }
        call = calls.get(method, channel.unary_unary(path))
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff\xff\xff")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == "the request is no message of its kind"
    assert client.state() == "idle"
    # The server ends a call a moment after its client has heard of it.
    assert until(lambda: kept() < before + 10), "a leak would keep all 20"
