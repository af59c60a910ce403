"""Requests to the controller that would take far more memory than they have bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from latfarm_controller import json_fields
from latfarm_controller.api import careful_requests, query_messages
from latfarm_controller.api.client import BATCH_BYTES, HASHED_BYTES, ControllerClient, batches
from latfarm_controller.api.error_codes import ERROR_KEY, error_of
from latfarm_controller.api.messages import MAX_MESSAGE_BYTES
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.app.question import Question
from latfarm_controller.board_profile import MOST_TAGS
from latfarm_controller.errors import UsageError
from latfarm_protos.trust import message_fields
from latfarm_protos.trust.identity import OPERATOR, VIEWER
from latfarm_protos.trust.message_fields import (
    MANY_FIELDS,
    MOST_FIELDS,
    Unreadable,
    careful,
    has_more_fields,
)
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import database_pb2

from tests.security.conftest import Home, channel

CONTROLLER = pb.DESCRIPTOR.services_by_name["ControllerService"]
DATABASE = database_pb2.DESCRIPTOR.services_by_name["DatabaseService"]
EMPTY_QUESTION = b"\x0a\x00"
"""An empty question within `QueryManyRequest`: two bytes that become an object."""
UNKNOWN_FIELD = b"\x78\x00"
"""A field that no message has: its number is 15."""
AMPLIFYING = EMPTY_QUESTION * (MOST_FIELDS + 1)
FEW = 1000
"""The most fields in tests of many calls, so that counting them takes no time."""


def served(home: Home, look: Callable[[ControllerServer], None]) -> None:
    """Run `look` in a thread beside the controller."""

    async def play() -> None:
        async with home.serving() as server:
            await asyncio.to_thread(look, server)

    asyncio.run(play())


@contextmanager
def doors(home: Home, server: ControllerServer) -> Iterator[dict[str, grpc.Channel]]:
    """Channels through the gate for other machines, and through the socket of the home."""
    with (
        channel(server, home.client("ada", OPERATOR)) as outer,
        grpc.insecure_channel(server.address) as inner,
    ):
        yield {"gate": outer, "socket": inner}


def refusal(opened: grpc.Channel, service: Any, method: Any, *requests: bytes) -> grpc.RpcError:
    """Call a method with the bytes of requests; returns the error with which the call ends."""
    path = f"/{service.full_name}/{method.name}"
    kinds = {
        (False, False): opened.unary_unary,
        (False, True): opened.unary_stream,
        (True, True): opened.stream_stream,
    }
    call = kinds[method.client_streaming, method.server_streaming](path)
    asked = iter(requests) if method.client_streaming else requests[0]
    with pytest.raises(grpc.RpcError) as caught:
        drain(call(asked, timeout=60))
    return caught.value


def drain(answer: Any) -> None:
    """Read all messages of a stream; a plain answer has none."""
    if hasattr(answer, "cancel"):
        list(answer)


def assert_too_many(error: Any) -> None:
    """The error is typed, tells the reason and the remedy, and is a UsageError to our client."""
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata())[ERROR_KEY] == "UsageError"
    assert error.details() == f"the request {MANY_FIELDS}; ask for less at once"
    assert isinstance(error_of(error), UsageError)


def test_no_object_is_made_of_a_message_with_too_many_fields() -> None:
    class Spy:
        """Counts the messages that are made."""

        DESCRIPTOR = pb.QueryManyRequest.DESCRIPTOR
        made = 0

        @classmethod
        def read(cls, data: bytes) -> pb.QueryManyRequest:
            cls.made += 1
            message: pb.QueryManyRequest = pb.QueryManyRequest.FromString(data)
            return message

    read = careful(Spy.read)
    found = read(EMPTY_QUESTION * (MAX_MESSAGE_BYTES // 2))
    assert isinstance(found, Unreadable)
    assert found.why == MANY_FIELDS
    assert Spy.made == 0
    assert len(read(AMPLIFYING[2:]).questions) == MOST_FIELDS  # the most objects that are ever made
    assert Spy.made == 1


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """The most fields of a request in this test."""
    monkeypatch.setattr(message_fields, "MOST_FIELDS", FEW)
    monkeypatch.setattr(message_fields, "SMALL_BYTES", 2 * FEW)
    monkeypatch.setattr(careful_requests, "SMALL_BYTES", 2 * FEW)
    return FEW


def test_every_call_counts_the_fields_of_its_request(home: Home, few: int) -> None:
    many = UNKNOWN_FIELD * (few + 1)

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for method in CONTROLLER.methods:
                for door in opened.values():
                    assert_too_many(refusal(door, CONTROLLER, method, many))
            for method in DATABASE.methods:
                assert_too_many(refusal(opened["socket"], DATABASE, method, many))

    served(home, look)


def test_an_amplifying_question_is_refused_at_both_doors_and_the_controller_goes_on(
    home: Home,
) -> None:
    many = EMPTY_QUESTION * (1 << 20)  # 2 MiB, which would be a million objects
    method = CONTROLLER.methods_by_name["QueryMany"]

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for door in opened.values():
                assert_too_many(refusal(door, CONTROLLER, method, many))
                assert ControllerClient(door).boards()

    served(home, look)


def test_a_stream_of_candidates_ends_at_an_amplifying_one(home: Home, few: int) -> None:
    honest = pb.EstimateRequest(
        place=1, question=pb.QueryRequest(platform="p", graph_hash="a" * 64)
    )
    many = UNKNOWN_FIELD * (few + 1)
    method = CONTROLLER.methods_by_name["EstimateMany"]

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for door in opened.values():
                error = refusal(door, CONTROLLER, method, honest.SerializeToString(), many)
                assert_too_many(error)

    served(home, look)


@pytest.fixture
def few_values(monkeypatch: pytest.MonkeyPatch) -> str:
    """JSON with one value more than a field may have in this test; whoever reads it fails."""

    def load(data: bytes) -> Any:
        pytest.fail(f"{len(data)} bytes of JSON are read")

    monkeypatch.setattr(json_fields, "MOST_VALUES", FEW)
    monkeypatch.setattr(json_fields, "MOST_CONFIG_VALUES", FEW)
    monkeypatch.setattr(json_fields, "json", SimpleNamespace(loads=load))
    return "[" + ",".join(["[]"] * (FEW // 2)) + ",0]"


def assert_too_many_values(error: Any, field: str) -> None:
    """The error is typed, and names the field, the bound and the remedy."""
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata())[ERROR_KEY] == "UsageError"
    told = f"the field {field}_json has more than {FEW} values; ask for less at once"
    assert error.details() == told


@pytest.mark.parametrize(
    ("name", "field"), [("Predict", "graph"), ("Query", "graph"), ("StartCampaign", "config")]
)
def test_json_of_many_values_is_refused_before_it_is_read(
    name: str, field: str, home: Home, few_values: str
) -> None:
    asked: Any = {
        "Predict": pb.PredictRequest(platform="p", graph_json=few_values.encode()),
        "Query": pb.QueryRequest(platform="p", graph_json=few_values.encode()),
        "StartCampaign": pb.StartCampaignRequest(platform="p", config_json=few_values),
    }[name]
    method = CONTROLLER.methods_by_name[name]

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for door in opened.values():
                error = refusal(door, CONTROLLER, method, asked.SerializeToString())
                assert_too_many_values(error, field)

    served(home, look)


def test_options_of_many_values_are_refused_before_they_are_read(
    home: Home, few_values: str
) -> None:
    asked = database_pb2.PerformRequest(action="info", options_json=few_values)
    method = DATABASE.methods_by_name["Perform"]

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            error = refusal(opened["socket"], DATABASE, method, asked.SerializeToString())
            assert_too_many_values(error, "options")

    served(home, look)


def test_a_network_of_many_values_is_the_error_of_its_question_alone(few_values: str) -> None:
    many = pb.QueryRequest(platform="p", graph_json=few_values.encode())
    hashed = pb.QueryRequest(platform="p", graph_hash="a" * 64)
    asked = pb.QueryManyRequest(questions=[many, hashed])
    refused, read = query_messages.questions_from_pb(asked)
    assert isinstance(refused, UsageError)
    assert isinstance(read, Question)


def test_more_questions_than_our_client_asks_are_refused(home: Home) -> None:
    most = query_messages.MOST_QUESTIONS
    method = CONTROLLER.methods_by_name["QueryMany"]

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for door in opened.values():
                error: Any = refusal(door, CONTROLLER, method, EMPTY_QUESTION * (most + 1))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert error.details() == (
                    f"the call asks {most + 1} questions at once; ask at most {most} in one call"
                )

    served(home, look)


def test_options_that_are_no_object_end_a_call_with_the_same_type(home: Home) -> None:
    method = DATABASE.methods_by_name["Perform"]

    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for text in ("{", "[" * 100_000, "[]"):
                asked = database_pb2.PerformRequest(action="info", options_json=text)
                sent = asked.SerializeToString()
                error: Any = refusal(opened["socket"], DATABASE, method, sent)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "the field options_json" in error.details()

    served(home, look)


def test_bytes_that_are_no_message_end_a_call_with_the_same_type(home: Home) -> None:
    def look(server: ControllerServer) -> None:
        with doors(home, server) as opened:
            for door in opened.values():
                for name in ("QueryMany", "GetCampaign", "EstimateMany"):
                    method = CONTROLLER.methods_by_name[name]
                    error: Any = refusal(door, CONTROLLER, method, b"\xff" * 9)
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                    assert error.details() == "the request is no message of its kind"
                    assert isinstance(error_of(error), UsageError)

    served(home, look)


def test_who_may_not_call_is_refused_before_anything_is_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def count(data: bytes, kind: Any, most: int) -> bool:
        counted.append(len(data))
        return has_more_fields(data, kind, most)

    monkeypatch.setattr(message_fields, "has_more_fields", count)
    method = CONTROLLER.methods_by_name["QueryMany"]

    def look(server: ControllerServer) -> None:
        with channel(server, home.client("eve", VIEWER)) as opened:
            error: Any = refusal(opened, CONTROLLER, method, AMPLIFYING)
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED

    served(home, look)
    assert counted == []


@pytest.mark.parametrize("tags", [0, 1, MOST_TAGS])
def test_the_largest_batch_of_our_own_client_is_read(tags: int) -> None:
    question = Question(
        platform="p",
        graph_hash="a" * 64,
        network_hash="b" * 64,
        tier="publish",
        refresh=True,
        energy=True,
        max_age_s=1.0,
        measure=False,
        repeat=2,
        foreign=True,
        tags=tuple(f"tag{number}" for number in range(tags)),
    )
    size_bytes = HASHED_BYTES * (1 + tags)
    (first, *_) = batches(range(2 * BATCH_BYTES // HASHED_BYTES), lambda _place: size_bytes)
    asked = query_messages.question_to_pb(question, with_graph=False)
    asked.graph_json = b"{}"  # small networks are divided in the same way
    data = pb.QueryManyRequest(questions=[asked] * len(first)).SerializeToString()
    assert len(first) <= query_messages.MOST_QUESTIONS
    assert len(data) < MAX_MESSAGE_BYTES
    assert not has_more_fields(data, pb.QueryManyRequest.DESCRIPTOR, MOST_FIELDS)
