"""The backend on Ray without a Ray: its folders, what it imports, and what it can pass on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_controller.errors import FarmError, RayAwayError
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.boards.model_builder import BuilderState
from latfarm_controller.farm.boards.shard import connect
from latfarm_controller.farm.processes.backends import MODELS, RayBackend, RayOptions
from latfarm_controller.farm.processes.ray_keeper import RayKeeper

NO_PROCESS = 2**22 + 1
"""A number that is no id of a process: Linux has at most 2**22 of them (`man 5 proc`)."""


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayKeeper, "start", lambda keeper: None)


def test_folders_of_models_are_removed_at_the_end_or_by_the_next_controller(tmp_path: Path) -> None:
    left = tmp_path / f"{MODELS}{NO_PROCESS}-0123"
    other = tmp_path / f"{MODELS}{os.getppid()}-0123"
    for folder in (left, other):
        folder.mkdir()
        (folder / "model").write_bytes(b"m")

    async def scenario() -> None:
        backend = RayBackend(RayOptions(tmp_path))
        await backend.start()
        (own,) = set(tmp_path.iterdir()) - {other}
        assert own.stat().st_mode & 0o077 == 0
        await backend.close()

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == [other]


def test_a_folder_that_cannot_be_made_is_told() -> None:
    nowhere = Path(f"/proc/{os.getpid()}/nowhere")
    with pytest.raises(FarmError, match="no folder for models under"):
        asyncio.run(RayBackend(RayOptions(nowhere)).start())


def test_before_ray_runs_nothing_is_built_and_no_shard_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = RayBackend(RayOptions(tmp_path))
        assert backend.builders == BuilderState(0, "Ray has not been started yet")
        with pytest.raises(RayAwayError, match="Ray has not been started yet"):
            await backend.far_shard(ShardSettings("test"), here=True)

    asyncio.run(scenario())


def test_only_functions_of_modules_can_be_passed_on(tmp_path: Path) -> None:
    RayBackend(RayOptions(tmp_path), connect=connect)
    with pytest.raises(FarmError, match="must be a function of a module"):
        RayBackend(RayOptions(tmp_path), connect=lambda entry, holder: connect(entry, holder))


def test_the_controller_does_not_import_ray() -> None:
    code = "import sys, latfarm_controller.api.server as _; print('ray' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
