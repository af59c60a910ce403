"""What `latfarm campaign watch` tells about a campaign, and how seldom."""

from __future__ import annotations

from dataclasses import replace

from latfarm_controller.app.summaries import CampaignSummary
from latfarm_controller.cli.shell.progress import FIGURES_S, FigureLines, figures_text

RUNNING = CampaignSummary(
    "c",
    "c",
    "kernels",
    "p",
    boards={"ready": 6, "away": 1, "quarantined": 2},
    measurements_per_s=3.256,
    queue=40,
    remaining_ms=95_400.0,
)
TEXT = (
    "boards: 1 away, 2 quarantined, 6 ready; 3.26 measurements a second; 40 requests in the queue; "
    "about 0:01:35 left in this stage"
)


def test_the_line_tells_boards_speed_queue_and_time() -> None:
    assert figures_text(RUNNING) == TEXT
    assert figures_text(replace(RUNNING, remaining_ms=0.0)) == TEXT.partition("; about")[0]
    assert figures_text(replace(RUNNING, boards={})).startswith("boards: none; ")
    assert figures_text(replace(RUNNING, boards={}, queue=0)) == ""


def test_the_line_is_printed_now_and_then() -> None:
    lines = FigureLines(figures=True)
    assert lines.lines(RUNNING, 100.0) == [TEXT]
    assert lines.lines(RUNNING, 100.0 + FIGURES_S - 0.1) == []
    assert lines.lines(RUNNING, 100.0 + FIGURES_S) == [TEXT]
    assert FigureLines(figures=False).lines(RUNNING, 0.0) == []


def test_a_reason_to_wait_is_printed_once_and_at_once() -> None:
    lines = FigureLines(figures=False)
    waiting = replace(RUNNING, state="waiting", waiting_for="no board of p works")
    assert lines.lines(RUNNING, 0.0) == []
    assert lines.lines(waiting, 0.1) == ["waiting: no board of p works"]
    assert lines.lines(waiting, 0.2) == []
    assert lines.lines(RUNNING, 0.3) == ["the campaign goes on"]
