"""`latfarm characterize`: measure and train everything that predictions on a platform need."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from latfarm_predictors.measurement import ENERGY_MS

from latfarm_controller.cli.shell import given, inputs, output

if TYPE_CHECKING:
    from latfarm_controller.api.client import ControllerClient


class SamplerName(StrEnum):
    """The samplers, by name; see `latfarm_controller.campaigns.sampling.sampling`."""

    prior = "prior"
    latfarm = "latfarm"
    random = "random"
    annette = "annette"
    nn_meter = "nn-meter"


class CalibrationDraw(StrEnum):
    """How calibration networks are drawn; see `latfarm_controller.campaigns.networks`."""

    judged = "judged"
    convolutional = "convolutional"
    transformers = "transformers"
    variants = "variants"
    scaled = "scaled"


class Guide(StrEnum):
    """How the sampler `latfarm` picks kernels; its module explains each choice."""

    both = "both"
    variance = "variance"
    coverage = "coverage"
    spread = "spread"


class Insight(StrEnum):
    """How kernels' own times are obtained; see `latfarm_controller.campaigns.profiles.insight`."""

    auto = "auto"
    profile = "profile"
    padded = "padded"
    single = "single"


Budget = Annotated[
    int,
    typer.Option(
        min=40,
        help="Largest number of measurements of all stages together: fusion, profiled networks, "
        "kernels, sentinels and calibration networks.",
    ),
]
BudgetMinutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Longest board time of all stages together, in minutes."),
]
KeepFusionTests = Annotated[
    bool,
    typer.Option(
        "--keep-fusion-tests",
        help="Also measure all pairs of ops by times, after everything else and outside the "
        "budget, to score how well times alone tell fusion. Predictions do not need it.",
    ),
]
Networks = Annotated[int, typer.Option(min=1, help="Number of calibration networks to measure.")]
DrawOption = Annotated[
    CalibrationDraw | None,
    typer.Option(
        help="Which networks calibrate, because intervals keep their promise for networks like "
        "these. judged: networks whose layers were redrawn, in the mix of families that judge "
        "predictors; convolutional, transformers: those of one class alone; variants: of all "
        "families alike; scaled: networks as published, in other widths and resolutions. "
        "[default: judged]",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of networks to profile, so that kernels are also known as networks run "
        "them. [default: 12 % of the budget]",
    ),
]
SamplerOption = Annotated[
    SamplerName | None,
    typer.Option(
        help="How kernels are chosen. latfarm: what tells most beside the kernels of profiled "
        "networks, half of it where predictions of networks are least sure; prior: representative "
        "draws; random: uniform over all sizes, annette and nn-meter: as in these papers, all "
        "three for comparisons. [default: latfarm]",
    ),
]
GuideOption = Annotated[
    Guide | None,
    typer.Option(
        help="What sampler latfarm looks for. variance: kernels the model is least sure of; "
        "coverage: kernels far from measured ones; both: the two together; spread: kernels "
        "evenly over all, whatever the model knows. [default: variance]",
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="BUNDLE",
        help="Start from the bundle of a similar board, so that fewer kernels need measuring. "
        "Give a file, or the name of a platform whose bundle in use is taken.",
        readable=False,
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=1.0,
        help="Stop early, when kernels kept back for tests show that this share is predicted "
        "within 10 %. At most 5 % of surveys stop although the share is ten points lower.",
    ),
]
BoardMinutes = Annotated[
    float | None,
    typer.Option(min=0.01, help="Longest board time for measuring kernels alone, in minutes."),
]
InsightOption = Annotated[
    Insight,
    typer.Option(
        help="How the time of a kernel alone is found. profile: from the runtime's profiler; "
        "padded: from differences between models with the kernel between other layers, for "
        "accelerators without a profiler; single: from a model of the kernel alone; auto: the "
        "best of these that the platform offers.",
    ),
]
RulesFile = Annotated[
    Path | None,
    typer.Option(help="Use the fusion rules of this file; do not detect them.", readable=False),
]
EnergyMs = Annotated[
    float,
    typer.Option(
        min=1.0, max=600_000.0, help="Duration of each energy measurement, in milliseconds."
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed. The same seed chooses the same kernels and networks.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("characterize")(characterize)


def characterize(
    command: typer.Context,
    platform: inputs.Platform,
    budget: Budget = 500,
    budget_minutes: BudgetMinutes = None,
    networks: Networks = 20,
    calibration_draw: DrawOption = None,
    context: Context = None,
    sampler: SamplerOption = None,
    guide: GuideOption = None,
    sibling: From = None,
    target: Target = None,
    board_minutes: BoardMinutes = None,
    insight: InsightOption = Insight.auto,
    rules: RulesFile = None,
    keep_fusion_tests: KeepFusionTests = False,
    energy: inputs.Energy = False,
    energy_ms: EnergyMs = ENERGY_MS,
    seed: Seed = 0,
    tags: inputs.Tags = None,
    name: inputs.CampaignName = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Measure and train all that predictions need.

    It detects fusion rules, measures kernels and calibration networks, trains a predictor, and
    writes it as a bundle, with a report. The first line tells what it will cost, as latfarm plan
    does. The budget bounds all of it, and a table at the end tells where it went.

    You can stop this at any point; the same command continues where it stopped.

    \b
    Examples:
      latfarm characterize --platform local-onnxruntime1.31-fp32-1t
      latfarm characterize --platform imx93-ethosu65-int8 --budget 1500 --json
      latfarm characterize -p local-ncnn20261020-fp32-1t --rules rules.json --board-minutes 10
      latfarm characterize -p imx93-ethosu65-int8 --insight padded --energy
      latfarm characterize -p jetson-tensorrt10.3-fp16 --tag lab2 --sampler latfarm --target 0.9
      latfarm characterize -p orin-tensorrt10.3-fp16 --from xavier-tensorrt10.3-fp16 --budget 120
    """
    _refuse_idle(command, sampler, energy=energy)
    config: dict[str, Any] = {"measurements": budget, "calibration": networks, "seed": seed}
    asked = {
        "sampler": None if sampler is None else str(sampler),
        "calibration_draw": None if calibration_draw is None else str(calibration_draw),
        "prior_share": _paper_share() if sampler is SamplerName.nn_meter else None,
        "budget_minutes": budget_minutes,
        "keep_fusion_tests": keep_fusion_tests or None,
        "context": context,
        "guide": None if guide is None else str(guide),
        "started_from": None if sibling is None else _sibling(sibling, platform),
        "insight": None if insight is Insight.auto else str(insight),
        "target": target,
        "board_minutes": board_minutes,
        "energy_ms": energy_ms if energy else None,
        "rules": None if rules is None else inputs.read_rules(rules).to_json(),
    }
    config |= _asked_for(asked) | inputs.chosen_by(tags)
    _run(platform, config, name, wait_s, as_json=as_json)


def _asked_for(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were asked for; None for those that were not.

    The others must not get into the configuration: the same command must name the same campaign as
    it did before the option existed.
    """
    return {key: value for key, value in values.items() if value is not None}


def _refuse_idle(command: typer.Context, sampler: SamplerName | None, *, energy: bool) -> None:
    """Refuse options that others make idle.

    Raises:
        UsageError: it names the option.
    """
    if not energy:
        given.refuse(command, "energy_ms", why="says how --energy measures; give --energy, too")
    if sampler not in (None, SamplerName.latfarm):
        only = f"is for the sampler latfarm; leave it out, or leave out --sampler {sampler}"
        given.refuse(command, "guide", "sibling", why=only)


def _paper_share() -> float:
    """The share of prior draws in nn-Meter's Algorithm 2; stored campaigns without it had fewer."""
    from latfarm_controller.campaigns.sampling.nn_meter import PAPER_PRIOR_SHARE

    return PAPER_PRIOR_SHARE


def _run(
    platform: str, config: Mapping[str, Any], name: str, wait_s: float, *, as_json: bool
) -> None:
    """Run the campaign, and print what it found."""
    from latfarm_controller.cli.answers.report import make
    from latfarm_controller.cli.campaigns.plan import first_line, plan_of
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    with controller(wait_s) as client:
        if not as_json and not _is_done(client, platform, config, name):
            first_line(plan_of(client, platform, config), starts_ray=client.hosted)
        campaign = follow(client, client.start("characterize", platform, config, name).campaign_id)
        report = make(client, platform, campaign.campaign_id)
    outcome = campaign.outcome
    if as_json:
        told = {"campaign_id": campaign.campaign_id, **outcome}
        output.json_text(told | ({} if report is None else {"report": str(report)}))
        return
    output.out().print(
        f"{campaign.measurements} measurements, {campaign.board_ms / 1000:.0f} s of board time, "
        f"{campaign.failures} failures\nbundle: {outcome.get('bundle', '')}"
    )
    if outcome.get("model", {}).get("state") == "candidate":
        why = "; ".join(outcome["model"]["verdict"]["reasons"])
        output.out().print(f"it is a candidate, and was not promoted: {why}", style="yellow")
    if "spent" in outcome:
        _show_spent(outcome["spent"])
    if "insight" in outcome:
        chosen = outcome["insight"]
        counts = ", ".join(f"{count} {name}" for name, count in chosen["counts"].items())
        output.out().print(f"insight: {chosen['chosen']} ({chosen['reason']}); kernels: {counts}")
    if "energy_ms" in config:
        _show_energy(outcome)
    if report is not None:
        output.out().print(f"report: {report}")


def _is_done(client: ControllerClient, platform: str, config: Mapping[str, Any], name: str) -> bool:
    """Whether the same campaign has ended before, so that nothing will be measured."""
    import json

    from latfarm_controller.app.campaigns.campaign_names import campaign_id
    from latfarm_controller.errors import UsageError

    same = json.loads(json.dumps(dict(config)))
    try:
        known = client.campaign(campaign_id("characterize", platform, same, name))
    except UsageError:
        return False
    return known.state == "done"


def _show_spent(spent: Mapping[str, Any]) -> None:
    """The stages on which the budget was spent."""
    rows = [
        [
            row["stage"],
            str(row["measurements"]),
            f"{row['board_ms'] / 1000:.1f}",
            str(row["left_out"] or ""),
        ]
        for row in spent["stages"]
    ]
    rows.append(
        ["all", str(spent["measurements"]), f"{spent['board_ms'] / 1000:.1f}", ""],
    )
    limits = [f"{spent['most_measurements']} measurements"] if spent["most_measurements"] else []
    if spent["most_board_ms"]:
        limits.append(f"{spent['most_board_ms'] / 60_000:g} minutes")
    output.table(
        f"where the budget of {' and '.join(limits)} went",
        ["stage", "measurements", "board time, s", "left out"],
        rows,
    )


def _sibling(path: Path, platform: str) -> dict[str, str]:
    """The bundle in a file, or the one in use of a platform, for a campaign's configuration."""
    from latfarm_controller.campaigns.sampling.sibling import named
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import promoted

    known = promoted(load_config().bundles_dir)
    return named(known.get(str(path), path), platform).model_dump()


def _show_energy(outcome: Mapping[str, Any]) -> None:
    told = outcome.get("energy", {})
    trained = outcome.get("accuracy", {}).get("energy")
    if trained is None:
        output.out().print("energy: the bundle predicts none")
    else:
        error = trained["left_out_median_error"]
        judged = "" if error is None else f", {error:.1%} median error on networks left out"
        output.out().print(f"energy: by {trained['rail']}, {trained['kernels']} kernels{judged}")
    for reason, count in told.get("unavailable", {}).items():
        output.out().print(f"  {count} measurements have no energy: {reason}", style="yellow")
