"""`latfarm engines`: compare the inference engines of a board on the same networks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import CampaignSummary

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Compare inference engines on one board.

    The same networks are measured on all platforms of the board, in one table.

    \b
    Examples:
      latfarm engines run --threads 1,2,4
      latfarm engines run -p 'local-*-fp32-*' --protocol mnn
      latfarm engines show engines-1f2e3d4c --html engines.html
    """,
)
KIND = "engines"
"""Kind of the campaigns that this command runs."""
Html = Annotated[Path | None, typer.Option(help="Also write the report as HTML to this file.")]
Markdown = Annotated[
    Path | None, typer.Option(help="Also write the report as Markdown to this file.")
]
Svg = Annotated[
    Path | None,
    typer.Option(help="Also write the plot of the first data type as SVG to this file."),
]
Clock = Annotated[
    float,
    typer.Option(
        "--clock-mhz",
        min=0.0,
        help="Highest clock of a core in MHz, for MNN's cost model. 0: the clock that the board "
        "reports.",
    ),
]


class Protocol(StrEnum):
    """How each network is measured on each platform."""

    latfarm = "latfarm"
    mnn = "mnn"


Platforms = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform, or a pattern of several names, for example 'local-*'.",
        autocompletion=complete.platforms,
    ),
]
Board = Annotated[str, typer.Option(help="Board to measure on, if several offer such platforms.")]
Threads = Annotated[
    str,
    typer.Option("--threads", help="Thread counts to compare, for example 1,2,4. Default: all."),
]
Dtypes = Annotated[
    str, typer.Option("--dtype", help="Data types to compare, for example fp32,int8. Default: all.")
]
Networks = Annotated[
    str,
    typer.Option(
        "--network",
        help="Networks of the zoo, for example resnet18,mobilenet-v1. Default: the four of "
        "MNN's paper.",
    ),
]
ProtocolOption = Annotated[
    Protocol,
    typer.Option(
        help="latfarm: as latfarm measures networks; mnn: the mean of 10 runs after a warm-up, "
        "to compare with MNN's paper."
    ),
]
Passes = Annotated[
    int, typer.Option(min=1, help="Number of repeats, each in another random order.")
]
Simulated = Annotated[
    bool, typer.Option("--simulated", help="Include platforms with simulated time.")
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="engines")


@app.command(
    cls=formerly({"--platforms": "--platform", "--dtypes": "--dtype", "--networks": "--network"})
)
def run(
    platforms: Platforms = "*",
    board: Board = "",
    threads: Threads = "",
    dtypes: Dtypes = "",
    networks: Networks = "",
    protocol: ProtocolOption = Protocol.latfarm,
    passes: Passes = 3,
    simulated: Simulated = False,
    tags: inputs.Tags = None,
    name: inputs.CampaignName = "",
    html: Html = None,
    markdown: Markdown = None,
    svg: Svg = None,
    clock_mhz: Clock = 0.0,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Measure the networks on every platform that fits, and show the table.

    You can stop this at any point; the same command continues where it stopped. If a platform
    cannot run a network, the table gives the reason. The agent of a board sets its thread counts:
    LATFARM_LOCAL_THREADS=1,2,4 on this machine, latfarm-agent serve --threads on others.

    \b
    Examples:
      latfarm engines run --threads 1,2,4
      latfarm engines run -p '*-fp32-*' --network mobilenet-v1 --passes 2 --json
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    inputs.check_to_write(html, markdown, svg)
    config: dict[str, Any] = {"passes": passes, "protocol": str(protocol), "simulated": simulated}
    config |= inputs.chosen_by(tags)
    if board:
        config["board"] = board
    if threads:
        config["threads"] = _counts(threads)
    if dtypes:
        config["dtypes"] = _words(dtypes)
    if networks:
        config["networks"] = _words(networks)
    with controller(wait_s) as client:
        started = client.start(KIND, platforms, config, name)
        campaign = follow(client, started.campaign_id)
    _show(campaign, html, markdown, svg, clock_mhz, as_json)


@app.command()
def show(
    campaign: Annotated[str, typer.Argument(help="Id or name of the campaign.")],
    html: Html = None,
    markdown: Markdown = None,
    svg: Svg = None,
    clock_mhz: Clock = 0.0,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Show what an engines campaign has found so far.

    \b
    Examples:
      latfarm engines show engines-1f2e3d4c --json
      latfarm engines show engines-1f2e3d4c --html engines.html --markdown engines.md
    """
    from latfarm_controller.cli.shell.connect import controller

    inputs.check_to_write(html, markdown, svg)
    with controller(wait_s) as client:
        found = client.campaign(campaign)
    if found.kind != KIND:
        raise UsageError(f"{campaign} is a campaign of kind {found.kind}; name one of kind {KIND}")
    _show(found, html, markdown, svg, clock_mhz, as_json)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _counts(text: str) -> list[int]:
    words = _words(text)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(
            f"--threads {text!r}: thread counts are numbers separated by commas, for example 1,2,4"
        )
    return [int(word) for word in words]


def _show(
    campaign: CampaignSummary,
    html: Path | None,
    markdown: Path | None,
    svg: Path | None,
    clock_mhz: float,
    as_json: bool,
) -> None:
    from latfarm_controller.reports.engines import engines
    from latfarm_controller.reports.engines.cost_model import against_mnn
    from latfarm_controller.reports.engines.plot import plot
    from latfarm_controller.reports.pages import page
    from latfarm_controller.reports.pages import svg as drawing

    outcome = dict(campaign.outcome)
    if "cells" not in outcome:
        raise UsageError(
            f"campaign {campaign.campaign_id} is {campaign.state} and has measured nothing yet; to "
            f"continue it: latfarm campaign resume {campaign.campaign_id}"
        )
    model = against_mnn(outcome, clock_mhz or None)
    title = f"Engines on {outcome['board']}"
    with callers_umask():
        if html is not None:
            output.err().print(f"report: {page.write(html, engines.render(outcome, model, title))}")
        if svg is not None:
            page.write(svg, drawing.standalone(plot(outcome, engines.dtypes(outcome)[0])))
        if markdown is not None:
            picture = svg.name if svg is not None else ""
            page.write(markdown, engines.markdown(outcome, model, title, picture))
    if as_json:
        output.json_text(
            {"campaign_id": campaign.campaign_id, "state": campaign.state}
            | outcome
            | {"mnn_model": model.to_json()}
        )
        return
    _print(outcome)


def _print(outcome: dict[str, Any]) -> None:
    from latfarm_controller.reports.engines import engines

    networks = [network["name"] for network in outcome["networks"]]
    for dtype in engines.dtypes(outcome):
        found = [cells for _, cells in engines.rows(outcome, dtype)]
        output.table(
            f"{dtype}, ms",
            ["engine", *networks],
            [
                [name, *(_star(cells[index]) for cells in found)]
                for index, (_, name) in enumerate(engines.columns(outcome, dtype))
            ],
        )
    output.out().print(
        "*: the fastest engine of that type for the network; ~: unstable measurement; in brackets: "
        "as timed, where the latency was corrected for the core's slowdown"
    )
    for network, platform, reason in engines.failures(outcome):
        output.out().print(f"{network} on {platform}: {reason}")
    for name, text in engines.facts(outcome).items():
        output.out().print(f"{name}: {text}")


def _star(cell: Mapping[str, Any]) -> str:
    from latfarm_controller.reports.engines import engines

    return engines.cell_text(cell) + (" *" if cell["fastest"] else "")
