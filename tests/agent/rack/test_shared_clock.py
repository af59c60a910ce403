"""The clock that the boards of a rack share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from latfarm_agent.rack.shared_clock import SharedClock

LONG_S = 3600.0
"""Longer than any test: who waits so long is woken by something else."""

WAIT_S = 60.0


@pytest.fixture
def clock() -> Iterator[SharedClock]:
    made = SharedClock()
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_a_wait_ends_when_its_time_has_passed(clock: SharedClock) -> None:
    assert clock.wait(0.0, lambda: False)
    assert clock.wait(0.01, lambda: False)


def test_a_cancelled_wait_ends_and_leaves_the_others_alone(
    clock: SharedClock, pool: ThreadPoolExecutor
) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def other() -> bool:
        asked.set()
        return False

    waits: list[Future[bool]] = [
        pool.submit(clock.wait, LONG_S, other),
        pool.submit(clock.wait, LONG_S, cancelled.is_set),
    ]
    assert asked.wait(WAIT_S)
    assert not waits[1].done()
    cancelled.set()
    assert waits[1].result(WAIT_S) is False
    # The first one is still waited for, and a shorter wait overtakes it.
    assert clock.wait(0.01, lambda: False)
    assert not waits[0].done()
    clock.close()
    assert waits[0].result(WAIT_S) is False


def test_nobody_waits_on_a_closed_clock(clock: SharedClock) -> None:
    clock.close()
    assert clock.wait(LONG_S, lambda: False) is False


def test_many_waits_all_end(clock: SharedClock, pool: ThreadPoolExecutor) -> None:
    waits = [pool.submit(clock.wait, 0.001 * (n % 7), lambda: False) for n in range(200)]
    assert all(wait.result(WAIT_S) for wait in waits)
