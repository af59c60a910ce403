"""Many candidates in one call: marked as measured or predicted, each ending once and alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from latfarm_controller.api import estimate_messages, estimate_stream, outside
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.service import ControllerService
from latfarm_controller.app.estimating import AskedEstimate, EstimateEnd, Estimating
from latfarm_controller.app.question import Found, GraphNeeded, Question
from latfarm_controller.bulk.evaluation import Evaluation
from latfarm_controller.bulk.lender import WorkerLender
from latfarm_controller.bulk.predictions import PredictedLatency
from latfarm_controller.errors import NoSuchCallError, NotMeasuredError, UsageError
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.predict.answer import Answer
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

PLATFORM = "toy-sim1.0-fp32-1t"
WITHOUT_BUNDLE = "toy-sim2.0-fp32-1t"


def network(channels: int) -> Graph:
    builder = GraphBuilder(f"net{channels}")
    return builder.build([builder.relu(builder.input((1, channels, 8, 8)))])


def asked(place: int, platform: str = PLATFORM, **others: Any) -> AskedEstimate:
    question = Question.about(network(place + 1), platform)
    values = {name: getattr(question, name) for name in ("graph_hash", "network_hash", "graph")}
    return AskedEstimate(place, Question(platform, **values, measure=False), **others)


class Stored:
    """Knows every tenth network, by its exact hash."""

    def __init__(self) -> None:
        self.hashes = {Question.about(network(n), "").graph_hash for n in range(1, 701, 10)}
        self.batches: list[int] = []

    def find(self, questions: Sequence[Question]) -> list[Found | None]:
        self.batches.append(len(questions))
        return [
            Found(
                Measurement("r", q.graph_hash, q.platform, "query", Outcome.OK, latency_ms=2.0),
                hit=True,
            )
            if q.graph_hash in self.hashes
            else None
            for q in questions
        ]

    def known(self, platforms: Sequence[str] = ()) -> list[str]:
        return [PLATFORM, WITHOUT_BUNDLE, *platforms]


class Predictor:
    """Predicts the number of channels as the latency; a network of 13 channels is too much."""

    def predict_many(self, graphs: Sequence[Graph], coverage: float) -> list[Answer]:
        sizes = [graph.types[graph.inputs[0]].shape[1] for graph in graphs]
        if 13 in sizes:
            raise GraphError("no board can run net13")
        return [
            Answer("", PLATFORM, float(size), (0.5 * size, 2.0 * size), coverage, True, ())
            for size in sizes
        ]


@pytest.fixture(autouse=True)
def bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of `PLATFORM` alone."""

    def opened(_folder: Path, platform: str) -> Predictor:
        if platform != PLATFORM:
            raise UsageError(f"there is no bundle for platform {platform!r}")
        return Predictor()

    monkeypatch.setattr("latfarm_controller.training.bundles.open_bundle", opened)


@asynccontextmanager
async def service(stored: Stored) -> AsyncIterator[str]:
    """The service on a socket of its own."""
    made: Any = stored
    controller: Any = SimpleNamespace(
        estimating=lambda: Estimating(made, Evaluation(Path(), WorkerLender(1)), tuple),
        predicted=lambda _platform: None,
    )
    audit: Any = None
    server = grpc.aio.server()
    told = ControllerService(controller, audit, lambda _peer: None)
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(told, server)
    with TemporaryDirectory() as folder:  # a short path, as sockets need it
        address = f"unix:{folder}/s"
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(None)


@contextmanager
def serving(stored: Stored) -> Iterator[str]:
    """The service on an event loop in a thread, for clients that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = service(stored)
    try:
        address = asyncio.run_coroutine_threadsafe(made.__aenter__(), loop).result(60.0)
        try:
            yield address
        finally:
            asyncio.run_coroutine_threadsafe(made.__aexit__(None, None, None), loop).result(60.0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_each_candidate_ends_once_and_alone() -> None:
    taken = ended = 0
    most_open = 0

    def candidates() -> Iterator[AskedEstimate]:
        nonlocal taken, most_open
        for place in range(700):
            taken += 1
            most_open = max(most_open, taken - ended)
            yield asked(place)
        yield AskedEstimate(1000, GraphError("this file is no model"))
        yield asked(1001, WITHOUT_BUNDLE)
        yield asked(1002, predict=False)
        yield asked(1003, coverage=2.0)
        yield asked(1004, "toy-sim9.9-fp32-1t")

    ends = {}
    with serving(Stored()) as address, grpc.insecure_channel(address) as channel:
        for place, end in ControllerClient(channel).estimate_many(candidates()):
            assert place not in ends
            ends[place] = end
            ended += 1
    assert most_open <= estimate_stream.MOST_OPEN
    assert sorted(ends) == list([*range(700), *range(1000, 1005)])
    hits = {place for place, end in ends.items() if isinstance(end, Found)}
    assert hits == set(range(0, 700, 10))
    predicted = {p: end for p, end in ends.items() if isinstance(end, PredictedLatency)}
    assert {place: end.latency_ms for place, end in predicted.items()} == {
        place: place + 1.0 for place in range(700) if place % 10 and place != 12
    }
    assert predicted[5].interval_ms == (3.0, 12.0)
    errors = {p: f"{type(e).__name__}: {e}" for p, e in ends.items() if isinstance(e, Exception)}
    assert sorted(errors) == [12, 1000, 1001, 1002, 1003, 1004]
    assert errors[12] == "UsageError: no board can run net13"
    assert "no bundle of the platform predicts it" in errors[1001]
    assert isinstance(ends[1002], NotMeasuredError)
    assert "coverage 2 is not between 0 and 1" in errors[1003]
    assert "unknown platform" in errors[1004]


def test_another_client_may_send_networks_without_hashes() -> None:
    async def main() -> None:
        async with service(Stored()) as address, grpc.aio.insecure_channel(address) as channel:
            call = controller_pb2_grpc.ControllerServiceStub(channel).EstimateMany()
            for place, data in enumerate((network(1).dumps().encode(), b"no graph", b"")):
                question = pb.QueryRequest(platform=PLATFORM, graph_json=data, no_measure=True)
                await call.write(pb.EstimateRequest(place=place, question=question))
            measures = pb.QueryRequest(platform=PLATFORM, graph_hash="1")
            await call.write(pb.EstimateRequest(place=3, question=measures))
            await call.done_writing()
            ends = {end.place: end async for message in call for end in message.ends}
            assert ends[0].measured.hit
            assert ends[1].error.kind == ends[2].error.kind == "UsageError"
            assert "asks no board" in ends[3].error.text

    asyncio.run(asyncio.wait_for(main(), 120.0))


def test_a_client_that_does_not_read_stops_its_own_stream_alone() -> None:
    stored = Stored()
    stored.find = lambda questions: [  # type: ignore[method-assign]
        Found(
            Measurement(
                "r",
                each.graph_hash,
                each.platform,
                "query",
                Outcome.OK,
                latency_ms=1.0,
                conditions={"filling": 4000 * "x"},
            ),
            hit=True,
        )
        for each in questions
    ]

    def request(place: int, network: bytes = b"") -> Any:
        question = pb.QueryRequest(
            platform=PLATFORM, graph_hash=f"{place:032}", no_measure=True, graph_json=network
        )
        return pb.EstimateRequest(place=place, question=question)

    async def main() -> None:
        sent = 0

        async def endless() -> AsyncIterator[Any]:
            nonlocal sent
            while True:
                yield request(sent, bytes(50_000))  # large ones soon fill what the service takes
                sent += 1

        async with (
            service(stored) as address,
            grpc.aio.insecure_channel(address) as slow,
            grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as quick,
        ):
            stub: Any = controller_pb2_grpc.ControllerServiceStub
            call = stub(slow).EstimateMany(endless())
            assert await call.read() is not grpc.aio.EOF  # it has begun, and is read no further
            before = -1
            while before != sent:  # until the service reads no more of what it cannot answer
                before = sent
                found = stub(quick).EstimateMany(iter([request(place) for place in range(300)]))
                assert sum([len(message.ends) async for message in found]) == 300
            call.cancel()

    asyncio.run(asyncio.wait_for(main(), 120.0))


def test_the_front_for_other_machines_forwards_both_streams() -> None:
    with serving(Stored()) as address, grpc.insecure_channel(address) as channel:
        server = grpc.server(
            futures.ThreadPoolExecutor(4), handlers=(outside._handlers(channel, lambda _: "me"),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as front:
                client = ControllerClient(front)
                ends = dict(client.estimate_many(asked(place) for place in range(600)))
                assert len(ends) == 600
                raw = front.stream_stream(
                    "/latfarm_protos.v1.ControllerService/EstimateMany",
                    request_serializer=bytes,
                    response_deserializer=bytes,
                )
                with pytest.raises(grpc.RpcError) as refused:
                    list(raw(iter([b"\xff\xff\xff"])))
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            server.stop(None).wait()


def test_an_older_controller_is_told() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = ControllerClient(channel)
            with pytest.raises(NoSuchCallError, match="older"):
                list(client.estimate_many([asked(1)]))
    finally:
        server.stop(None).wait()


def test_candidates_and_ends_are_the_same_after_their_way() -> None:
    for with_graph in (False, True):
        each = asked(3, predict=False, coverage=0.8)
        assert isinstance(each.question, Question)
        sent = estimate_messages.asked_to_pb(each, each.question, with_graph=with_graph)
        found = estimate_messages.asked_from_pb(sent)
        assert replace(found, sent=b"") == each
        assert bool(found.sent) == with_graph
    predicted = PredictedLatency(1.0, (0.5, 2.0), 0.8, False, ("n (Op): why",), 0.1, "b", "sum-gp")
    ends: list[tuple[int, EstimateEnd]] = [(1, predicted), (2, GraphNeeded())]
    message = estimate_messages.ends_to_pb(ends)
    assert [(end.place, estimate_messages.end_from_pb(end)) for end in message.ends] == ends


def test_streams_of_candidates_leave_threads_for_questions() -> None:
    """Each stream holds a thread for seconds, and the event loop has few of them."""
    working, go = threading.Semaphore(0), threading.Event()

    class Slow:
        def ends(self, asked: Sequence[AskedEstimate]) -> list[tuple[int, EstimateEnd]]:
            working.release()
            assert go.wait(60.0)
            return [(each.place, GraphNeeded()) for each in asked]

        def close(self) -> None:
            pass

    async def requests() -> AsyncIterator[Any]:
        for place in range(3):
            each = asked(place)
            assert isinstance(each.question, Question)
            yield estimate_messages.asked_to_pb(each, each.question, with_graph=False)

    async def main() -> None:
        most = estimate_stream.MOST_AT_ONCE
        asyncio.get_running_loop().set_default_executor(futures.ThreadPoolExecutor(most + 1))
        turns = asyncio.Semaphore(most)
        slow: Any = Slow()

        async def ended() -> list[int]:
            told = estimate_stream.answer(requests(), slow, lambda _: None, turns)
            return [end.place async for message in told for end in message.ends]

        streams = [asyncio.create_task(ended()) for _ in range(3 * most)]
        for _ in range(most):
            while not working.acquire(blocking=False):
                await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "a hit"), 60.0) == "a hit"
        go.set()
        assert await asyncio.gather(*streams) == [[0, 1, 2]] * (3 * most)

    asyncio.run(main())
