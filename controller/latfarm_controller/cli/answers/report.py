"""`latfarm report`: everything that is known about a platform, as one HTML file or as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_controller.api.client import ControllerClient

_ODD = re.compile(r"[^A-Za-z0-9._+-]+")
"""Characters that must not get into a file's name."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", cls=formerly(first="--platform"))(report)


def report(
    platform: inputs.Platform,
    campaign: Annotated[
        str,
        typer.Option(
            help="Id or name of the campaign to report on. Default: the newest characterisation.",
            autocompletion=complete.campaigns,
        ),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write. Default: a file in the folder reports of the home.",
        ),
    ] = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Report what is known about a platform, as one HTML file.

    It tells accuracy, latency staircases, fusion, coverage and conditions. Nothing is measured. The
    HTML file needs no network and has no scripts.

    \b
    Examples:
      latfarm report -p local-onnxruntime1.31-fp32-1t
      latfarm report -p imx93-ethosu65-int8 --output ethosu.html
      latfarm report -p jetson-tensorrt10.3-fp16 --json
    """
    from latfarm_controller.cli.shell.connect import controller

    inputs.check_to_write(to)
    with controller(wait_s) as client:
        if not as_json:
            output.err().print(
                "preparing the report; if measurements have changed since the last one, baselines "
                "must be fitted, which takes up to some minutes ..."
            )
        facts = client.report(platform, campaign)
    if as_json:
        output.json_text(facts)
        if to is None:
            return
    path = write(facts, to)
    if not as_json:
        output.out().print(f"report: {path}")


def write(facts: Mapping[str, Any], path: Path | None = None) -> Path:
    """Write the report as HTML.

    Args:
        facts: the facts that the controller reports.
        path: the file; None: a file of the platform's name in the folder of reports.

    Returns:
        The path of the file.
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.reports import platform_report
    from latfarm_controller.reports.pages import page

    if path is not None:
        with callers_umask():
            return page.write(path, platform_report.render(facts))
    # The name may come from a bundle that somebody else made: it must not choose a folder.
    plain = _ODD.sub("_", str(facts["platform"])).lstrip(".") or "platform"
    path = load_config().reports_dir / f"{plain}.html"
    return page.write(path, platform_report.render(facts))


def make(client: ControllerClient, platform: str, campaign_id: str) -> Path | None:
    """Write the report at the end of a campaign.

    Returns:
        The path of the file; None, after a warning, if the report cannot be made. The campaign has
        succeeded, so an error of its report must not make the command fail.
    """
    from latfarm_controller.errors import ControllerError

    try:
        return write(client.report(platform, campaign_id))
    except (ControllerError, OSError) as error:
        output.error(
            f"the report could not be made: {error}; to try again: latfarm report -p {platform}"
        )
        return None
