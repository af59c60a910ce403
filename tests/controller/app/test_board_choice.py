"""Campaigns and questions measure on the boards that their tags and access groups leave them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from latfarm_controller.agents.registry import Registry
from latfarm_controller.app.app import Controller
from latfarm_controller.app.question import Found, Question
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord

from tests.controller.app.site import Site, reach
from tests.controller.farm.conftest import until

pytestmark = pytest.mark.timeout(120)


def note(site: Site, name: str, **profile: Any) -> None:
    """Note something about a board in the inventory."""
    registry = Registry(site.config.boards_file)
    registry.add(name, f"127.0.0.1:{len(registry.list()) + 1}", replace=True)
    registry.set_profile(name, lambda _old: BoardProfile(**profile))


def allow(site: Site, **groups: tuple[str, ...]) -> None:
    site.config = site.config.model_copy(update={"access_groups": groups})


async def start(
    site: Site, controller: Controller, count: int, user: str = "", tags: tuple[str, ...] = ()
) -> CampaignRecord:
    graphs = [site.lab.graph(number).to_json() for number in range(count)]
    config = {"graphs": graphs} | ({"tags": list(tags)} if tags else {})
    return await controller.campaigns.start("networks", "p", config, "c", user)


def test_a_campaign_measures_on_boards_with_all_its_tags(site: Site) -> None:
    some, one = site.board("some"), site.board("one")
    note(site, "some", tags=("jetson", "lab2"))
    note(site, "one", tags=("jetson",))

    async def main() -> None:
        async with site.controller() as (controller, farm):
            record = await start(site, controller, 12, "ada", ("lab2", "jetson"))
            assert record.config["tags"] == ["jetson", "lab2"]
            assert record.config["started_by"] == "ada"
            await until(lambda: farm.pool("p"))
            done = await reach(controller, "done", 12)
            assert set(done.outcome["boards"]) == {"some"}
            with pytest.raises(
                UsageError, match=r"no board of p may be used: .*one: it has no tag"
            ):
                await start(site, controller, 1, "ada", ("jetson", "lab3"))
            for wrong in ({"tags": "x"}, {"tags": ["a b"]}, {"started_by": "root"}):
                with pytest.raises(UsageError):
                    await controller.campaigns.start("networks", "p", wrong, "c", "ada")

    asyncio.run(main())
    assert len(some.measured) == 12
    assert one.measured == []


def test_only_members_of_its_group_measure_on_a_board(site: Site) -> None:
    closed, free = site.board("closed"), site.board("free")
    note(site, "closed", access="vision")
    allow(site, vision=("alice",))

    async def main() -> None:
        async with site.controller() as (controller, _):
            await start(site, controller, 6, "bob")
            await reach(controller, "done", 6)
            assert (len(closed.measured), len(free.measured)) == (0, 6)
            site.names.discard("free")
            with pytest.raises(UsageError, match="for the access group vision, and bob is no mem"):
                await start(site, controller, 7, "bob")
            await start(site, controller, 8, "unix:alice")
            await reach(controller, "done", 8)

    asyncio.run(main())
    assert len(closed.measured) == 8


def test_a_question_is_asked_of_boards_that_are_for_its_user(site: Site) -> None:
    board = site.board("closed")
    note(site, "closed", access="vision", tags=("fast",))
    allow(site, vision=("alice",))
    asked = Question.about(site.lab.graph(3), "p")

    async def ask(controller: Controller, **changes: Any) -> Found:
        async for event in controller.questions.ask(replace(asked, **changes)):
            if isinstance(event, Found):
                return event
        raise AssertionError("no answer")

    async def main() -> None:
        async with site.controller() as (controller, _):
            for user in ("bob", ""):
                with pytest.raises(UsageError, match="access group vision"):
                    await ask(controller, user=user)
            with pytest.raises(UsageError, match="it has no tag slow"):
                await ask(controller, user="alice", tags=("slow",))
            assert board.measured == []
            found = await ask(controller, user="alice", tags=("fast",))
            assert not found.hit
            known = await ask(controller, user="bob")
            assert known.hit, "what is stored answers everybody"

    asyncio.run(main())
    assert len(board.measured) == 1


def test_a_board_that_is_restricted_leaves_a_running_campaign(site: Site) -> None:
    board = site.board("a")
    board.gate.clear()
    allow(site, vision=("alice",))

    async def main() -> None:
        async with site.controller() as (controller, _):
            await start(site, controller, 6, "bob")
            await until(lambda: board.busy)
            note(site, "a", access="vision")
            waiting = await reach(controller, "waiting")
            assert "a: it is for the access group vision" in waiting.waiting_for
            board.gate.set()
            await until(lambda: len(board.measured) == 1)  # it finishes what it runs
            note(site, "a")
            await reach(controller, "done", 6)

    asyncio.run(main())
    assert len(board.measured) == 6


def test_a_resumed_campaign_is_still_that_of_whoever_started_it(site: Site) -> None:
    board = site.board("a")
    note(site, "a", access="vision")
    allow(site, vision=("alice",))
    board.gate.clear()

    async def main() -> None:
        async with site.controller() as (controller, _):
            await start(site, controller, 3, "alice")
            await until(lambda: board.busy)
            await controller.campaigns.pause("c")
        board.gate.set()
        async with site.controller() as (controller, _):
            record = await controller.campaigns.get("c")
            assert record.config["started_by"] == "alice"
            await controller.campaigns.resume("c")
            await reach(controller, "done", 3)

    asyncio.run(main())
