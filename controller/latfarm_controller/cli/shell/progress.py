"""The progress of a campaign on the terminal: one bar for each stage, with the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from latfarm_controller.cli.shell import output
from latfarm_controller.errors import ControllerError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.app.summaries import CampaignSummary

INTERRUPTED = 130
"""Exit code of a command that was ended by a signal: 128 + SIGINT, as shells have it."""
FIGURES_S = 5.0
"""Least time between two lines about how a campaign goes, in seconds."""


class Interrupted(ControllerError):
    """A signal ended the command; the message says what happens to its campaign."""

    exit_code = INTERRUPTED


@contextmanager
def bars() -> Iterator[Progress]:
    """Progress bars on a terminal; no bars where standard error is not a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = output.err()
    with Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        yield progress


class StageBars:
    """Draws one bar for each stage; without a terminal it prints one line for each stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._stage = ""
        self._waiting: TaskID | None = None

    def wait_for(self, what: str) -> None:
        """Say on a terminal what is being waited for, until the first stage begins."""
        if self._waiting is None and not self._stage and not self._progress.disable:
            self._waiting = self._progress.add_task(what, total=None)

    def show(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of a stage are finished; a total of 0 is not known.

        A bar never runs backwards: a stage that counts anew stays where it was until it is further.
        """
        if not stage:
            return
        self._end_waiting()
        if stage != self._stage:
            self.finish()
            self._stage = stage
            if stage not in self._tasks:
                self._tasks[stage] = self._progress.add_task(stage, total=total or None)
                if self._progress.disable:
                    output.err().print(f"{stage}: {total or '?'} steps")
        most = self._done[stage] = max(done, self._done.get(stage, 0))
        self._progress.update(
            self._tasks[stage], completed=most, total=max(total, most) if total else None
        )

    def tell(self, line: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(line)

    def finish(self) -> None:
        """Fill the bar of the present stage, whose number of steps may never have been known."""
        self._end_waiting()
        if self._stage:
            steps = max(self._done[self._stage], 1)
            task = self._tasks[self._stage]
            known = next(each.total for each in self._progress.tasks if each.id == task)
            self._progress.update(task, completed=known or steps, total=known or steps)

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            self._progress.remove_task(self._waiting)
            self._waiting = None


class FigureLines:
    """Chooses which lines about a campaign are worth printing, so that they stay few.

    It prints why a campaign waits and that it goes on, and, if asked to, how it goes every
    `FIGURES_S` seconds.
    """

    def __init__(self, figures: bool) -> None:
        self._figures = figures
        self._waiting_for = ""
        self._told_s = float("-inf")

    def lines(self, campaign: CampaignSummary, now_s: float) -> list[str]:
        """The lines to print now."""
        found = []
        if campaign.waiting_for != self._waiting_for:
            why = campaign.waiting_for
            found.append(f"waiting: {why}" if why else "the campaign goes on")
            self._waiting_for = why
        text = figures_text(campaign) if self._figures else ""
        if text and now_s - self._told_s >= FIGURES_S:
            found.append(text)
            self._told_s = now_s
        return found


def figures_text(campaign: CampaignSummary) -> str:
    """How a campaign goes now, in one line; empty if it does not run."""
    if not campaign.boards and not campaign.queue:
        return ""
    boards = ", ".join(f"{count} {state}" for state, count in sorted(campaign.boards.items()))
    left_s = round(campaign.remaining_ms / 1000)
    left = f"; about {timedelta(seconds=left_s)} left in this stage" if left_s else ""
    return (
        f"boards: {boards or 'none'}; {campaign.measurements_per_s:.2f} measurements a second; "
        f"{campaign.queue} requests in the queue{left}"
    )


def follow(
    client: ControllerClient,
    campaign_id: str,
    on_stage: Callable[[str], None] | None = None,
    *,
    figures: bool = False,
) -> CampaignSummary:
    """Show a campaign's progress until it ends.

    Args:
        client: the client of the controller.
        campaign_id: the campaign.
        on_stage: called with the name of each stage of a running campaign when it begins.
        figures: whether to print how its boards do, and how fast it goes.

    Returns:
        The campaign, with its configuration and outcome.

    Raises:
        ControllerError: the campaign failed, was cancelled or was interrupted. The message says
            how to continue it.
        Interrupted: a signal ended this command.
    """
    last = None
    stage = ""
    try:
        with bars() as progress:
            stages, lines = StageBars(progress), FigureLines(figures)
            # A controller in this process starts Ray when a board is first needed.
            stages.wait_for(
                "starting Ray, up to a minute" if client.hosted else "waiting for a board"
            )
            for last in client.watch(campaign_id):
                stages.show(last.stage, last.stage_done, last.stage_total)
                for line in lines.lines(last, time.monotonic()):
                    stages.tell(line)
                if on_stage is not None and last.state == "running" and last.stage != stage:
                    stage = last.stage
                    on_stage(stage)
                if last.state == "done":
                    stages.finish()
    except KeyboardInterrupt:
        story = (
            f"to continue where it stopped: latfarm campaign resume {campaign_id}"
            if client.hosted
            else f"the campaign goes on; latfarm campaign cancel {campaign_id} stops it"
        )
        raise Interrupted(f"interrupted; {story}") from None
    if last is None:
        raise ControllerError(f"the controller does not know campaign {campaign_id}")
    if last.state != "done":
        remedy = f"to continue where it stopped: latfarm campaign resume {last.campaign_id}"
        raise ControllerError(
            f"campaign {last.name} is {last.state}: {last.error or 'no reason is given'}; {remedy}"
        )
    return client.campaign(campaign_id)  # watching gives no configuration
