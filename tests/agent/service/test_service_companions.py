"""Models of several files over the wire: what is uploaded, named and refused."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import grpc
import pytest
from latfarm_agent.files.companions import MOST_COMPANIONS
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm

MODEL, DATA = b"the model", b"its weights"


def asked(
    client: Client, token: int, sha256: str, companions: dict[str, str], request_id: str = "r1"
) -> pb.MeasureRequest:
    request = client.request(token, sha256, request_id)
    request.companions.update(companions)
    return request


def refusal(client: Client, request: pb.MeasureRequest) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Measure(request))
    code: grpc.StatusCode = caught.value.code()
    return code


def test_companions_reach_the_bench_with_the_model(farm: Farm, client: Client) -> None:
    token = client.acquire()
    model, data = client.upload(token, MODEL), client.upload(token, DATA)
    *_, last = client.stub.Measure(asked(client, token, model, {"weights": data}))
    assert last.result.outcome == "ok"
    assert farm.bench.started.get_nowait().companions == {"weights": data}


def test_another_list_of_companions_is_another_question(client: Client) -> None:
    token = client.acquire()
    model, data = client.upload(token, MODEL), client.upload(token, DATA)
    list(client.stub.Measure(asked(client, token, model, {"weights": data})))
    for other in ({"others": data}, {"weights": model}, {}):
        request = asked(client, token, model, other)
        assert refusal(client, request) is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "..", ""])
def test_a_name_that_is_no_plain_name_is_refused(client: Client, name: str) -> None:
    token = client.acquire()
    model, data = client.upload(token, MODEL), client.upload(token, DATA)
    request = asked(client, token, model, {name: data})
    assert refusal(client, request) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_companion_that_was_not_uploaded_is_asked_for(client: Client) -> None:
    token = client.acquire()
    model = client.upload(token, MODEL)
    missing = hashlib.sha256(DATA).hexdigest()
    request = asked(client, token, model, {"weights": missing})
    assert refusal(client, request) is grpc.StatusCode.NOT_FOUND
    client.upload(token, DATA)
    *_, last = client.stub.Measure(request)
    assert last.result.outcome == "ok"


def test_companions_in_use_are_not_evicted(farm: Farm) -> None:
    server = farm.start(max_cache_bytes=25)
    client = farm.client(server)
    token = client.acquire()
    model, data = client.upload(token, MODEL), client.upload(token, DATA)
    farm.bench.hold()
    events = client.stub.Measure(asked(client, token, model, {"weights": data}))
    next(events)
    with pytest.raises(grpc.RpcError) as caught:
        client.upload(token, b"a third blob")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    farm.bench.let_go()
    *_, last = events
    assert last.result.outcome == "ok"
    client.upload(token, b"a third blob")


def test_the_board_tells_how_many_it_takes(client: Client) -> None:
    described = client.stub.Describe(pb.DescribeRequest())
    assert described.board.conditions["model_companions"] == str(MOST_COMPANIONS)
