"""Bars of progress: they never run backwards, and all of them end."""

from __future__ import annotations

import io

import pytest
from latfarm_controller.cli.shell.progress import StageBars
from rich.console import Console
from rich.progress import Progress, Task


@pytest.fixture
def progress() -> Progress:
    return Progress(console=Console(file=io.StringIO(), force_terminal=True), auto_refresh=False)


def task(progress: Progress, name: str) -> Task:
    (found,) = [each for each in progress.tasks if each.description == name]
    return found


def test_a_stage_that_counts_anew_does_not_run_backwards(progress: Progress) -> None:
    bars = StageBars(progress)
    for done in (3, 9, 2, 5):
        bars.show("kernels", done, 20)
        assert task(progress, "kernels").completed >= 3
    assert task(progress, "kernels").completed == 9
    bars.show("kernels", 30, 20)
    assert task(progress, "kernels").total == 30


def test_a_stage_that_comes_back_keeps_its_one_bar(progress: Progress) -> None:
    bars = StageBars(progress)
    for stage in ("fusion", "kernels", "fusion"):
        bars.show(stage, 1, 2)
    assert [each.description for each in progress.tasks] == ["fusion", "kernels"]


def test_bars_of_unknown_length_end(progress: Progress) -> None:
    bars = StageBars(progress)
    bars.show("training", 0, 0)
    assert task(progress, "training").total is None
    bars.finish()
    assert progress.finished


def test_what_is_waited_for_is_said_until_the_first_stage(progress: Progress) -> None:
    bars = StageBars(progress)
    bars.wait_for("starting Ray")
    bars.show("", 0, 0)
    assert [each.description for each in progress.tasks] == ["starting Ray"]
    bars.show("kernels", 0, 5)
    assert [each.description for each in progress.tasks] == ["kernels"]
    bars.wait_for("starting Ray")
    assert len(progress.tasks) == 1


def test_without_a_terminal_each_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    bars = StageBars(Progress(disable=True))
    bars.wait_for("starting Ray")
    for stage, done in (("fusion", 0), ("fusion", 1), ("kernels", 0), ("fusion", 2)):
        bars.show(stage, done, 4)
    bars.finish()
    assert capsys.readouterr().err == "fusion: 4 steps\nkernels: 4 steps\n"
