"""The client of an agent: measurements, and what interrupts them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from latfarm_controller.agents.board import MeasuringStage
from latfarm_controller.agents.client import AgentClient, budget_ms
from latfarm_controller.agents.connection import FRUITLESS_TRIES, Patience
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    IdentityError,
    LeaseError,
    UsageError,
)
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Outcome, Settings
from latfarm_protos.v1 import agent_pb2_grpc

from tests.controller.agents.fake_agent import (
    GRAPH,
    IMPATIENT,
    QUICK,
    REQUEST,
    FakeAgent,
    run,
    serving,
)
from tests.ports import free_port


def test_the_files_beside_a_model_are_named() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(60_000)
        await client.measure(BoardRequest.of(REQUEST), "ab", companions={"weights": "cd"})
        assert agent.companions == {"weights": "cd"}

    run(test)


def test_measure_with_stages() -> None:
    stages: list[MeasuringStage] = []

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(BoardRequest.of(REQUEST), "s", stages.append)
        assert measurement.ok
        assert measurement.latency_ms == 2.0
        assert measurement.request_id == REQUEST.request_id
        assert measurement.graph_hash == hash_of(GRAPH)
        assert measurement.purpose == "kernel"
        assert measurement.settings == REQUEST.settings
        assert stages == [MeasuringStage("loading", 1), MeasuringStage("timing", 1)]
        assert agent.asked == ["Measure"]
        assert set(agent.spool) == {REQUEST.request_id}
        assert await client.acknowledge([REQUEST.request_id, "other"]) == 1
        assert await client.acknowledge([]) == 0
        assert agent.spool == {}

    run(test)


@pytest.mark.parametrize("state", [{"result_board_id": "other"}, {"result_fingerprint": "other"}])
def test_a_result_of_another_board_is_a_failure_of_this_one(state: dict[str, Any]) -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(BoardRequest.of(REQUEST), "s")
        assert measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
        assert (measurement.error_code, measurement.board_id) == ("RESULT_FOREIGN", "b")
        assert measurement.latency_ms is None

    run(test, **state)


def test_an_agent_that_was_started_with_another_runtime_describes_itself_anew() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.describe()
        await client.acquire(1000)
        agent.fingerprint = agent.result_fingerprint = "newer"
        measurement = await client.measure(BoardRequest.of(REQUEST), "s")
        assert (measurement.ok, measurement.fingerprint) == (True, "newer")

    run(test)


def test_a_board_that_gives_another_id_while_it_measures_is_not_believed() -> None:
    async def main() -> None:
        agent = FakeAgent()
        async with (
            serving(agent) as address,
            AgentClient(address, "me", patience=QUICK, board_id="b") as client,
        ):
            assert (await client.describe()).board_id == "b"
            await client.acquire(1000)
            agent.board_id = "other"
            with pytest.raises(IdentityError, match="its id is other, but the inventory says b"):
                await client.measure(BoardRequest.of(REQUEST), "s")
            with pytest.raises(IdentityError):
                await client.describe()

    asyncio.run(main())


def test_profile_goes_to_the_profiler() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        await client.measure(
            BoardRequest.of(MeasurementRequest(GRAPH, "p", "kernel", profile=True)), "s"
        )
        assert agent.asked == ["Profile"]

    run(test)


@pytest.mark.parametrize("fault", ["cut", "end", "refuse"])
def test_a_broken_stream_does_not_cost_a_second_measurement(fault: str) -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(BoardRequest.of(REQUEST), "s")
        assert measurement.latency_ms == 2.0
        assert agent.runs == 1
        assert len(agent.asked) == 2

    run(test, measure_faults=[fault])


def test_a_stream_that_breaks_again_and_again_ends() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        with pytest.raises(AgentLostError, match=REQUEST.request_id):
            await client.measure(BoardRequest.of(REQUEST), "s")
        assert len(agent.asked) == FRUITLESS_TRIES

    run(test, measure_faults=["refuse"] * 50)


def test_a_silent_board_that_answers_is_waited_for() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measuring = asyncio.ensure_future(client.measure(BoardRequest.of(REQUEST), "s"))
        # Each Describe is a question into the silence; the faults are used up by the third.
        while agent.describe_faults:
            await asyncio.sleep(0.001)
        assert not measuring.done()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring

    run(
        test,
        Patience(call_ms=10_000, away_ms=10_000, quiet_ms=5),
        measure_faults=["hang"],
        describe_faults=["", "", ""],
    )


def test_a_silent_board_that_does_not_answer_is_lost() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(10_000)
        client.patience = IMPATIENT
        with pytest.raises(AgentLostError, match=client.address):
            await client.measure(BoardRequest.of(REQUEST), "s")

    run(test, measure_faults=["hang"] * 9, describe_faults=["hang"] * 99)


def test_a_board_that_restarts_with_its_spool_but_not_its_lease() -> None:
    async def main() -> None:
        agent = FakeAgent(measure_faults=["hang"])
        server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(agent, server)
        # A port that no connection of another process can take before it is bound again.
        port = free_port()
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        await server.start()
        async with AgentClient(f"127.0.0.1:{port}", "me", patience=QUICK) as client:
            await client.acquire(1000)
            heard = asyncio.Event()
            measuring = asyncio.ensure_future(
                client.measure(BoardRequest.of(REQUEST), "s", lambda stage: heard.set())
            )
            await heard.wait()
            while not agent.runs:
                await asyncio.sleep(0.001)
            await server.stop(None)
            agent.holder = ""
            again = grpc.aio.server()
            agent_pb2_grpc.add_AgentServiceServicer_to_server(agent, again)
            assert again.add_insecure_port(f"127.0.0.1:{port}") == port
            await again.start()
            with pytest.raises(LeaseError):
                await measuring
            await client.acquire(1000)
            measurement = await client.measure(BoardRequest.of(REQUEST), "s")
            assert measurement.ok
            assert agent.runs == 1
        await again.stop(None)

    asyncio.run(main())


def test_the_boards_own_failures_are_data() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        measurement = await client.measure(BoardRequest.of(REQUEST), "s")
        assert measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
        assert measurement.error_code == "THROTTLED"
        assert not measurement.ok

    run(test, outcome="infrastructure_error")


def test_a_request_that_is_refused_is_an_error() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        agent.refusal = (grpc.StatusCode.NOT_FOUND, "BLOB_NOT_FOUND", "no such blob")
        with pytest.raises(AgentError, match=r"BLOB_NOT_FOUND.*no such blob"):
            await client.measure(BoardRequest.of(REQUEST), "s")
        assert agent.asked == ["Measure"]
        with pytest.raises(UsageError):
            await client.measure(
                BoardRequest.of(MeasurementRequest(GRAPH, "p", "kernel", Settings(sessions=-1))),
                "s",
            )

    run(test)


def test_a_cancelled_measure_leaves_the_client_usable() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        heard = asyncio.Event()
        measuring = asyncio.ensure_future(
            client.measure(BoardRequest.of(REQUEST), "s", lambda stage: heard.set())
        )
        await heard.wait()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        assert (await client.measure(BoardRequest.of(REQUEST), "s")).ok

    run(test, measure_faults=["hang"])


def test_an_error_in_on_stage_comes_through() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)

        def fail(stage: MeasuringStage) -> None:
            raise KeyError(stage.name)

        with pytest.raises(KeyError, match="loading"):
            await client.measure(BoardRequest.of(REQUEST), "s", fail)

    run(test)


def test_the_budget_is_beyond_what_the_settings_allow() -> None:
    settings = Settings(sessions=3, compile_timeout_ms=1000, max_ms=100)
    assert budget_ms(settings) > 3 * (1000 + 100)
    assert budget_ms(Settings(sessions=9)) > budget_ms(Settings(sessions=3))
