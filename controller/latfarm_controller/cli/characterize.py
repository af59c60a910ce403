"""`latfarm characterize`: everything it takes to predict latencies on a platform."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from latfarm_predictors.measurement import ENERGY_MS

from latfarm_controller.cli import inputs, output


class Sampler(StrEnum):
    """Samplers by name: ours, its representative draws alone, and the papers'."""

    prior = "prior"
    latfarm = "latfarm"
    random = "random"
    annette = "annette"
    nn_meter = "nn-meter"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("characterize")(characterize)


def characterize(
    platform: inputs.Platform,
    budget: Annotated[int, typer.Option(min=20, help="kernels to measure")] = 450,
    networks: Annotated[int, typer.Option(min=1, help="calibration networks to measure")] = 20,
    sampler: Annotated[Sampler, typer.Option(help="how kernels are chosen")] = Sampler.prior,
    target: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, help="stop when this share of kept-back kernels is within 10 %"
        ),
    ] = None,
    board_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="of measuring kernels, at most")
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(help="a file of fusion rules instead of detecting them", readable=False),
    ] = None,
    energy: Annotated[
        bool, typer.Option("--energy", help="measure what an inference costs, too")
    ] = False,
    energy_ms: Annotated[
        float, typer.Option(min=1.0, max=600_000.0, help="so long a model runs for its energy")
    ] = ENERGY_MS,
    seed: Annotated[int, typer.Option(help="of all random draws")] = 0,
    name: Annotated[str, typer.Option(help="another name begins another campaign")] = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Detect fusion rules, measure kernels and calibration networks, train, write a bundle.

    Stopped at any point, the same command goes on where it stopped.

    \b
    Examples:
      latfarm characterize --platform local-onnxruntime1.31-fp32-1t
      latfarm characterize --platform imx93-ethosu65-int8 --budget 1500 --json
      latfarm characterize -p jetson-tensorrt10.3-fp16 --sampler latfarm --target 0.9
      latfarm characterize -p local-ncnn20261020-fp32-1t --rules rules.json --board-minutes 10
      latfarm characterize -p jetson-tensorrt10.3-fp16 --energy
    """
    from latfarm_controller.cli.connect import controller
    from latfarm_controller.cli.progress import follow

    config: dict[str, Any] = {"budget": budget, "calibration": networks, "seed": seed}
    # Only what was asked for: the same command as ever goes on with the same campaign.
    if sampler is not Sampler.prior:
        config["sampler"] = str(sampler)
    if target is not None:
        config["target"] = target
    if board_minutes is not None:
        config["board_minutes"] = board_minutes
    if energy:
        config["energy_ms"] = energy_ms
    if rules is not None:
        config["rules"] = inputs.read_rules(rules).to_json()
    with controller(wait_s) as client:
        campaign = follow(client, client.start("characterize", platform, config, name).campaign_id)
    outcome = json.loads(campaign.outcome_json)
    if as_json:
        output.json_text({"campaign_id": campaign.campaign_id} | outcome)
        return
    output.out().print(
        f"{campaign.measurements} measurements, {campaign.board_ms / 1000:.0f} s of board time, "
        f"{campaign.failures} failures\nbundle: {outcome.get('bundle', '')}"
    )
    if energy:
        _show_energy(outcome)


def _show_energy(outcome: Mapping[str, Any]) -> None:
    told = outcome.get("energy", {})
    trained = outcome.get("accuracy", {}).get("energy")
    if trained is None:
        output.out().print("energy: none in the bundle")
    else:
        error = trained["left_out_median_error"]
        judged = "" if error is None else f", {error:.1%} median error on networks left out"
        output.out().print(f"energy: by {trained['rail']}, {trained['kernels']} kernels{judged}")
    for reason, count in told.get("unavailable", {}).items():
        output.out().print(f"  {count} measurements without: {reason}", style="yellow")
