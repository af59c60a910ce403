"""A campaign on the terminal: a bar for each stage, with an estimate of what is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from latfarm_controller.cli.shell import output
from latfarm_controller.errors import ControllerError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.app.summaries import CampaignSummary

INTERRUPTED = 130
"""Exit code of a command that a signal ended."""


class Interrupted(ControllerError):
    """A signal ended the command; says what becomes of its campaign."""

    exit_code = INTERRUPTED


@contextmanager
def bars() -> Iterator[Progress]:
    """Bars on a terminal; where nobody looks, one line when a stage begins and ends."""
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
    """Draws one bar for each stage that a campaign reports."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._stage = ""

    def show(self, stage: str, done: int, total: int) -> None:
        """The campaign's stage as of now."""
        if not stage:
            return
        if stage != self._stage:
            self.finish()
            self._stage = stage
            self._tasks.setdefault(stage, self._progress.add_task(stage, total=total or None))
            if self._progress.disable:
                output.err().print(f"{stage}: {total or '?'} steps")
        self._progress.update(self._tasks[stage], completed=done, total=total or None)

    def finish(self) -> None:
        """The present stage is over."""
        if self._stage:
            task = self._progress.tasks[list(self._tasks).index(self._stage)]
            self._progress.update(task.id, completed=task.total or task.completed)


def follow(client: ControllerClient, campaign_id: str) -> CampaignSummary:
    """Show a campaign until it ends; its last state.

    Raises:
        ControllerError: it failed, was cancelled or interrupted; says how to go on.
        Interrupted: a signal ended the watching.
    """
    last = None
    try:
        with bars() as progress:
            stages = StageBars(progress)
            for last in client.watch(campaign_id):
                stages.show(last.stage, last.stage_done, last.stage_total)
                if last.state == "done":
                    stages.finish()
    except KeyboardInterrupt:
        story = (
            f"latfarm campaign resume {campaign_id} goes on where it stopped"
            if client.hosted
            else f"the campaign goes on; latfarm campaign cancel {campaign_id} stops it"
        )
        raise Interrupted(f"interrupted; {story}") from None
    if last is None:
        raise ControllerError(f"the controller knows nothing of campaign {campaign_id}")
    if last.state != "done":
        remedy = f"latfarm campaign resume {last.campaign_id} goes on where it stopped"
        raise ControllerError(
            f"campaign {last.name} {last.state}: {last.error or 'no reason given'}; {remedy}"
        )
    return client.campaign(campaign_id)  # what is watched comes without its configuration
