"""A bundle is trained in a process of its own: questions go on, and its end is told."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.app import bundle_training
from latfarm_controller.app.question import Question
from latfarm_controller.errors import ControllerError, UsageError

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
            known = replace(Question.about(lab.graph(5), "toy"), tier="survey")
            assert not [event async for event in controller.questions.ask(known)][-1].hit
            await controller.campaigns.start("characterize", "toy", SMALL, "c")
            async for record in controller.campaigns.watch("c"):
                if record.stage == "training: kernels":
                    break
            pid = int(file.read_text())
            asked = replace(known, measure=False)
            assert [event async for event in controller.questions.ask(asked)][-1].hit
            assert (await controller.campaigns.get("c")).state == "running"
            assert (await controller.campaigns.cancel("c")).state == "cancelled"
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(main())
    assert not list(lab.config.bundles_dir.glob("*/*"))


TOLD = 'print(\'{"stage": "kernels", "done": 1, "total": 2}\'); print(\'{%s}\')'
"""A process that tells one step, and then an end."""


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        ("import sys; sys.exit(7)", ControllerError, "failed: the process ended with code 7"),
        ("import os; os.kill(os.getpid(), 9)", ControllerError, "the process ended with code -9"),
        (TOLD % '"end": "usage", "error": "too little"', UsageError, "too little"),
        (TOLD % '"end": "failed", "error": "it broke"', ControllerError, "failed: it broke"),
    ],
)
def test_the_end_of_the_process_is_told(
    monkeypatch: pytest.MonkeyPatch, program: str, error: type[ControllerError], text: str
) -> None:
    monkeypatch.setattr(bundle_training, "COMMAND", (sys.executable, "-c", program))
    with pytest.raises(error, match=text):
        asyncio.run(bundle_training.fit_apart(b"a task", lambda *_: None))


def test_the_steps_of_the_process_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done = (sys.executable, "-c", TOLD % '"end": "done"')
    monkeypatch.setattr(bundle_training, "COMMAND", done)
    steps: list[tuple[str, int, int]] = []
    told = bundle_training.fit_apart((1 << 20) * b"x", lambda *step: steps.append(step))
    asyncio.run(told)
    assert steps == [("kernels", 1, 2)]


def test_a_training_that_fails_ends_the_campaign_with_its_reason(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = TOLD % '"end": "usage", "error": "it measured too little"'
    monkeypatch.setattr(bundle_training, "COMMAND", (sys.executable, "-c", program))

    async def main() -> None:
        async with lab.controller() as controller:
            await controller.campaigns.start("characterize", "toy", SMALL, "c")
            *_, ended = [record async for record in controller.campaigns.watch("c")]
            assert (ended.state, ended.error) == ("failed", "it measured too little")

    asyncio.run(main())
    assert not list(lab.config.bundles_dir.glob("*/*"))
