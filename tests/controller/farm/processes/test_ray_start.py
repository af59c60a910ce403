"""Ray starts although the host is slow, and again in the same process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import ray_runtime
from latfarm_controller.farm.processes.ray_runtime import START_TRIES, RayRuntime

SLOW = "The current node timed out during startup. This could happen because ..."


class SlowRay:
    """Stands for the module `ray`; its first starts fail."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        self.util = SimpleNamespace(get_node_ip_address=lambda: ray_runtime.LOOPBACK)

    def init(self, **_: object) -> None:
        if self.errors:
            raise RuntimeError(self.errors.pop(0))

    def shutdown(self) -> None:
        pass


def start(errors: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and stop a Ray whose first starts fail with these errors."""
    monkeypatch.setattr(ray_runtime, "_import_ray", lambda: SlowRay(errors))
    with RayRuntime(folder):
        pass


def test_a_slow_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [SLOW] * (START_TRIES - 1)
    start(errors, tmp_path, monkeypatch)
    assert errors == []


def test_a_start_that_stays_slow_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FarmError, match="Ray cannot be started: The current node timed out"):
        start([SLOW] * START_TRIES, tmp_path, monkeypatch)


def test_another_error_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FarmError, match="no such plasma store"):
        start(["no such plasma store"], tmp_path, monkeypatch)


TWICE = """
import sys
from pathlib import Path
from latfarm_controller.farm.processes.ray_runtime import RayRuntime

for _ in range(2):
    with RayRuntime(Path(sys.argv[1]), cpus=1):
        import ray

        print(ray.get(ray.remote(lambda: "answered").remote()))
"""


@pytest.mark.xdist_group("command")  # one Ray at a time
@pytest.mark.timeout(300)
def test_ray_starts_twice_in_one_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TWICE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.stdout.split() == ["answered", "answered"], ended.stderr
