"""Requests to an agent that would take far more memory than they have bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from latfarm_agent.service.server import AgentServer
from latfarm_protos.trust import message_fields
from latfarm_protos.trust.message_fields import MANY_FIELDS, MOST_FIELDS
from latfarm_protos.v1 import agent_pb2 as pb
from tests.agent.service.calls import Code, Failure, drain

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client

AGENT = pb.DESCRIPTOR.services_by_name["AgentService"]
EMPTY_ID = b"\x0a\x00"
"""An empty request id within `AcknowledgeRequest`: two bytes that become an object."""
UNKNOWN_FIELD = b"\x78\x00"
"""A field that no message has: its number is 15."""
FEW = 1000
"""The most fields in the test of all calls, so that counting them takes no time."""


def refusal(server: AgentServer, method: Any, request: bytes) -> Failure:
    """Call a method with the bytes of a request; returns how the call fails."""
    path = f"/{AGENT.full_name}/{method.name}"
    with grpc.insecure_channel(server.address) as channel:
        kinds = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }
        call = kinds[method.client_streaming, method.server_streaming](path)
        with pytest.raises(grpc.RpcError) as caught:
            drain(call(iter([request]) if method.client_streaming else request, timeout=60))
        return Failure(caught.value)


def assert_too_many(failure: Failure) -> None:
    assert failure.status is Code.INVALID_ARGUMENT
    assert failure.code == "INVALID_REQUEST"
    assert failure.details == f"the request {MANY_FIELDS}; ask for less at once"


def test_every_call_counts_the_fields_of_its_request_before_its_token_counts(
    server: AgentServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_fields, "MOST_FIELDS", FEW)
    monkeypatch.setattr(message_fields, "SMALL_BYTES", 2 * FEW)
    for method in AGENT.methods:
        assert_too_many(refusal(server, method, UNKNOWN_FIELD * (FEW + 1)))
    assert client.state() == "idle"


def test_an_amplifying_acknowledgement_is_refused_and_the_largest_honest_one_is_heard(
    server: AgentServer, client: Client
) -> None:
    method = AGENT.methods_by_name["Acknowledge"]
    assert_too_many(refusal(server, method, EMPTY_ID * (MOST_FIELDS + 1)))
    assert client.acknowledge(*(f"{number:064}" for number in range(10_000))) == 0


def test_a_stream_ends_at_an_amplifying_message(server: AgentServer, client: Client) -> None:
    token = client.acquire()
    opening = pb.ToBoard(token=token).SerializeToString()
    acknowledged = b"\x12\x00" * (MOST_FIELDS + 1)
    assert_too_many(refusal(server, AGENT.methods_by_name["Work"], opening + acknowledged))
    client.release(token)
