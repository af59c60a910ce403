"""`latfarm characterize`: everything it takes to predict latencies on a platform."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from latfarm_predictors.measurement import ENERGY_MS

from latfarm_controller.cli.shell import inputs, output


class SamplerName(StrEnum):
    """Samplers by name: ours, its representative draws alone, and the papers'."""

    prior = "prior"
    latfarm = "latfarm"
    random = "random"
    annette = "annette"
    nn_meter = "nn-meter"


class Guide(StrEnum):
    """What sampler `latfarm` picks layers of networks by; see `sampling_latfarm`."""

    both = "both"
    variance = "variance"
    coverage = "coverage"
    spread = "spread"


class Insight(StrEnum):
    """How kernels' own times are told; see `latfarm_controller.campaigns.profiles.insight`."""

    auto = "auto"
    profile = "profile"
    padded = "padded"
    single = "single"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("characterize")(characterize)


def characterize(
    platform: inputs.Platform,
    budget: Annotated[int, typer.Option(min=20, help="kernels to measure")] = 450,
    networks: Annotated[int, typer.Option(min=1, help="calibration networks to measure")] = 20,
    context: Annotated[
        int | None,
        typer.Option(
            min=0, help="networks profiled for their kernels [default: budget / 7, at most 60]"
        ),
    ] = None,
    sampler: Annotated[
        SamplerName, typer.Option(help="how kernels are chosen")
    ] = SamplerName.prior,
    guide: Annotated[
        Guide | None,
        typer.Option(help="what sampler latfarm picks layers by: doubt, distance (CM_O), neither"),
    ] = None,
    sibling: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="BUNDLE",
            help="a like board's bundle (a file, or a platform's name) to start from",
            readable=False,
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, help="stop when this share of kept-back kernels is within 10 %"
        ),
    ] = None,
    board_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="of measuring kernels, at most")
    ] = None,
    insight: Annotated[
        Insight,
        typer.Option(help="what tells a kernel's time: the profiler, pads, or its model alone"),
    ] = Insight.auto,
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

    Ends with a report; `latfarm report` makes it again.

    Stopped at any point, the same command goes on where it stopped.

    \b
    Examples:
      latfarm characterize --platform local-onnxruntime1.31-fp32-1t
      latfarm characterize --platform imx93-ethosu65-int8 --budget 1500 --json
      latfarm characterize -p jetson-tensorrt10.3-fp16 --sampler latfarm --target 0.9
      latfarm characterize -p local-ncnn20261020-fp32-1t --rules rules.json --board-minutes 10
      latfarm characterize -p imx93-ethosu65-int8 --insight padded
      latfarm characterize -p jetson-tensorrt10.3-fp16 --energy
      latfarm characterize -p orin-tensorrt10.3-fp16 --from xavier-tensorrt10.3-fp16 --budget 120
    """
    from latfarm_controller.cli.answers.report import make
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    config: dict[str, Any] = {"budget": budget, "calibration": networks, "seed": seed}
    # Only what was asked for: the same command as ever goes on with the same campaign.
    if sampler is not SamplerName.prior:
        config["sampler"] = str(sampler)
    if context is not None:
        config["context"] = context
    if guide is not None:
        config["guide"] = str(guide)
    if sibling is not None:
        config["started_from"] = _sibling(sibling, platform)
    if insight is not Insight.auto:
        config["insight"] = str(insight)
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
        report = make(client, platform, campaign.campaign_id)
    outcome = dict(campaign.outcome)
    if as_json:
        told = {"campaign_id": campaign.campaign_id} | outcome
        output.json_text(told | ({} if report is None else {"report": str(report)}))
        return
    output.out().print(
        f"{campaign.measurements} measurements, {campaign.board_ms / 1000:.0f} s of board time, "
        f"{campaign.failures} failures\nbundle: {outcome.get('bundle', '')}"
    )
    if "insight" in outcome:
        told = outcome["insight"]
        counts = ", ".join(f"{count} {name}" for name, count in told["counts"].items())
        output.out().print(f"insight: {told['chosen']} ({told['reason']}); kernels: {counts}")
    if energy:
        _show_energy(outcome)
    if report is not None:
        output.out().print(f"report: {report}")


def _sibling(path: Path, platform: str) -> dict[str, str]:
    """The bundle of a file, or the newest of a platform, as a campaign's configuration has it."""
    from latfarm_controller.campaigns.sampling.sibling import named
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import newest

    known = newest(load_config().bundles_dir)
    return named(known.get(str(path), path), platform).model_dump()


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
