"""The disk fills under a campaign on Ray: it goes on when there is room, and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controller.farm.processes.open_ended import undisturbed
from tests.controller.farm.processes.ray_farm import large_request

pytestmark = [
    pytest.mark.faults,
    pytest.mark.xdist_group("command"),  # one Ray at a time
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[4]
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")


def seen_on(folder: Path, what: str) -> dict[str, Any]:
    """What the program saw, with `what` on the small disk."""
    program = [sys.executable, "-m", "tests.controller.farm.processes.full_disk_program"]
    try:
        subprocess.run([*OWN_MOUNTS, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system gives users no mounts of their own (user namespaces)")
    done = subprocess.run(
        [*OWN_MOUNTS, *program, str(folder), what],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check_answers(seen: dict[str, Any], folder: Path) -> None:
    """Nothing is lost, nothing is doubled, and nothing differs from a run without disturbance."""
    assert seen["free_bytes"] == 0
    assert seen["state"] == "done"
    assert {**seen["again"], **seen["first"]} == seen["again"]
    assert seen["rows"] == {name: [latency_ms] for name, latency_ms in seen["again"].items()}
    assert {**seen["rows"], **seen["kept"]} == seen["rows"]
    calm = undisturbed(folder / "calm", seen["asked"], large_request)
    assert seen["again"] == calm.values()


def test_a_store_on_a_full_disk_interrupts_the_campaign_until_there_is_room(tmp_path: Path) -> None:
    seen = seen_on(tmp_path, "store")
    assert seen["ended"] == "interrupted"
    assert "No space left" in seen["why"]
    assert "free space on the disk" in seen["why"]
    assert seen["failures"] == []
    check_answers(seen, tmp_path)


def test_a_campaign_goes_on_after_the_disk_of_ray_and_its_object_store_was_full(
    tmp_path: Path,
) -> None:
    """Either a process of Ray dies of it, which is waited for, or no model can be kept."""
    seen = seen_on(tmp_path, "ray")
    assert seen["ray_lost"] or seen["failures"]
    assert seen["ended"] == "done" or seen["failures"]
    assert all("No space left" in why or "the builder died" in why for why in seen["failures"])
    check_answers(seen, tmp_path)
