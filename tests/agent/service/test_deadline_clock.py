"""The clock of the session: it wakes at a deadline or for an earlier one, and for nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Iterator

import pytest
from latfarm_agent.service.deadline_clock import DeadlineClock
from latfarm_agent.service.server import AgentServer
from tests.agent.service.calls import WAIT_S, until

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client

pytestmark = pytest.mark.timeout(120)


class Deadlines:
    """What a clock looks at; the time does not pass by itself."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.next_ms: float | None = None
        self.looked = threading.Semaphore(0)
        self.passed = threading.Semaphore(0)
        self.clock = DeadlineClock(self.changed, self._look, lambda: 0.0, self.passed.release)

    def _look(self) -> float | None:
        if threading.current_thread().name == "clock":
            self.looked.release()
        return self.next_ms

    def move(self, next_ms: float | None) -> None:
        """Move the deadline, as an event does."""
        with self.changed:
            self.next_ms = next_ms
            self.clock.look()


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    """Deadlines whose clock has begun to wait."""
    made = Deadlines()
    made.clock.start()
    assert made.looked.acquire(timeout=WAIT_S)
    yield made
    made.clock.stop()


def test_the_clock_wakes_for_an_earlier_deadline_only(deadlines: Deadlines) -> None:
    deadlines.move(9e9)
    assert deadlines.looked.acquire(timeout=WAIT_S)
    for later_ms in (9e9, 9.5e9, None, 9.2e9):
        deadlines.move(later_ms)
    deadlines.move(8e9)
    assert deadlines.looked.acquire(timeout=WAIT_S)
    deadlines.clock.stop()
    assert deadlines.clock.wakes == 3  # the last time to end


def test_the_clock_tells_that_a_deadline_has_passed(deadlines: Deadlines) -> None:
    deadlines.move(-1.0)
    assert deadlines.passed.acquire(timeout=WAIT_S)


def test_a_clock_that_was_not_started_can_be_stopped() -> None:
    Deadlines().clock.stop()


def test_a_measurement_does_not_wake_the_clock(client: Client, server: AgentServer) -> None:
    token = client.acquire(ttl_ms=3_600_000)
    sha256 = client.upload(token)
    clock = server.conductor._clock
    assert until(lambda: clock.wakes > 0)  # for the new lease
    before = clock.wakes
    for number in range(5):
        assert client.result(token, sha256, f"r{number}").outcome == "ok"
    assert clock.wakes == before
