"""`latfarm campaign`: run, watch, pause, stop and resume campaigns of all kinds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.cli.shell.old_spellings import ARGUMENT, formerly
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import CampaignSummary

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Run, watch, stop and resume plans of measurements.

    Campaigns can be stopped and resumed at any point.

    \b
    Examples:
      latfarm campaign run fusion -p local-onnxruntime1.31-fp32-1t
      latfarm campaign run kernels -p local-litert2.3-fp32-1t --config '{"count": 200}'
      latfarm campaign run networks -p local-onnxruntime1.31-fp32-1t resnet50.onnx
      latfarm campaign list --json
      latfarm campaign resume characterize-1f2e3d4c
    """,
)
Name = Annotated[
    str, typer.Argument(help="Id or name of the campaign.", autocompletion=complete.campaigns)
]
GRAPHS = {"graphs", "held_out", "exclude_graphs"}
"""Entries of configurations that are lists of networks."""


class Kind(StrEnum):
    """The kinds of campaigns; see `latfarm_controller.campaigns.kinds`."""

    fusion = "fusion"
    kernels = "kernels"
    networks = "networks"
    padding = "padding"
    characterize = "characterize"
    cover = "cover"
    engines = "engines"


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="campaign")


def _as_dict(campaign: CampaignSummary) -> dict[str, Any]:
    data = asdict(campaign)
    config, outcome = data.pop("config"), data.pop("outcome")
    graphs = GRAPHS | {"kernels"} if campaign.kind == "cover" else GRAPHS
    for key in graphs & config.keys():  # networks are megabytes of JSON that nobody reads
        config[key] = [graph.get("name", "") for graph in config[key]]
    return data | {"config": config, "outcome": outcome}


def _show(campaign: CampaignSummary, as_json: bool) -> None:
    if as_json:
        output.json_text(_as_dict(campaign))
        return
    stage = f", {campaign.stage} {campaign.stage_done}/{campaign.stage_total}"
    output.out().print(
        f"{campaign.campaign_id} ({campaign.name}) on {campaign.platform}: {campaign.state}"
        f"{stage if campaign.stage else ''}; {campaign.measurements} measurements, "
        f"{campaign.failures} failures, {campaign.board_ms / 1000:.1f} s of board time"
    )
    if campaign.waiting_for:
        output.out().print(f"  it waits: {campaign.waiting_for}")
    if campaign.error:
        output.out().print(f"  {campaign.error}")


@app.command(cls=formerly({"--model": ARGUMENT}))
def run(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="fusion: which ops run as one kernel; kernels: single kernels; networks: whole "
            "networks; padding: kernels between other layers; characterize: all that a bundle "
            "needs; cover: kernels that a bundle lacks; engines: networks on all engines of a "
            "board."
        ),
    ],
    platform: inputs.Platform,
    config: Annotated[
        str,
        typer.Option(
            help="Settings of the campaign, as a JSON object, for example '{\"count\": 200}'."
        ),
    ] = "{}",
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            help="ONNX or TFLite files, or folders of them, for a campaign of kind networks.",
            readable=False,
        ),
    ] = None,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    tags: inputs.Tags = None,
    name: inputs.CampaignName = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Run a campaign and show its progress.

    The same command again resumes it.

    \b
    Examples:
      latfarm campaign run fusion -p local-onnxruntime1.31-fp32-1t
      latfarm campaign run kernels -p local-litert2.3-fp32-1t --config '{"count": 200}'
      latfarm campaign run networks -p local-onnxruntime1.31-fp32-1t models/
      latfarm campaign run engines -p 'local-*' --config '{"threads": [1, 4]}'
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    settings = _settings(config)
    inputs.check_reading(models, batch, shape)
    _check(kind, settings, models, tags)
    if models:
        files, _ = inputs.model_files(models)
        graphs = [inputs.read_model(file, batch, shape or []) for file in files]
        settings["graphs"] = [graph.to_json() for graph in graphs]
    settings |= inputs.chosen_by(tags)
    with controller(wait_s) as client:
        started = client.start(str(kind), platform, settings, name)
        _show(follow(client, started.campaign_id), as_json)


def _settings(text: str) -> dict[str, Any]:
    """The settings of a campaign in a JSON object.

    Raises:
        UsageError: the text is no JSON object.
    """
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--config is not valid JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UsageError("--config must be a JSON object, for example '{\"count\": 100}'")
    return settings


def _check(
    kind: Kind,
    settings: Mapping[str, Any],
    models: Sequence[Path] | None,
    tags: Sequence[str] | None,
) -> None:
    """Check the settings against what the command line gives besides.

    Raises:
        UsageError: something is given twice, or has no effect, or the networks are missing.
    """
    for entry, arguments, what in (("graphs", models, "models"), ("tags", tags, "--tag")):
        if arguments and entry in settings:
            raise UsageError(f"--config gives {entry}, and so do {what}; leave out one of them")
    if models and kind is not Kind.networks:
        raise UsageError("models can only be given to latfarm campaign run networks")
    if kind is Kind.networks and not (models or settings.keys() & {"graphs", "calibration"}):
        raise UsageError(
            "name the models to measure, or draw networks of the zoo, for example with --config "
            "'{\"calibration\": 20}'"
        )


@app.command("list")
def list_campaigns(wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """List the campaigns, newest first.

    What a campaign was made from and what it found is told by `latfarm campaign show`.

    \b
    Examples:
      latfarm campaign list
      latfarm campaign list --json
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        found = client.campaigns()
    if as_json:
        large = {"config", "outcome"}
        told = [_as_dict(campaign) for campaign in found]
        output.json_text([{k: v for k, v in each.items() if k not in large} for each in told])
        return
    output.table(
        "",
        ["campaign", "name", "platform", "state", "stage", "measurements", "board, s", "waits for"],
        [
            [
                c.campaign_id,
                c.name,
                c.platform,
                c.state,
                f"{c.stage} {c.stage_done}/{c.stage_total}" if c.stage else "",
                str(c.measurements),
                f"{c.board_ms / 1000:.1f}",
                c.waiting_for,
            ]
            for c in found
        ],
        empty="no campaign yet; latfarm characterize --platform PLATFORM starts one",
    )


@app.command()
def show(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Show one campaign.

    \b
    Examples:
      latfarm campaign show characterize-1f2e3d4c --json
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        _show(client.campaign(name), as_json)


@app.command()
def watch(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Show the progress of a campaign until it ends.

    It runs in latfarm serve.

    It tells how many of its boards are in each state, how many measurements come each second, how
    many requests have no answer yet, and how long the present stage will take.

    \b
    Examples:
      latfarm campaign watch characterize-1f2e3d4c
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    with controller(wait_s) as client:
        campaign_id = client.campaign(name).campaign_id
        _show(follow(client, campaign_id, figures=True), as_json)


@app.command()
def pause(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Stop a campaign until somebody resumes it.

    A restart of `latfarm serve` does not resume it.

    \b
    Examples:
      latfarm campaign pause characterize-1f2e3d4c
      latfarm campaign resume characterize-1f2e3d4c
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        _show(client.pause(name), as_json)


@app.command()
def resume(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Continue a campaign that was paused or stopped.

    \b
    Examples:
      latfarm campaign resume characterize-1f2e3d4c
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    with controller(wait_s) as client:
        _show(follow(client, client.resume(name).campaign_id), as_json)


@app.command()
def cancel(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Stop a campaign after the measurement that is running.

    \b
    Examples:
      latfarm campaign cancel characterize-1f2e3d4c
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        _show(client.cancel(name), as_json)


@app.command()
def remove(name: Name, wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Take a campaign out of all lists.

    Its measurements stay in the store. A campaign that runs must be stopped first. The command that
    started it starts it again, with the measurements that it has.

    \b
    Examples:
      latfarm campaign remove characterize-1f2e3d4c
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        _show(client.remove(name), as_json)
