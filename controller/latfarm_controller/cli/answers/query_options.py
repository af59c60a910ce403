"""The options of `latfarm query`, and which of them contradict each other."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli.shell import complete, given
from latfarm_controller.errors import UsageError

Platforms = Annotated[
    list[str],
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform; see latfarm platforms. May be repeated: each model is asked "
        "about on each platform.",
        autocompletion=complete.platforms,
    ),
]
Publish = Annotated[
    bool,
    typer.Option(
        "--publish",
        help="Only accept what was measured as for a publication: at least 1024 runs and 60 s. "
        "Without this, any stored measurement is an answer.",
    ),
]
Survey = Annotated[
    bool,
    typer.Option(
        "--survey",
        help="If there is no stored answer, measure for some seconds only. Without this, a "
        "measurement is as thorough as for a publication.",
    ),
]
MaxAge = Annotated[
    str,
    typer.Option(
        "--max-age",
        metavar="AGE",
        help="Oldest stored answer to accept, such as 90s, 30m, 12h or 7d. Without this, of any "
        "age.",
    ),
]
NoMeasure = Annotated[
    bool,
    typer.Option("--no-measure", help="Answer from the store alone; no board is asked."),
]
Repeat = Annotated[
    int,
    typer.Option(
        "--repeat",
        min=1,
        max=100,
        help="Measure so many times, and answer with the median. More than 1 measures even if the "
        "store has an answer.",
    ),
]
Foreign = Annotated[
    bool,
    typer.Option(
        "--foreign",
        help="Accept measurements of other farms, too (latfarm db import). The answer then names "
        "their source, licence and method.",
    ),
]
Refresh = Annotated[
    bool, typer.Option("--refresh", help="Measure even if the store has an answer.")
]
Predict = Annotated[
    bool,
    typer.Option(
        "--predict",
        help="Predict what the store does not know from the newest bundle of the platform; no "
        "board is asked. Each answer says where it is from.",
    ),
]


def check(command: typer.Context) -> None:
    """Refuse options that contradict each other, and those that others make idle.

    Raises:
        UsageError: it names them.
    """
    told = command.params
    if told["publish"] and told["survey"]:
        raise UsageError("--publish and --survey contradict each other; give one of them")
    if told["predict"] and told["energy"]:
        raise UsageError("--predict predicts latencies alone; see latfarm predict --energy")
    anew = told["refresh"] or told["repeat"] > 1
    if told["predict"] or told["no_measure"]:
        option = "--predict" if told["predict"] else "--no-measure"
        why = f"says how a board measures, and {option} asks no board; leave out one of them"
        idle = ("survey", "tags", *(("refresh", "repeat") if anew else ()))
        given.refuse(command, *idle, why=why)
    elif anew:
        option = "--refresh" if told["refresh"] else "--repeat"
        why = f"says which stored answers will do, and {option} takes none; leave out one of them"
        given.refuse(command, "max_age", "foreign", why=why)
