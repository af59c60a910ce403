"""The client of a board that works on one stream."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from latfarm_controller.agents import streaming as streaming_module
from latfarm_controller.agents import work_stream
from latfarm_controller.agents.board import MeasuringStage
from latfarm_controller.agents.connection import FRUITLESS_TRIES, CutError
from latfarm_controller.agents.streaming import INLINE_BYTES, StreamingClient
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    BadAnswerError,
    DiskFullError,
    LeaseError,
)
from latfarm_controller.farm.boards.board_client import BoardClient
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.measurement import Outcome
from latfarm_protos.v1 import agent_pb2 as pb

from tests.controller.agents.fake_agent import GRAPH, IMPATIENT, REQUEST, digest
from tests.controller.agents.fake_streaming_agent import StreamingFakeAgent, streaming

pytestmark = pytest.mark.timeout(60)

ASKED = BoardRequest.of(REQUEST)
MODEL = b"a small model"
SHA256 = digest(MODEL)


def other(number: int) -> BoardRequest:
    return BoardRequest.of(MeasurementRequest(GRAPH, "p", "kernel", repeat=number))


async def sent(agent: StreamingFakeAgent, kind: str) -> None:
    """Wait until a message of this kind has come."""
    while kind not in agent.said:
        agent.came.clear()
        await agent.came.wait()


def test_it_has_every_method_of_a_boards_client() -> None:
    for name, method in inspect.getmembers(BoardClient, inspect.isfunction):
        if not name.startswith("_"):
            wanted = inspect.signature(method).parameters
            own = list(inspect.signature(getattr(StreamingClient, name)).parameters)
            placed = [key for key, one in wanted.items() if one.kind is not one.KEYWORD_ONLY]
            assert own[: len(placed)] == placed
            assert set(wanted) <= set(own)


def test_a_measurement_takes_one_message_each_way() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        for number in range(3):
            assert await client.upload(SHA256, MODEL) == 0
            measurement = await client.measure(other(number), SHA256)
            assert (measurement.ok, measurement.latency_ms) == (True, 2.0)
        assert agent.said == ["acknowledged 0", "order", "order", "order"]
        assert agent.inline == [len(MODEL)] * 3
        assert (agent.streams, agent.asked, agent.offsets) == (1, [], [])

    streaming(test)


def test_a_large_model_is_uploaded_and_a_small_one_goes_along() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        for size_bytes, uploads in ((INLINE_BYTES, 0), (INLINE_BYTES + 1, 1)):
            data = b"m" * size_bytes
            sha256 = digest(data)
            await client.upload(sha256, data)
            assert (await client.measure(other(len(data)), sha256)).ok
            assert len(agent.offsets) == uploads
            assert bytes(agent.blobs[sha256]) == data
        assert agent.inline == [INLINE_BYTES, 0]

    streaming(test)


def test_small_files_beside_a_model_are_uploaded() -> None:
    weights = b"the weights of the model"

    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.upload(SHA256, MODEL)
        await client.upload(digest(weights), weights)
        named = {"model.data": digest(weights)}
        assert (await client.measure(ASKED, SHA256, companions=named)).ok
        assert agent.inline == [len(MODEL)]
        assert bytes(agent.blobs[digest(weights)]) == weights

    streaming(test)


def test_an_older_agent_is_worked_with_by_plain_calls() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        assert not client.streams
        assert await client.upload(SHA256, MODEL) == len(MODEL)
        assert (await client.measure(ASKED, SHA256)).ok
        assert not await client.withdraw(ASKED.request_id)
        assert (await client.renew()).ttl_ms == 5000
        assert await client.acknowledge([ASKED.request_id]) == 1
        assert (agent.asked, agent.said, agent.streams) == (["Measure"], [], 0)

    streaming(test, capable=False)


def test_an_agent_that_lost_its_stream_by_a_downgrade_is_worked_with_by_plain_calls() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.upload(SHA256, MODEL)
        assert (await client.measure(ASKED, SHA256)).ok
        assert (agent.asked, bytes(agent.blobs[SHA256])) == (["Measure"], MODEL)
        assert not client.streams

    streaming(test, stream_faults=["old"])


@pytest.mark.parametrize("fault", ["cut", "late cut", "end", "STOPPING", "UPLOAD_SUPERSEDED"])
def test_a_broken_stream_does_not_cost_a_second_measurement(fault: str) -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.upload(SHA256, MODEL)
        assert (await client.measure(ASKED, SHA256)).latency_ms == 2.0
        assert (agent.runs, agent.streams) == (1, 2)
        assert agent.inline == [len(MODEL)] * 2

    streaming(test, stream_faults=[fault])


def test_a_stream_that_breaks_again_and_again_ends() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        with pytest.raises(AgentLostError, match=ASKED.request_id):
            await client.measure(ASKED, SHA256)
        assert agent.streams == FRUITLESS_TRIES

    streaming(test, stream_faults=["cut"] * 50)


def test_two_orders_are_under_way_at_once_and_each_gets_its_own_answer() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        first, second = await asyncio.gather(
            client.measure(other(1), SHA256), client.measure(other(2), SHA256)
        )
        assert [first.request_id, second.request_id] == [other(1).request_id, other(2).request_id]

    streaming(test)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("LEASE_LOST", LeaseError),
        ("DISK_FULL", DiskFullError),
        ("UNKNOWN_PLATFORM", AgentError),
        ("BLOB_NOT_FOUND", AgentError),
        ("\x1b[31m", AgentError),
    ],
)
def test_refusals_have_types(code: str, kind: type[AgentError]) -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        with pytest.raises(AgentError, match="refused") as caught:
            await client.measure(ASKED, SHA256)
        assert type(caught.value) is kind
        assert str(caught.value).isprintable()
        assert (await client.measure(ASKED, SHA256)).ok  # the stream goes on

    streaming(test, stream_faults=[code])


def test_stages_are_sent_only_to_somebody_who_watches() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        stages: list[MeasuringStage] = []
        await client.measure(other(1), SHA256)
        await client.measure(other(2), SHA256, stages.append)
        await client.measure(other(3), SHA256)
        assert stages == [MeasuringStage("timing", 1)]
        assert agent.said[1:] == ["order", "watch", "order", "watch", "order"]

    streaming(test)


def test_an_error_in_on_stage_comes_through() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        def fail(stage: MeasuringStage) -> None:
            raise KeyError(stage.name)

        with pytest.raises(KeyError, match="timing"):
            await client.measure(ASKED, SHA256, fail)

    streaming(test)


def test_a_request_is_withdrawn_alone() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        stays = asyncio.ensure_future(client.measure(other(1), SHA256))
        goes = asyncio.ensure_future(client.measure(other(2), SHA256))
        while agent.said.count("order") < 2:
            await asyncio.sleep(0)
        assert await client.withdraw(other(2).request_id)
        assert (await goes).error_code == "CANCELLED"
        assert not stays.done()
        assert await client.withdraw(other(1).request_id)
        assert (await stays).error_code == "CANCELLED"
        assert client.lease is not None
        assert client.lease.token == 1

    streaming(test, stream_faults=["hang", "hang"])


def test_a_withdrawal_survives_a_cut() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        agent.gate.clear()
        measuring = asyncio.ensure_future(client.measure(ASKED, SHA256))
        await sent(agent, "order")
        await client.withdraw(ASKED.request_id)
        agent.gate.set()
        assert (await measuring).ok  # it was finished before it could be withdrawn
        await sent(agent, "withdrawal")
        assert agent.streams == 2

    streaming(test, stream_faults=["late cut"])


def test_renewals_go_by_the_stream_and_find_a_lost_lease() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.measure(ASKED, SHA256)
        assert (await client.renew(700)).ttl_ms == 700
        assert agent.said[-1] == "renewal"
        agent.holder, agent.token = "somebody", 7
        with pytest.raises(LeaseError, match="over"):
            await client.renew()
        with pytest.raises(LeaseError, match="over"):
            await client.measure(other(1), SHA256)
        await client.release()
        assert agent.holder == "somebody"

    streaming(test)


def test_a_board_that_answers_no_renewal_is_asked_by_a_plain_call() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.measure(ASKED, SHA256)
        agent.mute = True
        assert (await client.renew(20)).ttl_ms == 20
        assert (await client.measure(other(1), SHA256)).ok
        assert agent.streams == 2

    streaming(test)


def test_acknowledgements_go_together_and_are_repeated_until_they_are_confirmed() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        for number in range(3):
            await client.measure(other(number), SHA256)
        ids = [other(number).request_id for number in range(3)]
        for request_id in ids:
            assert await client.acknowledge([request_id]) == 1
        await sent(agent, "acknowledged 3")
        assert agent.spool == {}
        agent.stream_faults.append("cut")
        await client.measure(other(3), SHA256)
        assert agent.said[-2:] == ["acknowledged 3", "order"]  # nothing has confirmed them yet
        await client.renew()
        agent.stream_faults.append("cut")
        await client.measure(other(4), SHA256)
        assert agent.said[-2:] == ["acknowledged 0", "order"]

    streaming(test)


def test_what_is_asked_again_is_not_forgotten() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.measure(ASKED, SHA256)
        await client.acknowledge([ASKED.request_id])
        await client.measure(ASKED, SHA256)
        await client.release()
        assert agent.runs == 1
        assert set(agent.spool) == {ASKED.request_id}

    streaming(test)


def test_the_end_of_the_client_sends_what_waits() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.measure(ASKED, SHA256)
        await client.acknowledge([ASKED.request_id])
        await client.release()
        assert agent.spool == {}
        assert not agent.holder
        await client.acquire(1000)
        assert (await client.measure(other(1), SHA256)).ok

    streaming(test)


def test_a_second_answer_is_ignored_and_a_foreign_one_is_a_failure_of_the_board() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        first = await client.measure(ASKED, SHA256)
        again = pb.FromBoard(result=agent.spool[ASKED.request_id])
        agent.answers = [again, again, pb.FromBoard(result=pb.Result(request_id="strange"))]
        second = await client.measure(other(1), SHA256)
        assert (first.ok, second.outcome) == (True, Outcome.INFRASTRUCTURE_ERROR)
        assert second.error_code in ("RESULT_MISMATCH", "RESULT_UNKNOWN")

    streaming(test)


def test_messages_that_nobody_asked_for_end_the_stream_at_some_time() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        refusal = pb.Refusal(request_id="strange", error_code="BUSY")
        agent.answers = [pb.FromBoard(refusal=refusal)] * (work_stream.MOST_UNASKED + 1)
        with pytest.raises(BadAnswerError, match="nobody asked for"):
            await client.measure(ASKED, SHA256)

    streaming(test)


def test_a_board_that_does_not_read_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_stream, "MOST_QUEUED", 8)

    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        await client.measure(ASKED, SHA256)
        work = client._work
        assert work is not None
        while not work.ended:  # the writer gets no turn in between
            work.withdraw("r")
        with pytest.raises(CutError, match="does not read"):
            work.withdraw("r")

    streaming(test)


def test_few_small_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_module, "MOST_KEPT", 2)

    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        models = [bytes([number]) * 9 for number in range(4)]
        for data in models:
            await client.upload(digest(data), data)
        assert set(agent.blobs) == {digest(data) for data in models[:2]}
        for number, data in enumerate(models):
            assert (await client.measure(other(number), digest(data))).ok
        assert agent.inline == [0, 0, 9, 9]

    streaming(test)


def test_a_cancelled_measure_leaves_the_stream_usable() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        measuring = asyncio.ensure_future(client.measure(ASKED, SHA256))
        await sent(agent, "order")
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        assert (await client.measure(ASKED, SHA256)).ok
        assert agent.streams == 1

    streaming(test, stream_faults=["hang"])


def test_a_silent_board_is_lost_in_time() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        agent.describe_faults = ["hang"] * 99
        client.patience = client._connection.patience = IMPATIENT
        with pytest.raises(AgentLostError, match=client.address):
            await client.measure(ASKED, SHA256)

    streaming(test, stream_faults=["hang"] * 9)


def test_an_agent_that_can_restarts_a_part() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        assert await client.restart("worker") == "worker is / new"
        assert agent.restarted == ["worker"]
        await client.release()
        with pytest.raises(LeaseError):
            await client.restart("worker")

    streaming(test)


def test_an_old_agent_is_not_asked_to_restart() -> None:
    async def test(agent: StreamingFakeAgent, client: StreamingClient) -> None:
        with pytest.raises(AgentError, match="its agent is too old to restart its runtime"):
            await client.restart("runtime")
        assert agent.restarted == []

    streaming(test, restarts=False)
