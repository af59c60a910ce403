"""How a worker process is started, and what is told where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.launcher import Launcher
from latfarm_agent.worker.main import WorkerConfig
from latfarm_agent.worker.start import WorkerStart, launch


def test_a_runtime_with_its_own_python_is_missing_where_its_folder_cannot_be_made(
    tmp_path: Path,
) -> None:
    """A board whose disk is full describes its other runtimes all the same."""
    (tmp_path / "import").write_text("in the way")
    start = WorkerStart(WorkerConfig("any:Any", os.getpid(), {}), tmp_path, python="python3")
    launcher = Launcher()
    try:
        with pytest.raises(WorkerFailure, match="no worker could be started") as failed:
            launch(launcher, start)
    finally:
        launcher.close()
    assert failed.value.code == "WORKER_FAILED"
