"""People switch the power of boards by hooks, not too often, and each time is an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.hook_runner import HookOutcome
from latfarm_controller.farm.supervision.power_switch import MOST_AN_HOUR, PowerSwitch
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.conftest import Lab, until

HOOKS = BoardHooks(power_off=Hook(("off",)), power_cycle=Hook(("cycle",)))


class FakeHooks:
    """Notes which hooks are run; `ok` says whether they succeed, and `gate` holds them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.ok = True
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, hook: Hook, board: str, action: str) -> HookOutcome:
        self.calls.append((*hook.command, board, action))
        await self.gate.wait()
        return HookOutcome(self.ok, "relay 4")


def playing(
    lab: Lab, store: DuckDBStore, clock: Callable[[], float] = lambda: 0.0
) -> tuple[FakeHooks, Callable[[Callable[[PowerSwitch], object]], None]]:
    """Fake hooks, and what runs a story with a switch that uses them."""
    hooks = FakeHooks()

    def run(story: Callable[[PowerSwitch], object]) -> None:
        async def main() -> None:
            async with lab.farm() as farm:
                desk = BoardSupervisor(store, farm)
                power = PowerSwitch(desk, lambda _: HOOKS, run_hook=hooks, clock_s=clock)
                await story(power)  # type: ignore[misc]
                await desk.close()

        asyncio.run(main())

    return hooks, run


def test_an_action_runs_its_hook_and_is_an_event(lab: Lab, store: DuckDBStore) -> None:
    hooks, run = playing(lab, store)

    async def story(power: PowerSwitch) -> None:
        assert await power.switch("a", "off", "new card", "ada") == "relay 4"
        assert power.is_off("a")
        await power.switch("a", "cycle", "", "ada")
        assert not power.is_off("a")

    run(story)
    assert hooks.calls == [("off", "a", "power_off"), ("cycle", "a", "power_cycle")]
    events = [(event.event, event.reason, event.actor) for event in store.board_events("a")]
    assert events == [
        ("power_cycle", "done: relay 4", "ada"),
        ("power_off", "done: relay 4; because: new card", "ada"),
    ]
    assert store.standings() == {}, "that decides nothing"


def test_what_cannot_be_done_names_the_remedy(lab: Lab, store: DuckDBStore) -> None:
    hooks, run = playing(lab, store)

    async def story(power: PowerSwitch) -> None:
        with pytest.raises(UsageError, match="latfarm boards set a --power-on-hook COMMAND"):
            await power.switch("a", "on", "", "ada")
        with pytest.raises(UsageError, match="known: off, on, cycle, reboot"):
            await power.switch("a", "explode", "", "ada")

    run(story)
    assert hooks.calls == []
    assert store.board_events() == []


def test_a_hook_that_fails_is_an_error_and_an_event(lab: Lab, store: DuckDBStore) -> None:
    hooks, run = playing(lab, store)
    hooks.ok = False

    async def story(power: PowerSwitch) -> None:
        with pytest.raises(FarmError, match="the hook power_off of board a failed: relay 4"):
            await power.switch("a", "off", "", "ada")
        assert not power.is_off("a")

    run(story)
    (event,) = store.board_events("a")
    assert (event.event, event.reason, event.details) == (
        "power_off",
        "failed: relay 4",
        {"ok": False},
    )


def test_the_power_is_not_switched_too_often(lab: Lab, store: DuckDBStore) -> None:
    now_s = [0.0]
    hooks, run = playing(lab, store, lambda: now_s[0])

    async def story(power: PowerSwitch) -> None:
        for number in range(MOST_AN_HOUR):
            now_s[0] = 60.0 * number
            await power.switch("a", "cycle", "", "ada")
        with pytest.raises(FarmError, match="allowed again in 2940 s"):
            await power.switch("a", "cycle", "", "ada")
        await power.switch("b", "cycle", "", "ada")
        now_s[0] = 3600.0
        await power.switch("a", "cycle", "", "ada")

    run(story)
    assert len(hooks.calls) == MOST_AN_HOUR + 2


def test_two_hooks_of_a_board_do_not_run_at_once(lab: Lab, store: DuckDBStore) -> None:
    hooks, run = playing(lab, store)
    hooks.gate.clear()

    async def story(power: PowerSwitch) -> None:
        first = asyncio.create_task(power.switch("a", "cycle", "", "ada"))
        await until(lambda: hooks.calls)
        with pytest.raises(FarmError, match="is still running"):
            await power.switch("a", "off", "", "bob")
        hooks.gate.set()
        await first

    run(story)
    assert len(hooks.calls) == 1
