"""Measurements and leases over real gRPC, with a fake bench and a clock that the tests move."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from latfarm_agent.service.server import AgentServer
from latfarm_agent.service.servicer import MAX_LISTENERS
from latfarm_protos.v1 import agent_pb2 as pb
from tests.agent.service.calls import WAIT_S, Code, drain, fails, first_stage, result_of

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm


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
    # The threads become free when the agent has noticed; each attempt is a complete call.
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
    assert client.spooled() == [], "nobody would ask for these failures"
    assert fails(client.measure, token, sha256).code == "LEASE_LOST"
    farm.bench.let_go()
    newer = client.acquire("bob")
    assert newer > token
    assert client.result(newer, sha256, "r1").outcome == "ok", "a failure is measured again"
    assert [result.outcome for result in client.spooled()] == ["ok"]


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
