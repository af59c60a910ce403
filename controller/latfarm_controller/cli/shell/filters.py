"""Options that choose among the stored measurements, for the commands that list or export them."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli.shell import complete

Platform = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Only measurements of this platform.",
        autocompletion=complete.measured_platforms,
    ),
]
Campaign = Annotated[
    str,
    typer.Option(
        "--campaign",
        help="Only measurements of this campaign, named by its id or name.",
        autocompletion=complete.campaigns,
    ),
]
Purpose = Annotated[
    str,
    typer.Option(
        "--purpose",
        help="Only measurements of this purpose: fusion, kernel, probe, padding, context, network, "
        "sentinel, query, check or engine.",
    ),
]
