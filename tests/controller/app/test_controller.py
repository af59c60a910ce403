"""The controller as a whole: each campaign and question runs once, and how they end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.app.question import Question
from latfarm_controller.errors import ControllerError, StoreError, UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

pytestmark = pytest.mark.timeout(90)

CONFIG = {"settings": {"sessions": 1, "warmup_ms": 0.0, "max_ms": 10.0, "max_runs": 5}}


def networks(lab: Any, count: int, first: int = 1) -> dict[str, Any]:
    return CONFIG | {"graphs": [lab.graph(first + i).to_json() for i in range(count)]}


async def ask(
    controller: Any, graph: Any, tier: str = "survey", platform: str = "toy", **options: Any
) -> tuple[Measurement, bool]:
    question = replace(Question.about(graph, platform), tier=tier, **options)
    async for event in controller.questions.ask(question):
        if not isinstance(event, str):
            return event.measurement, event.hit
    raise AssertionError("no answer")


async def end(controller: Any, name: str) -> CampaignRecord:
    states: list[CampaignRecord] = [state async for state in controller.campaigns.watch(name)]
    return states[-1]


def measured(lab: Any) -> list[str]:
    """The request ids in the store."""
    with app_store(lab) as store:
        return [m.request_id for m in store.measurements()]


def app_store(lab: Any) -> Any:
    from latfarm_controller.store.duckdb import DuckDBStore

    return DuckDBStore(lab.store_file)


def test_a_question_is_measured_once_and_then_known(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            graph = lab.graph(4)
            first, second = await asyncio.gather(ask(controller, graph), ask(controller, graph))
            assert first == second
            assert first[0].ok
            assert not first[1]
            again, hit = await ask(controller, graph)
            assert (again, hit) == (first[0], True)
            fresh, hit = await ask(controller, graph, refresh=True)
            assert not hit
            assert fresh.request_id != again.request_id
            assert await controller.campaigns.all() == []

    asyncio.run(main())
    assert len(measured(lab)) == 2


def test_another_export_of_a_network_is_not_measured_again(lab: Any) -> None:
    def export(batch_norm: bool) -> Any:
        builder = GraphBuilder("net")
        x = builder.conv(builder.input((1, 3, 16, 16)), 6, 3, bias=not batch_norm)
        return builder.build([builder.relu(builder.batch_norm(x) if batch_norm else x)])

    one, other = export(batch_norm=True), export(batch_norm=False)
    assert hash_of(one) != hash_of(other)

    async def main() -> None:
        async with lab.controller() as controller:
            first, second = await asyncio.gather(ask(controller, one), ask(controller, other))
            assert first == second
            # Both look into the store first; whoever is back first has its export measured.
            assert first[0].graph_hash in {hash_of(one), hash_of(other)}
            known, hit = await ask(controller, other)
            assert hit
            assert known == first[0]
            # Once this export is measured itself, that is the answer, even if others are newer.
            own, hit = await ask(controller, other, refresh=True)
            assert not hit
            assert own.graph_hash == hash_of(other)
            newer, _ = await ask(controller, one, refresh=True)
            assert newer.graph_hash == hash_of(one)
            assert own.unstable or (await ask(controller, other))[0] == own

    asyncio.run(main())
    assert len(measured(lab)) == 3


def test_what_was_published_answers_a_survey_but_not_the_reverse(lab: Any) -> None:
    graph = lab.graph(5)

    async def main() -> None:
        async with lab.controller() as controller:
            survey, _ = await ask(controller, graph)
            publish, hit = await ask(controller, graph, "publish")
            assert not hit
            assert publish.settings is not None
            assert publish.settings.tier == "publish"
            found, hit = await ask(controller, graph)
            assert hit
            assert found in (survey, publish)

    asyncio.run(main())


def test_a_network_that_a_campaign_measured_is_known(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            record = await controller.campaigns.start("networks", "toy", networks(lab, 1, 8), "")
            assert (await end(controller, record.campaign_id)).state == "done"
            _, hit = await ask(controller, lab.graph(8))
            assert hit

    asyncio.run(main())


def test_a_failure_is_an_answer_but_is_not_remembered(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            for _ in range(2):
                answer, hit = await ask(controller, lab.graph(4, gelu=True))
                assert answer.outcome is Outcome.MODEL_ERROR
                assert "Erf" in answer.error_message
                assert not hit

    asyncio.run(main())


@pytest.mark.parametrize("tier", ["fast", "PUBLISH"])
def test_unknown_tiers_and_platforms(lab: Any, tier: str) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            with pytest.raises(UsageError, match="survey or publish"):
                await ask(controller, lab.graph(1), tier)
            with pytest.raises(UsageError, match="unknown platform 'other'; known: toy"):
                await ask(controller, lab.graph(1), platform="other")
            with pytest.raises(UsageError, match="unknown platform 'other'; known: toy"):
                await controller.campaigns.start("networks", "other", networks(lab, 1), "")
            with pytest.raises(UsageError, match="known: fusion, kernels"):
                await controller.campaigns.start("fusions", "toy", {}, "")
            with pytest.raises(UsageError, match="no campaign 'x'; the newest are: none yet"):
                await controller.campaigns.get("x")

    asyncio.run(main())
    assert measured(lab) == []


def test_the_same_campaign_started_at_once_runs_once(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            starts = [
                controller.campaigns.start("networks", "toy", networks(lab, 4), "twin")
                for _ in range(3)
            ]
            records = await asyncio.gather(*starts)
            assert len({record.campaign_id for record in records}) == 1
            ended = await asyncio.gather(*(end(controller, "twin") for _ in range(3)))
            assert {record.state for record in ended} == {"done"}
            assert ended[0].measurements == 4
            done = await controller.campaigns.start("networks", "toy", networks(lab, 4), "twin")
            assert done.state == "done"
            (listed,) = await controller.campaigns.all()
            assert (listed.config, listed.outcome) == ({}, {})  # of any size, and `get` tells them
            assert done.config["graphs"]
            assert done.outcome

    asyncio.run(main())
    assert len(measured(lab)) == 4


def test_watch_always_ends_with_the_final_state(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            for number in range(8):
                config = networks(lab, 1, 20 + number)
                record = await controller.campaigns.start("networks", "toy", config, "")
                # A slow watcher: the campaign ends between two of its looks.
                states = []
                async for state in controller.campaigns.watch(record.campaign_id):
                    states.append(state.state)
                    await asyncio.sleep(0.02 * number)
                assert states[-1] == "done"
                assert states.count("done") >= 1

    asyncio.run(main())


def test_cancel_then_resume_measures_nothing_twice(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            config = networks(lab, 30)
            record = await controller.campaigns.start("networks", "toy", config, "c")
            async for state in controller.campaigns.watch("c"):
                if state.measurements >= 3:
                    break
            cancelled = await controller.campaigns.cancel("c")
            assert cancelled.state == "cancelled"
            assert 3 <= cancelled.measurements < 30
            assert (await controller.campaigns.cancel("c")).state == "cancelled"
            await controller.campaigns.resume("c")
            ended = await end(controller, record.campaign_id)
            assert (ended.state, ended.measurements) == ("done", 30)
            assert (await controller.campaigns.resume("c")).state == "done"
            assert (await controller.campaigns.cancel("c")).state == "done"

    asyncio.run(main())
    found = measured(lab)
    assert len(found) == len(set(found)) == 30


def test_closing_interrupts_and_the_next_controller_resumes(lab: Any) -> None:
    async def first() -> None:
        async with lab.controller() as controller:
            await controller.campaigns.start("networks", "toy", networks(lab, 30), "c")
            async for state in controller.campaigns.watch("c"):
                if state.measurements >= 2:
                    break
            question = asyncio.create_task(ask(controller, lab.graph(99), "publish"))
            await asyncio.sleep(0)
        with pytest.raises((ControllerError, asyncio.CancelledError)):
            await question
        with pytest.raises(ControllerError, match="stopping"):
            await ask(controller, lab.graph(98))

    async def second() -> None:
        async with lab.controller() as controller:
            left = await controller.campaigns.get("c")
            assert left.state == "interrupted"
            assert 2 <= left.measurements < 30
            await controller.campaigns.start("networks", "toy", networks(lab, 30), "c")
            assert (await end(controller, "c")).measurements == 30

    asyncio.run(first())
    asyncio.run(second())


def test_a_killed_controllers_campaign_is_interrupted_not_running(lab: Any) -> None:
    with app_store(lab) as store:
        store.put_campaign(CampaignRecord("k", "k", "networks", "toy", state="running"))

    async def main() -> None:
        async with lab.controller() as controller:
            assert (await controller.campaigns.get("k")).state == "interrupted"
            assert [state.state async for state in controller.campaigns.watch("k")] == [
                "interrupted"
            ]

    asyncio.run(main())


def test_a_store_that_fails_ends_the_campaign_for_its_watchers(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latfarm_controller.store.duckdb import DuckDBStore

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("store.duckdb: No space left on device")

    async def main() -> None:
        async with lab.controller() as controller:
            await controller.campaigns.start("networks", "toy", networks(lab, 4, 40), "c")
            monkeypatch.setattr(DuckDBStore, "add_measurements", full)
            monkeypatch.setattr(DuckDBStore, "put_campaign", full)
            ended = await end(controller, "c")
            assert ended.state == "failed"
            assert "No space left" in ended.error
            monkeypatch.undo()
            await controller.campaigns.resume("c")
            assert (await end(controller, "c")).state == "done"

    asyncio.run(main())


def test_platforms_and_boards(lab: Any, tmp_path: Path) -> None:
    from latfarm_controller.agents.registry import Registry

    Registry(lab.config.boards_file).add("gone", "127.0.0.1:1")
    (lab.config.bundles_dir / "away").mkdir()
    (lab.config.bundles_dir / "away" / "0001.zip").touch()

    async def main() -> None:
        async with lab.controller() as controller:
            boards = {board.name: board for board in await controller.boards()}
            assert boards["toy"].state == "idle"
            assert list(boards["toy"].platforms) == ["toy"]
            assert boards["gone"].state == "unreachable"
            assert boards["gone"].detail
            platforms = {p.name: p for p in await controller.platforms() if p.name}
            assert set(platforms) == {"toy", "away"}
            assert platforms["toy"].available
            assert platforms["away"].bundle == "0001"
            assert not platforms["away"].available
            with pytest.raises(UsageError, match=r"not reachable: gone \("):
                await controller.campaigns.start("networks", "x", networks(lab, 1), "")

    asyncio.run(main())


def test_the_events_of_a_board_that_never_was_are_refused(lab: Any) -> None:
    async def main() -> None:
        async with lab.controller() as controller:
            assert await controller.control.events("toy") == []
            with pytest.raises(UsageError, match="no board 'toyy'"):
                await controller.control.events("toyy")

    asyncio.run(main())
