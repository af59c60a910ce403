"""The holder of a board has its agent restart workers or runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latfarm_protos.v1 import agent_pb2 as pb
from tests.agent.service.calls import Code, fails, first_stage

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm


def restart(client: Client, token: int, part: str) -> str:
    return str(client.stub.Restart(pb.RestartRequest(token=token, part=part)).done)


def test_the_holder_restarts_a_part(farm: Farm, client: Client) -> None:
    described = client.stub.Describe(pb.DescribeRequest())
    assert "restart" in described.capabilities
    token = client.acquire()
    assert restart(client, token, "worker") == "the worker is new"
    assert restart(client, token, "runtime") == "the runtime is new"
    assert farm.bench.restarted == ["worker", "runtime"]


def test_nobody_else_restarts_anything(farm: Farm, client: Client) -> None:
    old = client.acquire(holder_id="secret")
    client.acquire(holder_id="secret")
    assert fails(restart, client, old, "worker").status is Code.FAILED_PRECONDITION
    assert fails(restart, client, 0, "worker").status is Code.FAILED_PRECONDITION
    assert farm.bench.restarted == []


def test_an_unknown_part_is_refused(farm: Farm, client: Client) -> None:
    refused = fails(restart, client, client.acquire(), "board")
    assert refused.status is Code.INVALID_ARGUMENT
    assert "known: worker, runtime" in refused.details
    assert farm.bench.restarted == []


def test_a_running_measurement_is_not_disturbed(farm: Farm, client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    farm.bench.hold()
    events = client.measure(token, sha256)
    assert first_stage(events) == "queued"
    refused = fails(restart, client, token, "worker")
    assert refused.status is Code.RESOURCE_EXHAUSTED
    assert refused.code == "BUSY"
    farm.bench.let_go()
    list(events)
    assert farm.bench.restarted == []
