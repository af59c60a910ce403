"""`latfarm campaign`: run, watch and steer campaigns."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli import output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_protos.v1 import controller_pb2 as pb

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Campaigns: plans of measurements that can be stopped and resumed at any point.

    \b
    Examples:
      latfarm campaign run fusion -p local-onnxruntime1.31-fp32-1t
      latfarm campaign run kernels -p local-litert2.3-fp32-1t --config '{"count": 200}'
      latfarm campaign run networks -p local-onnxruntime1.31-fp32-1t --model resnet50.onnx
      latfarm campaign list --json
      latfarm campaign resume characterize-1f2e3d4c
    """,
)
Name = Annotated[str, typer.Argument(help="the campaign's id or name")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


class Kind(StrEnum):
    """Kinds of campaigns."""

    fusion = "fusion"
    kernels = "kernels"
    networks = "networks"
    characterize = "characterize"


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="campaign")


def _as_dict(campaign: pb.Campaign) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    data: dict[str, Any] = MessageToDict(
        campaign, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    data["config"] = json.loads(data.pop("config_json") or "{}")
    data["outcome"] = json.loads(data.pop("outcome_json") or "{}")
    return data


def _show(campaign: pb.Campaign, as_json: bool) -> None:
    if as_json:
        output.json_text(_as_dict(campaign))
        return
    stage = f", {campaign.stage} {campaign.stage_done}/{campaign.stage_total}"
    output.out().print(
        f"{campaign.campaign_id} ({campaign.name}) on {campaign.platform}: {campaign.state}"
        f"{stage if campaign.stage else ''}; {campaign.measurements} measurements, "
        f"{campaign.failures} failures, {campaign.board_ms / 1000:.1f} s of board time"
    )
    if campaign.error:
        output.out().print(f"  {campaign.error}")


@app.command()
def run(
    kind: Annotated[Kind, typer.Argument(help="what to measure")],
    platform: Annotated[str, typer.Option("--platform", "-p", help="see latfarm platforms")],
    config: Annotated[str, typer.Option(help="the kind's settings, a JSON object")] = "{}",
    model: Annotated[
        list[Path] | None, typer.Option(help="networks: ONNX files or folders to measure")
    ] = None,
    name: Annotated[str, typer.Option(help="another name begins another campaign")] = "",
    wait_s: Annotated[float, typer.Option("--wait", help="seconds to wait for the store")] = 0.0,
    as_json: Json = False,
) -> None:
    """Run a campaign and watch it; the same command again resumes it."""
    from latfarm_controller.cli import inputs
    from latfarm_controller.cli.connect import controller
    from latfarm_controller.cli.progress import follow

    try:
        settings = json.loads(config)
    except ValueError as error:
        raise UsageError(f"--config is no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UsageError("--config must be a JSON object, as '{\"count\": 100}'")
    if model:
        if kind is not Kind.networks:
            raise UsageError("--model goes with: latfarm campaign run networks")
        files, _ = inputs.model_files(model)
        settings["graphs"] = [inputs.read_model(file, 0, []).to_json() for file in files]
    with controller(wait_s) as client:
        started = client.start(str(kind), platform, settings, name)
        _show(follow(client, started.campaign_id), as_json)


@app.command("list")
def list_campaigns(as_json: Json = False) -> None:
    """List the campaigns, newest first."""
    from latfarm_controller.cli.connect import controller

    with controller() as client:
        found = client.campaigns()
    if as_json:
        output.json_text([_as_dict(campaign) for campaign in found])
        return
    output.table(
        "",
        ["campaign", "name", "platform", "state", "stage", "measurements", "board, s"],
        [
            [
                c.campaign_id,
                c.name,
                c.platform,
                c.state,
                f"{c.stage} {c.stage_done}/{c.stage_total}" if c.stage else "",
                str(c.measurements),
                f"{c.board_ms / 1000:.1f}",
            ]
            for c in found
        ],
    )


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show one campaign."""
    from latfarm_controller.cli.connect import controller

    with controller() as client:
        _show(client.campaign(name), as_json)


@app.command()
def watch(name: Name, as_json: Json = False) -> None:
    """Watch a campaign of a running `latfarm serve` until it ends."""
    from latfarm_controller.cli.connect import controller
    from latfarm_controller.cli.progress import follow

    with controller() as client:
        _show(follow(client, client.campaign(name).campaign_id), as_json)


@app.command()
def resume(name: Name, as_json: Json = False) -> None:
    """Go on with a stopped campaign; what was measured stays."""
    from latfarm_controller.cli.connect import controller
    from latfarm_controller.cli.progress import follow

    with controller() as client:
        _show(follow(client, client.resume(name).campaign_id), as_json)


@app.command()
def cancel(name: Name, as_json: Json = False) -> None:
    """Stop a campaign after the measurement that is running."""
    from latfarm_controller.cli.connect import controller

    with controller() as client:
        _show(client.cancel(name), as_json)
