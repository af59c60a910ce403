"""The farm with boards in its own event loop: leases, uploads, preemption, loss, quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import AgentLostError, BuildError, FarmError, LeaseError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.scheduling.messages import QUERY_PRIORITY
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import Lab, collect, until


def test_a_pool_shares_the_work(lab: Lab) -> None:
    boards = [lab.board(f"b{i}") for i in range(3)]
    requests = [lab.request(i) for i in range(30)]

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", requests)
            answers = await collect(farm, "c", 30)
            assert set(answers) == {request.request_id for request in requests}
            assert all(answer.ok for answer in answers.values())

    asyncio.run(scenario())
    assert sorted(r for b in boards for r in b.measured) == sorted(r.request_id for r in requests)
    assert all(board.measured for board in boards)
    assert sorted(lab.built) == sorted({hash_of(request.graph) for request in requests})


def test_a_query_overtakes_queued_work_but_not_the_running_measurement(lab: Lab) -> None:
    board = lab.board("b")
    board.gate.clear()
    requests = [lab.request(i) for i in range(8)]
    query = lab.request(100)

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.listen("q")
            farm.submit("c", requests)
            await until(lambda: board.busy)
            farm.submit("q", [query], QUERY_PRIORITY)
            await until(lambda: hash_of(query.graph) in lab.built)
            await until(lambda: len(board.blobs) >= 4)  # the query's model too
            board.gate.set()
            await collect(farm, "q", 1)
            await collect(farm, "c", 8)

    asyncio.run(scenario())
    assert board.measured.index(query.request_id) == 1


def test_the_same_question_of_two_campaigns_is_measured_once(lab: Lab) -> None:
    board = lab.board("b")
    request = lab.request(1)

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            for name in ("c1", "c2"):
                farm.listen(name)
                farm.submit(name, [request])
            assert await collect(farm, "c1", 1) == await collect(farm, "c2", 1)

    asyncio.run(scenario())
    assert board.measured == [request.request_id]


def test_a_board_that_dies_loses_nothing(lab: Lab) -> None:
    steady, frail = lab.board("steady"), lab.board("frail")
    requests = [lab.request(i) for i in range(12)]
    deaths: list[str] = []

    def die_once(board: Any, question: BoardRequest) -> Measurement:
        if not deaths:
            deaths.append(question.request_id)
            board.alive = False
            raise AgentLostError("frail hung up")
        return lab_good(board, question)

    lab_good: Callable[[Any, BoardRequest], Measurement] = frail.answer
    frail.answer = die_once
    steady.gate.clear()

    async def scenario() -> None:
        async with lab.farm() as farm:
            await until(lambda: len(farm.pool("p")) == 2)
            farm.listen("c")
            farm.submit("c", requests)
            await until(lambda: bool(deaths))
            await until(lambda: len(farm.pool("p")) == 1)
            steady.gate.set()
            answers = await collect(farm, "c", 12)
            assert all(answer.ok for answer in answers.values())
            frail.alive = True
            await until(lambda: len(farm.pool("p")) == 2)

    asyncio.run(scenario())
    assert deaths[0] in steady.measured  # on another board, since there was one
    assert len(steady.measured) + len(frail.measured) == 12


def test_a_request_that_kills_boards_is_given_up(lab: Lab) -> None:
    boards = [lab.board(f"b{i}") for i in range(3)]
    poison = lab.request(5)
    requests = [lab.request(i) for i in range(10)]
    kills: list[str] = []
    lab_good: Callable[[Any, BoardRequest], Measurement] = boards[0].answer

    def answer(board: Any, question: BoardRequest) -> Measurement:
        if question.request_id == poison.request_id:
            kills.append(board.board_id)
            raise AgentLostError(f"{board.board_id} crashed")
        return lab_good(board, question)

    for board in boards:
        board.answer = answer

    async def scenario() -> None:
        async with lab.farm() as farm:
            await until(lambda: len(farm.pool("p")) == 3)
            farm.listen("c")
            farm.submit("c", requests)
            answers = await collect(farm, "c", 10)
            failed = answers.pop(poison.request_id)
            assert failed.outcome is Outcome.INFRASTRUCTURE_ERROR
            assert failed.error_code == "POISONOUS_REQUEST"
            assert failed.error_message.count("crashed") == 3
            assert all(answer.ok for answer in answers.values())

    asyncio.run(scenario())
    assert len(kills) == 3
    assert len(set(kills)) >= 2  # the second try went to another board


def test_a_model_that_cannot_be_built_is_a_model_error(lab: Lab) -> None:
    board = lab.board("b")
    bad = lab.request(3)
    build = lab.build

    def refuse(graph: Any, model_format: str, dtype: str) -> bytes | ModelFiles:
        if hash_of(graph) == hash_of(bad.graph):
            raise BuildError("node c0 (Conv) has no int4 form")
        return build(graph, model_format, dtype)

    lab.build = refuse  # type: ignore[method-assign]

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(5)])
            answers = await collect(farm, "c", 5)
            failed = answers.pop(bad.request_id)
            assert failed.outcome is Outcome.MODEL_ERROR
            assert "no int4 form" in failed.error_message
            assert all(answer.ok for answer in answers.values())

    asyncio.run(scenario())
    assert bad.request_id not in board.measured


def test_cancelling_frees_the_board_at_once(lab: Lab) -> None:
    board = lab.board("b")
    board.gate.clear()

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c1")
            farm.submit("c1", [lab.request(i) for i in range(6)])
            await until(lambda: board.busy)
            farm.cancel("c1")
            await until(lambda: board.leases == 2)  # given back, and with it what ran
            board.gate.set()
            farm.listen("c2")
            farm.submit("c2", [lab.request(50)])
            await collect(farm, "c2", 1)

    asyncio.run(scenario())
    assert board.measured == [lab.request(50).request_id]


def test_what_waits_behind_an_aborted_measurement_is_measured(lab: Lab) -> None:
    """Short measurements have the next one asked for already: it must not go down with them."""
    board = lab.board("b")
    first, other = [lab.request(i) for i in range(3)], lab.request(50)

    async def scenario() -> None:
        async with lab.farm(depth=2) as farm:
            await farm.wait_for("p", 60)
            for name in ("c1", "c2", "c3"):
                farm.listen(name)
            farm.submit("c3", [lab.request(99)])  # from now on it is known to be short
            await collect(farm, "c3", 1)
            board.gate.clear()
            farm.submit("c1", first[:1])
            await until(lambda: board.busy)
            farm.submit("c2", [other])
            await until(lambda: board.asked == 2)
            farm.cancel("c1")
            await until(lambda: board.leases == 2)
            board.gate.set()
            assert (await collect(farm, "c2", 1))[other.request_id].ok

    asyncio.run(scenario())
    assert board.measured == [lab.request(99).request_id, other.request_id]


def test_cancelling_what_waits_at_the_agent_spares_what_runs_there(lab: Lab) -> None:
    board = lab.board("b")

    async def scenario() -> None:
        async with lab.farm(depth=2) as farm:
            await farm.wait_for("p", 60)
            for name in ("c1", "c2"):
                farm.listen(name)
            farm.submit("c1", [lab.request(99)])
            await collect(farm, "c1", 1)
            board.gate.clear()
            farm.submit("c1", [lab.request(1)])
            await until(lambda: board.busy)
            farm.submit("c2", [lab.request(2)])
            await until(lambda: board.asked == 2)
            farm.cancel("c2")
            board.gate.set()
            assert (await collect(farm, "c1", 1))[lab.request(1).request_id].ok
            await until(lambda: farm.state().queues == {})

    asyncio.run(scenario())
    assert board.measured[:2] == [lab.request(99).request_id, lab.request(1).request_id]


def test_a_stolen_lease_is_taken_again(lab: Lab) -> None:
    board = lab.board("b")
    requests = [lab.request(i) for i in range(6)]
    healthy: Callable[[Any, BoardRequest], Measurement] = board.answer

    def steal_once(board: Any, question: BoardRequest) -> Measurement:
        if board.leases == 1 and len(board.measured) == 2:
            board.token += 1
            raise LeaseError("b is not ours")
        return replace(healthy(board, question), board_ms=1e-6)

    board.answer = steal_once

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", requests)
            answers = await collect(farm, "c", 6)
            assert all(answer.ok for answer in answers.values())
            tried_twice = [key for key, answer in answers.items() if answer.board_ms > 1e-6]
            assert len(tried_twice) == 1, "the time of the try that was lost is counted"

    asyncio.run(scenario())
    assert board.leases == 2
    assert sorted(board.measured) == sorted(request.request_id for request in requests)


def test_a_failed_upload_is_tried_again(lab: Lab) -> None:
    board = lab.board("b")
    board.refuse_uploads = 2

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(1)])
            (answer,) = (await collect(farm, "c", 1)).values()
            assert answer.ok

    asyncio.run(scenario())
    assert board.refuse_uploads == 0


def test_a_sick_board_is_quarantined_probed_and_trusted_again(lab: Lab) -> None:
    board = lab.board("b")
    healthy: Callable[[Any, BoardRequest], Measurement] = board.answer
    failures = iter(range(4))

    def sick(board: Any, question: BoardRequest) -> Measurement:
        failure = next(failures, None)
        if failure is not None:
            if failure == 3:  # the last: what follows waits until we have looked
                board.gate.clear()
            raise RuntimeError("the delegate is gone")
        return healthy(board, question)

    board.answer = sick
    reasons: list[str] = []

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(5)])
            # The board may have its last request before the farm has read of all failures.
            await until(
                lambda: not board.gate.is_set() and board.busy and not farm.healthy("p")
            )  # on probation
            reasons.extend(status.reason for status in farm.boards())
            board.gate.set()
            answers = await collect(farm, "c", 5)
            assert all(answer.ok for answer in answers.values())
            assert farm.healthy("p")

    asyncio.run(scenario())
    assert reasons == ["quarantined: RuntimeError: the delegate is gone"]


def test_building_and_timing_take_turns_on_one_host(lab: Lab) -> None:
    """`Lab.build` asserts that no quiet board is timing; here one must be, and another is not."""
    quiet = lab.board("quiet", real_time=True, boot_id="the-controllers-host")
    far = lab.board("far", platforms=("far",), real_time=True, boot_id="elsewhere")
    requests = [lab.request(i) for i in range(40)]
    others = [lab.request(i + 100, "far") for i in range(40)]

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            await farm.wait_for("far", 60)
            assert farm.quiet("p")
            assert not farm.quiet("far")
            for name, some in (("c1", requests), ("c2", others)):
                farm.listen(name)
                farm.submit(name, some)
            for name in ("c1", "c2"):
                answers = await collect(farm, name, 40)
                assert all(answer.ok for answer in answers.values()), answers

    asyncio.run(scenario())
    assert len(quiet.measured) == len(far.measured) == 40


def test_an_unknown_platform_says_what_there_is(lab: Lab) -> None:
    lab.board("b")
    away = lab.board("away")
    away.alive = False

    async def scenario() -> None:
        async with lab.farm() as farm:
            with pytest.raises(FarmError, match="'x'; on offer: p; away: away does not answer"):
                await farm.wait_for("x", 60)
            with pytest.raises(FarmError, match="no board offers platform 'x'"):
                farm.submit("c", [lab.request(1, "x")])

    asyncio.run(scenario())


def test_stopping_gives_the_boards_back(lab: Lab) -> None:
    board = lab.board("b")

    async def scenario() -> int:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            token: int = board.token
        return token

    assert board.token != asyncio.run(scenario())
