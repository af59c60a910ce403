"""The agent over real gRPC, with a fake bench and a clock that the tests move."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from latfarm_agent import errors
from latfarm_agent.bench.records import BenchResult, MeasuredSession
from latfarm_agent.service.server import SERVICE_NAME, AgentServer
from latfarm_agent.service.servicer import ERROR_KEY, MAX_LISTENERS, STATUS_CODES, status_of
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm

Code = grpc.StatusCode
WAIT_S = 30


class Failure:
    """What a failed call told."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.status = error.code()
        self.details = error.details()
        trailing = {key: value for key, value in error.trailing_metadata() or ()}
        self.code = trailing.get(ERROR_KEY)


def fails(call: Any, *args: Any, **named: Any) -> Failure:
    with pytest.raises(grpc.RpcError) as caught:
        drain(call(*args, **named))
    return Failure(caught.value)


def drain(answer: Any) -> None:
    """Take a stream's events; a plain reply has none."""
    if hasattr(answer, "cancel"):
        list(answer)


def result_of(events: Any) -> pb.Result:
    *stages, last = list(events)
    assert all(event.HasField("stage") for event in stages)
    result: pb.Result = last.result
    return result


def first_stage(events: Any) -> str:
    return str(next(events).stage.name)


def test_the_whole_way(farm: Farm, client: Client) -> None:
    described = client.stub.Describe(pb.DescribeRequest())
    assert described.state == "idle"
    assert described.board.board_id == "board-1"
    assert int(described.board.conditions["disk_room_bytes"]) > 0
    assert described.protocol_version == 1
    assert [runtime.available for runtime in described.runtimes] == [True, False]
    token = client.acquire()
    assert client.state() == "leased"
    sha256 = client.upload(token, b"model" * 100_000)
    events = list(client.measure(token, sha256))
    assert [event.stage.name for event in events[:-1]] == ["queued", "loading", "timing"]
    result = events[-1].result
    assert (result.outcome, result.request_id, result.board_id) == ("ok", "r1", "board-1")
    assert (result.platform, result.fingerprint) == (client.platform, "f1")
    assert result.protocol_version == 1
    assert result.measured_at_s > 0
    assert client.spooled() == [result]
    assert client.acknowledge("r1", "unknown") == 1
    assert client.spooled() == []
    client.release(token)
    assert client.state() == "idle"


def test_a_repeat_is_answered_from_the_spool_even_after_a_restart(
    farm: Farm, server: AgentServer, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    result = client.result(token, sha256)
    assert client.result(token, sha256) == result
    assert [event.WhichOneof("event") for event in client.measure(token, sha256)] == ["result"]
    farm.stop(server)
    client = farm.client(farm.start())
    assert client.result(client.acquire(), sha256) == result
    assert farm.bench.measured == ["r1"]


def test_after_an_acknowledgement_the_question_is_measured_again(
    farm: Farm, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    client.result(token, sha256)
    client.acknowledge("r1")
    client.result(token, sha256)
    assert farm.bench.measured == ["r1", "r1"]


def test_a_running_measurement_is_not_disturbed_by_a_look_at_the_board(
    farm: Farm, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    call = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)

    def broken() -> Any:
        raise AssertionError("looked at while it measured")

    monkeypatch.setattr(farm.bench, "describe", broken)
    described = client.stub.Describe(pb.DescribeRequest())
    assert described.state == "running"
    assert described.runtimes[0].platforms[0].name == client.platform
    farm.bench.let_go()
    assert result_of(call).outcome == "ok"


def test_a_second_caller_joins_a_running_measurement(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    first = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)
    second = client.measure(token, sha256)
    assert first_stage(second) == "queued", "it hears of all stages from the first on"
    farm.bench.let_go()
    assert result_of(first) == result_of(second)
    assert farm.bench.measured == ["r1"]


def test_another_question_under_the_same_id_is_refused(farm: Farm, client: Client) -> None:
    token = client.acquire()
    one, two = client.upload(token, b"one"), client.upload(token, b"two")
    farm.bench.hold()
    running = client.measure(token, one)
    farm.bench.started.get(timeout=WAIT_S)
    assert fails(client.measure, token, two).status is Code.ALREADY_EXISTS
    farm.bench.let_go()
    result_of(running)
    assert fails(client.measure, token, two).code == "REQUEST_CONFLICT"
    profile = fails(client.stub.Profile, client.request(token, one))
    assert profile.status is Code.ALREADY_EXISTS


def test_a_profile_has_layers(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    result = result_of(client.stub.Profile(client.request(token, sha256)))
    assert [layer.op for layer in result.layers] == ["Conv"]


def test_measurements_run_one_after_the_other(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    names = [f"r{number}" for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda name: client.result(token, sha256, name), names))
    assert [result.request_id for result in results] == names
    assert {result.outcome for result in results} == {"ok"}, "the bench saw one at a time"
    assert sorted(farm.bench.measured) == sorted(names)


def test_a_full_queue_is_refused(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    calls = []
    for number in range(17):
        calls.append(client.measure(token, sha256, f"r{number}"))
        assert first_stage(calls[-1]) == "queued"
    refused = fails(client.measure, token, sha256, "one more")
    assert refused.status is Code.INVALID_ARGUMENT, "a blank in a request id"
    refused = fails(client.measure, token, sha256, "one-more")
    assert (refused.status, refused.code) == (Code.RESOURCE_EXHAUSTED, "BUSY")
    farm.bench.let_go()
    assert {result_of(call).outcome for call in calls} == {"ok"}


def test_listeners_are_bounded_and_a_lease_still_gets_through(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    calls = []
    for _ in range(MAX_LISTENERS):
        calls.append(client.measure(token, sha256))
        assert first_stage(calls[-1]) == "queued"
    assert fails(client.measure, token, sha256).code == "BUSY"
    assert client.stub.RenewLease(pb.RenewLeaseRequest(token=token, ttl_ms=1000)).ttl_ms == 1000
    for call in calls[1:]:
        call.cancel()
    farm.bench.let_go()
    assert result_of(calls[0]).outcome == "ok"
    # Their threads come back when the agent has noticed; each try is a whole call.
    while True:
        call = client.measure(token, sha256)
        with contextlib.suppress(grpc.RpcError):
            drain(call)
        if call.code() is not Code.RESOURCE_EXHAUSTED:
            break
    assert call.code() is Code.OK


def test_a_client_that_goes_away_costs_no_measurement(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    call = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)
    call.cancel()
    again = client.measure(token, sha256)
    assert first_stage(again) == "queued"
    farm.bench.let_go()
    assert result_of(again).outcome == "ok"
    assert farm.bench.measured == ["r1"]


def test_the_end_of_the_lease_cancels_and_the_next_holder_measures_anew(
    farm: Farm, server: AgentServer, client: Client
) -> None:
    token = client.acquire(ttl_ms=500)
    sha256 = client.upload(token)
    farm.bench.hold()
    running = client.measure(token, sha256, "r1")
    farm.bench.started.get(timeout=WAIT_S)
    waiting = client.measure(token, sha256, "r2")
    assert first_stage(waiting) == "queued"
    farm.pass_time(server, 500)
    for call in (running, waiting):
        result = result_of(call)
        assert (result.outcome, result.error_code) == ("infrastructure_error", "LEASE_LOST")
        assert "ann was expired" in result.error_message
    assert {result.error_code for result in client.spooled()} == {"LEASE_LOST"}
    assert fails(client.measure, token, sha256).code == "LEASE_LOST"
    farm.bench.let_go()
    newer = client.acquire("bob")
    assert newer > token
    assert client.result(newer, sha256, "r1").outcome == "ok", "a failure is measured again"
    assert [result.outcome for result in client.spooled()] == ["infrastructure_error", "ok"]


def test_a_released_lease_cancels_too(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    call = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)
    client.release(token)
    assert result_of(call).error_code == "LEASE_LOST"


def test_renewing_in_time_keeps_the_board(farm: Farm, server: AgentServer, client: Client) -> None:
    token = client.acquire(ttl_ms=500)
    for _ in range(5):
        farm.pass_time(server, 400)
        client.stub.RenewLease(pb.RenewLeaseRequest(token=token, ttl_ms=500))
    client.upload(token)
    farm.pass_time(server, 500)
    renewed = fails(client.stub.RenewLease, pb.RenewLeaseRequest(token=token, ttl_ms=500))
    assert (renewed.status, renewed.code) == (Code.FAILED_PRECONDITION, "LEASE_LOST")


def test_a_second_holder_hears_the_name_of_the_first(client: Client) -> None:
    client.acquire("ann")
    refused = fails(client.acquire, "bob")
    assert refused.status is Code.RESOURCE_EXHAUSTED
    assert refused.code == "LEASE_HELD"
    assert "leased to ann" in refused.details


def test_tokens_grow_across_restarts(farm: Farm, server: AgentServer, client: Client) -> None:
    first = client.acquire()
    farm.stop(server)
    client = farm.client(farm.start())
    stale = fails(client.measure, first, "a" * 64)
    assert stale.status is Code.FAILED_PRECONDITION
    assert client.acquire() > first


def test_a_lease_whose_token_cannot_be_kept_is_not_granted(farm: Farm, client: Client) -> None:
    token_file = farm.state_dir / "token.tmp"
    token_file.mkdir()
    refused = fails(client.acquire)
    assert (refused.status, refused.code) == (Code.INTERNAL, "STATE")
    assert client.state() == "idle"
    token_file.rmdir()
    assert client.acquire() == 2


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"token": 99}, Code.FAILED_PRECONDITION, "never granted"),
        ({"token": 0}, Code.FAILED_PRECONDITION, "never granted"),
        ({"platform": "pixel9"}, Code.INVALID_ARGUMENT, "offers: fake-onnxruntime1.0-fp32-1t"),
        ({"platform": "x" * 100_000}, Code.INVALID_ARGUMENT, "unknown platform"),
        ({"blob_sha256": "b" * 64}, Code.NOT_FOUND, "upload it first"),
        ({"blob_sha256": "../../token"}, Code.INVALID_ARGUMENT, "no sha256"),
        ({"request_id": ""}, Code.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "x" * 129}, Code.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "a\nb"}, Code.INVALID_ARGUMENT, "request_id"),
    ],
)
def test_a_wrong_request_is_refused_with_its_story(
    farm: Farm, client: Client, changes: Any, status: grpc.StatusCode, text: str
) -> None:
    token = client.acquire()
    request = client.request(token, client.upload(token))
    request.MergeFrom(pb.MeasureRequest(**changes))
    for name, value in changes.items():
        setattr(request, name, value)
    for method in (client.stub.Measure, client.stub.Profile):
        refused = fails(method, request)
        assert refused.status is status
        assert text in refused.details
    assert farm.bench.measured == []


def cut_upload(client: Client, token: int, data: bytes, count: int) -> None:
    """Send `count` bytes of a blob, wait until they are there, and break the call."""
    sha256 = hashlib.sha256(data).hexdigest()
    enough = threading.Event()

    def messages() -> Iterator[pb.UploadBlobRequest]:
        first = pb.UploadBlobRequest(token=token, sha256=sha256, size_bytes=len(data))
        first.data = data[:count]
        yield first
        enough.wait(WAIT_S)

    call = client.stub.UploadBlob.future(messages())
    while client.blob(sha256).received_bytes < count:
        assert not call.done()
    call.cancel()
    enough.set()


def test_an_upload_that_is_cut_resumes(client: Client) -> None:
    token = client.acquire()
    data = bytes(range(256)) * 4096
    cut_upload(client, token, data, 300_000)
    sha256 = hashlib.sha256(data).hexdigest()
    state = client.blob(sha256)
    assert (state.received_bytes, state.complete) == (300_000, False)
    missing = fails(client.measure, token, sha256)
    assert missing.status is Code.NOT_FOUND
    for offset in (0, 299_999, 300_001):
        wrong = fails(client.upload, token, data, offset)
        assert (wrong.status, wrong.code) == (Code.OUT_OF_RANGE, "BAD_OFFSET")
        assert "300000 bytes" in wrong.details
    client.upload(token, data, 300_000)
    assert client.blob(sha256).complete
    assert client.result(token, sha256).outcome == "ok"
    client.upload(token, data)  # once more: it is there


def upload_message(**fields: Any) -> pb.UploadBlobRequest:
    return pb.UploadBlobRequest(**{"sha256": "a" * 64, "size_bytes": 5, **fields})


@pytest.mark.parametrize(
    ("messages", "status", "text"),
    [
        ([], Code.INVALID_ARGUMENT, "at least one message"),
        ([{"sha256": "../../x"}], Code.INVALID_ARGUMENT, "no sha256"),
        ([{"sha256": ""}], Code.INVALID_ARGUMENT, "no sha256"),
        ([{"size_bytes": 2**64 - 1}], Code.RESOURCE_EXHAUSTED, "limit of 1000000 bytes"),
        ([{"offset": 2**64 - 1}], Code.OUT_OF_RANGE, "0 bytes"),
        ([{"token": 77}], Code.FAILED_PRECONDITION, "never granted"),
        ([{"data": b"wrong"}], Code.INVALID_ARGUMENT, "they hash to"),
        ([{"data": b"too long"}], Code.INVALID_ARGUMENT, "more than the 5 bytes"),
        ([{}, {"sha256": "b" * 64}], Code.INVALID_ARGUMENT, "one upload carries one blob"),
        ([{"data": b"x" * (17 << 20)}], Code.RESOURCE_EXHAUSTED, ""),
    ],
)
def test_a_hostile_upload_leaves_nothing(
    farm: Farm, messages: Any, status: grpc.StatusCode, text: str
) -> None:
    client = farm.client(farm.start(max_blob_bytes=1_000_000))
    token = client.acquire()
    stream = [upload_message(**{"token": token, **message}) for message in messages]
    refused = fails(client.send, stream)
    assert refused.status is status
    assert text in refused.details
    kept = [path for path in farm.state_dir.rglob("*") if path.is_file() and path.stat().st_size]
    assert sorted(path.name for path in kept) == ["lock", "token"]
    client.upload(token)


def test_an_upload_that_ends_early_is_told_so(client: Client) -> None:
    token = client.acquire()
    sha256 = hashlib.sha256(b"model").hexdigest()
    first = pb.UploadBlobRequest(token=token, sha256=sha256, size_bytes=5, data=b"mod")
    state = client.send([first])
    assert (state.received_bytes, state.complete) == (3, False)


def test_an_upload_ends_with_its_lease(farm: Farm, server: AgentServer, client: Client) -> None:
    token = client.acquire(ttl_ms=500)
    data = b"model" * 1000
    sha256 = hashlib.sha256(data).hexdigest()

    def messages() -> Iterator[pb.UploadBlobRequest]:
        yield pb.UploadBlobRequest(
            token=token, sha256=sha256, size_bytes=len(data), data=data[:1000]
        )
        while client.blob(sha256).received_bytes < 1000:
            pass
        farm.pass_time(server, 500)
        yield pb.UploadBlobRequest(data=data[1000:])

    assert fails(client.send, messages()).code == "LEASE_LOST"
    assert client.blob(sha256).received_bytes == 1000


def test_a_blob_in_use_is_not_evicted(farm: Farm) -> None:
    client = farm.client(farm.start(max_cache_bytes=1000))
    token = client.acquire()
    sha256 = client.upload(token, b"1" * 600)
    farm.bench.hold()
    call = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)
    refused = fails(client.upload, token, b"2" * 600)
    assert (refused.status, refused.code) == (Code.RESOURCE_EXHAUSTED, "BLOB_TOO_LARGE")
    farm.bench.let_go()
    assert result_of(call).outcome == "ok"
    client.upload(token, b"2" * 600)
    assert not client.blob(sha256).complete


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
    """gRPC keeps a call whose message it could not read for ever; so we read it ourselves."""

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
            assert caught.value.details() == "this is no message of this method"
    assert client.state() == "idle"
    assert kept() < before + 10, "a leak would keep all 20"
