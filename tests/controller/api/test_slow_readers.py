"""A client that asks for many answers and does not read them, or goes away, blocks nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import grpc
from latfarm_controller.api.service import ControllerService
from latfarm_controller.app.question import Found, Question
from latfarm_controller.app.questions import BATCH_QUESTIONS, Questions
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

SLOW, QUICK = "slow", "quick"
"""Platforms that tell in the store who asked."""
MANY = 32 * BATCH_QUESTIONS
"""Number of questions of the slow client: its answers are megabytes, more than any buffer takes."""


class Stored:
    """Knows an answer to every question, and counts the batches of each platform."""

    def __init__(self) -> None:
        self.batches = {SLOW: 0, QUICK: 0}

    def find(self, questions: Sequence[Question]) -> list[Found | None]:
        self.batches[questions[0].platform] += 1
        return [
            Found(
                Measurement(
                    f"{place:032}",
                    question.graph_hash,
                    question.platform,
                    "query",
                    Outcome.OK,
                    latency_ms=1.0,
                    conditions={"filling": 800 * "x"},
                ),
                hit=True,
            )
            for place, question in enumerate(questions)
        ]


class Watched(Questions):
    """Notes when the answers to many questions are not asked for any more."""

    def __init__(self, stored: Any) -> None:
        nobody: Any = None
        super().__init__(stored, nobody, nobody)
        self.left = asyncio.Event()

    async def ask_many(self, questions: Any) -> Any:
        try:
            async for ends in super().ask_many(questions):
                yield ends
        finally:
            if len(questions) == MANY:
                self.left.set()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, Stored, Watched]]:
    """The service on a socket of its own, with a store that knows everything."""
    stored = Stored()
    questions = Watched(stored)
    controller: Any = SimpleNamespace(questions=questions)
    audit: Any = None
    server = grpc.aio.server()
    service = ControllerService(controller, audit, lambda _peer: None)
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(service, server)
    with TemporaryDirectory() as folder:  # a short path, as sockets need it
        address = f"unix:{folder}/s"
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address, stored, questions
        finally:
            await server.stop(None)


def request(platform: str, count: int) -> Any:
    asked = [
        pb.QueryRequest(platform=platform, graph_hash=f"{n:032}", no_measure=True)
        for n in range(count)
    ]
    return pb.QueryManyRequest(questions=asked)


async def answers(channel: grpc.aio.Channel, count: int) -> int:
    """How many questions of a quick client end."""
    stub = controller_pb2_grpc.ControllerServiceStub(channel)
    found = 0
    async for message in stub.QueryMany(request(QUICK, count)):
        found += len(message.ends)
    return found


def test_a_reader_that_stops_reading_blocks_nobody() -> None:
    async def main() -> None:
        async with (
            serving() as (address, stored, questions),
            grpc.aio.insecure_channel(address) as slow,
            grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as quick,
        ):
            call = controller_pb2_grpc.ControllerServiceStub(slow).QueryMany(request(SLOW, MANY))
            assert await call.read() is not grpc.aio.EOF  # it has begun, and is read no further
            count = 3 * BATCH_QUESTIONS
            assert await answers(quick, count) == count
            assert stored.batches[QUICK] == 3
            # The answers that nobody reads are not made in advance.
            assert stored.batches[SLOW] < MANY // BATCH_QUESTIONS
            assert not questions.left.is_set()
            call.cancel()
            await questions.left.wait()  # what was done for it has ended
            assert await answers(quick, 1) == 1

    asyncio.run(asyncio.wait_for(main(), 120.0))


def test_a_reader_that_vanishes_blocks_nobody() -> None:
    async def main() -> None:
        async with (
            serving() as (address, stored, questions),
            grpc.aio.insecure_channel(address) as quick,
        ):
            async with grpc.aio.insecure_channel(
                address, [("grpc.use_local_subchannel_pool", 1)]
            ) as gone:
                stub = controller_pb2_grpc.ControllerServiceStub(gone)
                call = stub.QueryMany(request(SLOW, MANY))
                assert await call.read() is not grpc.aio.EOF
            await questions.left.wait()
            assert stored.batches[SLOW] < MANY // BATCH_QUESTIONS
            assert await answers(quick, BATCH_QUESTIONS) == BATCH_QUESTIONS

    asyncio.run(asyncio.wait_for(main(), 120.0))
