"""`latfarm report`: all that is known of a platform, as one HTML file or as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from latfarm_controller.api.client import ControllerClient

_ODD = re.compile(r"[^A-Za-z0-9._+-]+")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    platform: Annotated[str, typer.Argument(help="the platform, as `latfarm platforms` names it")],
    campaign: Annotated[
        str, typer.Option(help="tell of this campaign (id or name), not of the newest")
    ] = "",
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="write to this file instead")
    ] = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Tell all that is known of a platform: accuracy, staircases, fusion, coverage, conditions.

    Measures nothing. The file opens without network and holds no script.

    \b
    Examples:
      latfarm report local-onnxruntime1.31-fp32-1t
      latfarm report imx93-ethosu65-int8 --output ethosu.html
      latfarm report jetson-tensorrt10.3-fp16 --json
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        if not as_json:
            output.err().print(
                "a report is made anew where measurements changed: baselines are fitted ..."
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
    """Write the report; where no path is given, under the home's reports by the platform's name."""
    from latfarm_controller.config import load_config
    from latfarm_controller.reports import platform_report
    from latfarm_controller.reports.pages import page

    if path is None:
        # A bundle from elsewhere chose the name: it must not choose a folder.
        plain = _ODD.sub("_", str(facts["platform"])).lstrip(".") or "platform"
        path = load_config().reports_dir / f"{plain}.html"
    return page.write(path, platform_report.render(facts))


def make(client: ControllerClient, platform: str, campaign_id: str) -> Path | None:
    """The report at the end of a campaign; None, and a warning, where it cannot be made.

    The campaign succeeded: no fault of its report may say otherwise.
    """
    from latfarm_controller.errors import ControllerError

    try:
        return write(client.report(platform, campaign_id))
    except (ControllerError, OSError) as error:
        output.error(f"no report: {error}; latfarm report {platform} tries again")
        return None
