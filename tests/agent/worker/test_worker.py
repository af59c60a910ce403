"""How the end of a worker's process is told apart: faults of models, and ends from outside."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from latfarm_agent.worker import worker
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.launcher import Launcher
from latfarm_agent.worker.main import WorkerConfig
from latfarm_agent.worker.start import Launched, WorkerStart
from latfarm_agent.worker.worker import Worker


def failure_of(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerFailure:
    """The failure of a worker whose process is a shell that runs a command."""
    own = folder / "worker"
    own.mkdir()

    def launch(launcher: Launcher, start: WorkerStart) -> Launched:
        del launcher, start
        pipe = subprocess.PIPE
        shell = ["sh", "-c", command]
        process = subprocess.Popen(shell, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        return Launched(own, process, None)

    monkeypatch.setattr(worker, "launch", launch)
    launcher = Launcher()
    try:
        start = WorkerStart(WorkerConfig("any:Any", os.getpid(), {}), folder)
        with pytest.raises(WorkerFailure) as failed:
            Worker(launcher, start)
    finally:
        launcher.close()
    assert not own.exists()
    return failed.value


@pytest.mark.parametrize("command", ["kill -TERM $$", "exit 143"])
def test_a_worker_that_was_told_to_end_is_no_fault_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """systemd sends SIGTERM to all processes of a service that it stops.

    The worker ends by the signal; its keeper ends what is left and exits with 143.
    """
    failure = failure_of(command, tmp_path, monkeypatch)
    assert failure.code == "WORKER_FAILED"
    assert "SIGTERM" in failure.message


@pytest.mark.parametrize(
    ("command", "says"), [("kill -SEGV $$", "SIGSEGV"), ("exit 7", "exit status 7")]
)
def test_any_other_end_is_the_runtimes_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    failure = failure_of(command, tmp_path, monkeypatch)
    assert failure.code == "RUNTIME_MISSING"
    assert says in failure.message
