"""What is told about the ids of boards: each thing once, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_controller.farm.supervision.identity_log import QUIET_S, IdentityLog
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement, Outcome


class Clock:
    """A clock that stands still."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(store: DuckDBStore, act: Callable[[IdentityLog], None], clock: Clock) -> list[str]:
    """The events after some acts, the oldest first."""

    async def main() -> None:
        log = IdentityLog(store, clock)
        act(log)
        await log.close()

    asyncio.run(main())
    return [f"{e.board} {e.event} {e.board_id}" for e in reversed(store.board_events())]


@pytest.fixture
def store(tmp_path: Path) -> DuckDBStore:
    return DuckDBStore(tmp_path / "s")


def test_an_id_is_told_once(store: DuckDBStore, clock: Clock) -> None:
    def act(log: IdentityLog) -> None:
        for _ in range(3):
            log.identified("a", "1")
            log.identified("b", "2")

    with store:
        assert told(store, act, clock) == ["a id_pinned 1", "b id_pinned 2"]
        assert len(told(store, act, clock)) == 2
        events = told(store, lambda log: log.identified("a", "3"), clock)
        assert events[2:] == ["a id_pinned 3"]
        assert "before it was 1" in store.board_events("a")[0].reason
        assert len(told(store, lambda log: log.identified("a", "3"), clock)) == 3


def test_refusals_of_a_minute_are_told_once(store: DuckDBStore, clock: Clock) -> None:
    foreign = Measurement(
        *("r", "g", "p", "kernel", Outcome.INFRASTRUCTURE_ERROR, "1"), error_code="RESULT_FOREIGN"
    )
    good = Measurement("r", "g", "p", "kernel", Outcome.OK, "1")

    def act(log: IdentityLog) -> None:
        for _ in range(5):
            log.refused("a", "another id")
            log.refused("b", "another id")
            log.measured("a", foreign)
            log.measured("a", good)

    def act_later(log: IdentityLog) -> None:
        log.refused("a", "another id")
        clock.now_s += QUIET_S / 2
        log.refused("a", "another id")
        clock.now_s += QUIET_S
        log.refused("a", "another id")

    with store:
        first = ["a id_refused ", "a result_refused 1", "b id_refused "]
        assert sorted(told(store, act, clock)) == first
        assert len(told(store, act_later, clock)) == 5
