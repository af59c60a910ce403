"""Answers of boards whose bytes are no messages, or would take far more memory than they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import pytest
from latfarm_controller.agents.streaming import StreamingClient
from latfarm_controller.errors import BadAnswerError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_protos.trust.message_fields import (
    MOST_FIELDS,
    Unreadable,
    careful,
    has_more_fields,
)
from latfarm_protos.v1 import agent_pb2 as pb

from tests.controller.agents.fake_agent import QUICK, REQUEST, digest

pytestmark = pytest.mark.timeout(120)

ASKED = BoardRequest.of(REQUEST)
MODEL = b"a small model"
TOO_MANY = pb.Result(sessions=[pb.Session()] * (MOST_FIELDS + 1))
MANY = f"has more than {MOST_FIELDS} fields"
DAMAGED = "is no message of its kind"
NO_MESSAGE = b"\xff" * 1000


class Stranger(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Answers each call with the bytes that are given for it, and leases itself to everybody."""

    def __init__(self, answers: Mapping[str, bytes], *, streams: bool = False) -> None:
        capabilities = ["work-stream"] if streams else []
        described = pb.DescribeResponse(
            board=pb.Board(board_id="b", name="stranger"), capabilities=capabilities, state="idle"
        )
        self.answers: dict[str, bytes] = {
            "Describe": described.SerializeToString(),
            "AcquireLease": pb.Lease(token=1, ttl_ms=60_000).SerializeToString(),
            **answers,
        }

    def service(self, details: Any) -> Any:
        """The handler of a call."""
        method = details.method.rpartition("/")[2]
        answer = self.answers.get(method, b"")

        async def once(request: bytes, context: Any) -> bytes:
            del request, context
            return answer

        async def events(request: bytes, context: Any) -> AsyncIterator[bytes]:
            del request, context
            yield answer

        async def talk(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            del context
            async for _ in requests:
                yield answer

        if method == "Work":
            return grpc.stream_stream_rpc_method_handler(talk)
        if method in ("Measure", "Profile"):
            return grpc.unary_stream_rpc_method_handler(events)
        return grpc.unary_unary_rpc_method_handler(once)


def with_stranger(
    test: Callable[[StreamingClient], Awaitable[None]],
    answers: Mapping[str, bytes],
    *,
    streams: bool = False,
) -> None:
    """Run a test with a client of a stranger."""

    async def main() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Stranger(answers, streams=streams),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with StreamingClient(f"127.0.0.1:{port}", "me", patience=QUICK) as client:
                await test(client)
        finally:
            await server.stop(None)

    asyncio.run(main())


MANY_RUNTIMES = bytes(
    pb.DescribeResponse(runtimes=[pb.Runtime()] * (MOST_FIELDS + 1)).SerializeToString()
)
MANY_IN_EVENT = bytes(pb.MeasureEvent(result=TOO_MANY).SerializeToString())
MANY_ON_STREAM = bytes(pb.FromBoard(result=TOO_MANY).SerializeToString())


@pytest.mark.parametrize(
    ("answer", "why"), [(MANY_RUNTIMES, MANY), (NO_MESSAGE, DAMAGED)], ids=["many", "damaged"]
)
def test_an_unreadable_description_is_a_typed_error(answer: bytes, why: str) -> None:
    async def test(client: StreamingClient) -> None:
        with pytest.raises(BadAnswerError, match=f"an answer to Describe {why}"):
            await client.describe()

    with_stranger(test, {"Describe": answer})


@pytest.mark.parametrize(
    ("answer", "why"), [(MANY_IN_EVENT, MANY), (NO_MESSAGE, DAMAGED)], ids=["many", "damaged"]
)
def test_an_unreadable_result_is_a_typed_error(answer: bytes, why: str) -> None:
    async def test(client: StreamingClient) -> None:
        await client.describe()
        await client.acquire(60_000)
        with pytest.raises(BadAnswerError, match=f"an answer to Measure {why}"):
            await client.measure(ASKED, digest(MODEL))

    with_stranger(test, {"Measure": answer})


@pytest.mark.parametrize(
    ("answer", "why"), [(MANY_ON_STREAM, MANY), (NO_MESSAGE, DAMAGED)], ids=["many", "damaged"]
)
def test_an_unreadable_message_ends_the_stream_with_a_typed_error(answer: bytes, why: str) -> None:
    async def test(client: StreamingClient) -> None:
        await client.describe()
        await client.acquire(60_000)
        await client.upload(digest(MODEL), MODEL)
        with pytest.raises(BadAnswerError, match=f"an answer to Work {why}"):
            await client.measure(ASKED, digest(MODEL))

    with_stranger(test, {"Work": answer}, streams=True)


def test_the_largest_honest_results_are_read() -> None:
    read = careful(pb.Result.FromString)
    layers = [pb.Layer(name="n", op="o", latency_ms=1.0, device="cpu")] * 20_000
    runs = pb.Session(runs_ms=[1.0] * 500_000, slowdown=[1.0] * 500_000)
    for result in (pb.Result(layers=layers), pb.Result(sessions=[runs]), pb.Result()):
        assert read(result.SerializeToString()) == result


def test_fields_of_all_parts_are_counted() -> None:
    lease, stage = pb.Lease(token=300, ttl_ms=7), pb.Stage(name="timing", session=1)
    nested = pb.FromBoard(stage=pb.OrderStage(request_id="r", stage=stage))
    for message, fields in ((lease, 2), (nested, 5), (pb.Session(load_ms=1.0, runs_ms=[1, 2]), 2)):
        data = message.SerializeToString()
        assert has_more_fields(data, message.DESCRIPTOR, fields - 1)
        assert not has_more_fields(data, message.DESCRIPTOR, fields)


@pytest.mark.parametrize(
    "tail",
    [b"\x80" * 20_000_000, b"\x0a\xff\xff\xff\xff\x7f", b"\x2a"],
    ids=["endless integer", "endless text", "cut off"],
)
def test_damage_behind_many_fields_is_refused_before_they_are_made(tail: bytes) -> None:
    within_limit = b"\x2a\x00" * (MOST_FIELDS - 10)
    answer = careful(pb.Result.FromString)(within_limit + tail + b"\x80")
    assert isinstance(answer, Unreadable)
    assert answer.why == DAMAGED
