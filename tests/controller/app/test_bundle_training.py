"""A bundle is trained in a process of its own: questions go on, and its end is told."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.app import bundle_training
from latfarm_controller.app.question import Found, Question
from latfarm_controller.store.base import CampaignRecord

pytestmark = pytest.mark.timeout(90)

SMALL: dict[str, Any] = {
    "budget": 2,
    "calibration": 1,
    "kernel_passes": 1,
    "network_passes": 1,
    "fusion": {"pairs": [["conv", "relu"]], "rounds": 2, "max_rounds": 2},
}
"""A characterisation that measures as little as it can."""
TRAINS_FOREVER = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
print(json.dumps({"stage": "kernels", "done": 1, "total": 2}), flush=True)
sys.stdin.buffer.read()
"""
"""A process that fits until its standard input ends; it writes its id into a file."""


def test_training_stops_when_told_and_lets_questions_through(
    lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    command = (sys.executable, "-c", TRAINS_FOREVER, str(file))
    monkeypatch.setattr(bundle_training, "COMMAND", command)

    async def main() -> None:
        async with lab.controller() as controller:
            await controller.campaigns.start("characterize", "toy", SMALL, "c")
            async for record in controller.campaigns.watch("c"):
                if record.stage == "training: kernels":
                    break
            pid = int(file.read_text())
            known = next(controller._store.measurements(purpose="network"))
            question = Question("toy", known.graph_hash, measure=False)
            found = [event async for event in controller.questions.ask(question)]
            assert isinstance(found[-1], Found)
            assert found[-1].hit
            assert (await controller.campaigns.cancel("c")).state == "cancelled"
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(main())
    assert not list(lab.config.bundles_dir.glob("*/*"))


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import sys; sys.exit(7)", "the training failed: the process ended with code 7"),
        ("import os; os.kill(os.getpid(), 9)", "the training failed: the process ended with code"),
        ('print(\'{"end": "usage", "error": "too little"}\')', "too little"),
        ('print(\'{"end": "failed", "error": "it broke"}\')', "failed: it broke"),
    ],
)
def test_a_training_that_fails_ends_the_campaign_with_its_reason(
    lab: Any, monkeypatch: pytest.MonkeyPatch, program: str, error: str
) -> None:
    monkeypatch.setattr(bundle_training, "COMMAND", (sys.executable, "-c", program))

    async def main() -> None:
        async with lab.controller() as controller:
            await controller.campaigns.start("characterize", "toy", SMALL, "c")
            ended: CampaignRecord | None = None
            async for record in controller.campaigns.watch("c"):
                ended = record
            assert ended is not None
            assert ended.state == "failed"
            assert error in ended.error

    asyncio.run(main())
    assert not list(lab.config.bundles_dir.glob("*/*"))
