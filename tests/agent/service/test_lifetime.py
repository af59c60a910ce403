"""What ends the process of an agent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from latfarm_agent.files.readiness import readable
from latfarm_agent.service import lifetime
from latfarm_agent.service.lifetime import Ending

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def ending() -> Iterator[Ending]:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with closing(Ending()) as made:
        yield made
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_ends_the_wait(
    ending: Ending, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()

    def note(files: Sequence[int], timeout_s: float | None) -> list[int]:
        waits.set()
        return readable(files, timeout_s)

    def get_signal() -> None:
        assert waits.wait(50)
        signal.pthread_kill(threading.get_ident(), number)

    monkeypatch.setattr(lifetime, "readable", note)
    thread = threading.Thread(target=get_signal)
    thread.start()
    ending.wait()
    thread.join()
    assert ending.interrupted == (number == signal.SIGINT)


def test_a_signal_before_the_wait_ends_it_as_well(ending: Ending) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    ending.wait()
    assert ending.interrupted
