"""Worker processes: results in order, bad items that fail alone, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from latfarm_controller.bulk.lender import WorkerLender, worker_count
from latfarm_controller.bulk.pool import MOST_ENDS, WorkerPool
from latfarm_controller.bulk.worker import portable
from latfarm_controller.bulk.worker_process import WorkerEndedError
from latfarm_controller.errors import ControllerError, UsageError

from tests.controller.bulk.tasks import KILLS, RAISES, doubled, endless, settled

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the module `tasks`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a state; the time limit of the tests ends it if it never comes."""
    while not holds():
        threading.Event().wait(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended, too."""
    try:
        return str(psutil.Process(pid).status()) == str(psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_results_keep_their_order_and_bad_items_fail_alone() -> None:
    with WorkerPool(2) as pool:
        assert pool.submit(settled, [1]).result() == ["1"]
        first = pool.submit(doubled, [1, 2, 3])
        second = pool.submit(doubled, [4, RAISES, 5, 6])
        third = pool.submit(doubled, [7, 8, KILLS, 9])
        assert first.result() == [2, 4, 6]
        told = second.result()
        assert [each for each in told if isinstance(each, int)] == [8, 10, 12]
        assert str(told[1]) == "this item is bad"
        told = third.result()
        assert [each for each in told if isinstance(each, int)] == [14, 16, 18]
        assert isinstance(told[2], WorkerEndedError)
        assert "ended with code -9" in str(told[2])
        assert pool.submit(doubled, []).result() == []
        pids = pool.pids
        assert len(pids) <= 2
    assert all(gone(pid) for pid in pids)
    with pytest.raises(RuntimeError):
        pool.submit(doubled, [1])


def test_workers_that_cannot_work_are_not_started_for_ever() -> None:
    with WorkerPool(1) as pool, pytest.raises(ControllerError, match="PREDICTION_WORKERS=1"):
        pool.submit(doubled, [KILLS] * (2 * MOST_ENDS)).result()


def test_closing_ends_tasks_that_run(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    running = pool.submit(endless, [1], str(tmp_path / "started"))
    waiting = pool.submit(doubled, [1])
    wait_until((tmp_path / "started").exists)
    pids = pool.pids
    pool.close()
    pool.close()
    assert all(gone(pid) for pid in pids)
    assert isinstance(running.exception(), ControllerError)
    assert waiting.cancelled() or isinstance(waiting.exception(), ControllerError)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_the_process_that_started_it(
    tmp_path: Path, sent: signal.Signals
) -> None:
    command = [sys.executable, "-m", "tests.controller.bulk.endless_pool", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        wait_until(lambda: (tmp_path / "pids").exists() or process.poll() is not None)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 2
        process.send_signal(sent)
        assert process.wait() != 0
    wait_until(lambda: all(gone(pid) for pid in pids))


def test_borrowers_share_the_workers_until_the_last_has_gone() -> None:
    lender = WorkerLender(2)
    with lender.lent() as one:
        with lender.lent() as two:
            assert one is two
            assert one.submit(doubled, [1]).result() == [2]
        pids = lender.pids
        assert len(pids) == 1
        assert not gone(pids[0])
    assert lender.pids == []
    assert gone(pids[0])
    patient = WorkerLender(2, idle_s=1e6)
    with patient.lent() as pool:
        assert pool.submit(doubled, [1]).result() == [2]
    pids = patient.pids
    assert not gone(pids[0])
    patient.close()
    patient.close()
    assert gone(pids[0])


def test_idle_workers_end() -> None:
    lender = WorkerLender(1, idle_s=1e-3)
    with lender.lent() as pool:
        assert pool.submit(doubled, [1]).result() == [2]
        pids = pool.pids
    wait_until(lambda: gone(pids[0]))
    assert lender.pids == []


def test_errors_that_cannot_travel_become_their_text() -> None:
    class LocalError(Exception):
        pass

    usage = UsageError("wrong")
    assert portable(usage) is usage
    assert str(portable(LocalError("odd"))) == "LocalError: odd"


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)))
    memory = psutil.virtual_memory()
    plenty = memory._replace(available=64 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: plenty)
    assert worker_count(3) == 3
    assert worker_count(None) == 6
    assert worker_count(None, spared_cores=1) == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert worker_count(None) == 8
    scarce = memory._replace(available=1200 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: scarce)
    assert worker_count(None) == 2
    scarce = memory._replace(available=0)
    assert worker_count(None) == 1
