"""`latfarm boards drain|quarantine|resume|events`: which boards may work, and why others not."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.cli.shell.durations import seconds
from latfarm_controller.cli.shell.old_spellings import formerly

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import BoardSummary
    from latfarm_controller.store.base import BoardEvent

Name = Annotated[str, typer.Argument(help="Name of the board.", autocompletion=complete.boards)]
Reason = Annotated[
    str,
    typer.Option("--reason", help="Reason, which latfarm boards and latfarm boards events show."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(cls=formerly({"--wait-store": "--wait"}, flags={"--wait": "--until-idle"}))(drain)
    app.command(cls=formerly({"--wait-store": "--wait"}))(quarantine)
    app.command(cls=formerly({"--wait-store": "--wait"}))(resume)
    app.command()(events)


def drain(
    name: Name,
    reason: Reason = "",
    until_idle: Annotated[
        bool,
        typer.Option("--until-idle", help="Return only when nothing runs on the board any more."),
    ] = False,
    deadline: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="After this time, such as 90s, 30m or 2h, what the board still runs is taken back "
            "and goes to other boards. Without this, the board finishes it, however long it takes.",
        ),
    ] = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Give a board no new work; it finishes the work that it has. `resume` ends this.

    \b
    Examples:
      latfarm boards drain pixel4 --reason "new battery"
      latfarm boards drain pixel4 --until-idle
      latfarm boards drain pixel4 --deadline 10m --until-idle
    """
    from latfarm_controller.cli.shell.connect import controller

    deadline_s = seconds(deadline, "--deadline", "a duration") if deadline else 0.0
    with controller(wait_s) as client:
        status = client.drain_board(name, reason, deadline_s)
        if until_idle:
            for status in client.watch_board(name):
                output.err().print(f"{name}: {status.standing}, {status.under_way} under way")
    _show(status, as_json)


def quarantine(
    name: Name,
    reason: Reason = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Stop a board, and discard what it measured last.

    That is all since its last good sentinel. A discarded measurement stays in the store, but no
    predictor learns from it, and campaigns that run or are resumed measure it again.

    \b
    Examples:
      latfarm boards quarantine pixel4 --reason "fan is broken"
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        _show(client.quarantine_board(name, reason), as_json)


def resume(
    name: Name,
    reason: Reason = "",
    new_reference: Annotated[
        bool,
        typer.Option(
            "--new-reference",
            help="Accept the sentinel's present latency as the new normal one, without "
            "comparing it. Use this after a change of the board that changes its speed.",
        ),
    ] = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Let a board work again.

    Its sentinel must take as long as it used to. A board that has measured too few sentinels for a
    comparison works at once.

    \b
    Examples:
      latfarm boards resume pixel4
      latfarm boards resume pixel4 --new-reference --reason "new cooler"
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        _show(client.resume_board(name, reason, new_reference), as_json)


def events(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a board. Without it, list the events of all boards.",
            autocompletion=complete.boards,
        ),
    ] = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """List what was decided about boards, or done to recover them.

    It tells by whom and why, newest first.

    \b
    Examples:
      latfarm boards events
      latfarm boards events pixel4 --json
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        found = client.board_events(name)
    if as_json:
        output.json_text([_event_json(event) for event in found])
        return
    rows = [
        [
            datetime.fromtimestamp(event.at_s).astimezone().isoformat(" ", "seconds"),
            *(event.board, event.event, event.actor, event.reason),
        ]
        for event in found
    ]
    output.table(
        "", ["when", "board", "event", "by", "reason"], rows, empty="no board has an event yet"
    )


def _event_json(event: BoardEvent) -> dict[str, Any]:
    return {
        "name": event.board,
        "board_id": event.board_id,
        "event": event.event,
        "reason": event.reason,
        "actor": event.actor,
        "at_s": event.at_s,
        "details_json": json.dumps(dict(event.details)),
    }


def _show(status: BoardSummary, as_json: bool) -> None:
    if as_json:
        output.json_text(status.to_json())
        return
    why = f": {status.standing_reason}" if status.standing_reason else ""
    output.err().print(f"{status.name} is {status.standing}{why}")
