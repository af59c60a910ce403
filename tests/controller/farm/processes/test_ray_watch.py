"""A process of Ray that ends while Ray starts is noticed; Ray itself waits half a minute for it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import ray_child, ray_watch
from latfarm_controller.farm.processes.ray_child import RayChild
from latfarm_controller.farm.processes.ray_runtime import RayRuntime


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the name of one of Ray's."""
    program = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def dead(process: subprocess.Popen[bytes]) -> None:
    """Kill a process whose parent does not notice it."""
    process.kill()
    while ray_watch.ended_child() == "":
        time.sleep(0.01)


def test_only_a_process_that_has_ended_is_told(raylet: subprocess.Popen[bytes]) -> None:
    assert ray_watch.ended_child() == ""
    dead(raylet)
    assert ray_watch.ended_child() == "raylet ended while Ray was starting"
    raylet.wait()
    assert ray_watch.ended_child() == "", "its parent knows of it"


class StuckRuntime:
    """A Ray whose start waits for a raylet that has been killed."""

    def __init__(self, raylet: subprocess.Popen[bytes]) -> None:
        self.raylet = raylet
        self.given_up = False

    def start(self) -> None:
        dead(self.raylet)
        while not self.given_up:
            time.sleep(0.01)


def test_a_start_that_cannot_succeed_is_not_waited_for(
    raylet: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_child, "LOOK_S", 0.02)
    child = RayChild(cast(Any, None), 0)
    runtime = StuckRuntime(raylet)

    async def main() -> None:
        with pytest.raises(FarmError, match="raylet ended while Ray was starting"):
            await child._started(cast(RayRuntime, runtime))
        runtime.given_up = True  # the process of Ray would end now, and its threads with it

    asyncio.run(main())
