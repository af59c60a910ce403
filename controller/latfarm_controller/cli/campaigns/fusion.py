"""`latfarm fusion`: which ops a platform's runtime executes as one kernel."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.campaigns import fusion_rules
from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import CampaignSummary

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Detect, show, edit and compare fusion rules.

    They say which ops a platform executes as one kernel.

    \b
    Examples:
      latfarm fusion detect -p local-onnxruntime1.31-fp32-1t --pairs all -o rules.json
      latfarm fusion show -p local-onnxruntime1.31-fp32-1t
      latfarm fusion edit rules.json --set Conv+Add=separate --multi-inbound 1
      latfarm fusion compare rules.json local-openvino2026.4-fp32-1t
    """,
)
Source = Annotated[
    str,
    typer.Argument(
        help="A file of rules; a platform, for the rules in its bundle in use; CAMPAIGN@used, "
        "for the rules that a campaign uses; or CAMPAIGN@detected, for those that it found by "
        "times alone."
    ),
]
VERDICTS = {"fused": "as one kernel", "separate": "apart"}
"""Texts for verdicts in tables."""


class Pairs(StrEnum):
    """Which pairs of ops to test."""

    core = "core"
    all = "all"


class Method(StrEnum):
    """How times are compared: latfarm's way, or inequation 1 as the nn-Meter paper prints it."""

    latfarm = "latfarm"
    paper = "paper"


PairsOption = Annotated[
    Pairs,
    typer.Option(
        help="Pairs of ops to test. core: those that convolutional networks have; all: pairs of "
        "39 operators, which takes much longer."
    ),
]
Rounds = Annotated[
    int, typer.Option(min=2, help="Least number of times that each pair is measured.")
]
MethodOption = Annotated[
    Method,
    typer.Option(
        "--criterion",
        help="How times are compared. latfarm: without the costs of calls and transfers; paper: "
        "by nn-Meter's inequation as printed, for comparisons.",
    ),
]
Profile = Annotated[
    bool,
    typer.Option(
        help="Ask the runtime's own profiler first, where it has one. Without it, times alone "
        "decide."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Set a pair to fused or separate, as Conv+Relu=fused. May be repeated."
    ),
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="fusion")


@app.callback()
def fusion() -> None:
    """Group the subcommands."""


@app.command(cls=formerly({"--method": "--criterion"}))
def detect(
    platform: inputs.Platform,
    pairs: PairsOption = Pairs.core,
    rounds: Rounds = 3,
    method: MethodOption = Method.latfarm,
    profile: Profile = True,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the rules to this file.")
    ] = None,
    tags: inputs.Tags = None,
    name: inputs.CampaignName = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Measure which ops a platform fuses.

    Besides, it shows how well times alone agree with the platform's profiler. You can stop this at
    any point; the same command continues where it stopped.

    \b
    Examples:
      latfarm fusion detect -p local-onnxruntime1.31-fp32-1t
      latfarm fusion detect -p local-ncnn20261020-fp32-1t --pairs all --no-profile -o rules.json
      latfarm fusion detect -p local-onnxruntime1.31-fp32-1t --criterion paper
    """
    from latfarm_predictors.kernels.fusion import FusionRules

    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    if to is not None and not to.parent.is_dir():
        raise UsageError(f"{to.parent}: there is no such folder; create it first")
    inputs.check_to_write(to)
    config: dict[str, Any] = {
        "pairs": str(pairs),
        "rounds": rounds,
        "max_rounds": max(6, rounds),
        "profile": profile,
    }
    if method is not Method.latfarm:
        config["method"] = str(method)
    config |= inputs.chosen_by(tags)
    with controller(wait_s) as client:
        campaign = follow(client, client.start("fusion", platform, config, name).campaign_id)
    if to is not None:
        fusion_rules.write(FusionRules.from_json(campaign.outcome["rules"]), to)
    if as_json:
        output.json_text({"campaign_id": campaign.campaign_id, **campaign.outcome})
    else:
        _show_detected(campaign)


def _show_detected(campaign: CampaignSummary) -> None:
    """Print what fusion detection found, and how well times alone tell it."""
    outcome = campaign.outcome
    output.table(
        f"{campaign.platform}: {campaign.measurements} measurements, "
        f"{campaign.board_ms / 1000:.0f} s of board time",
        ["op", "followed by", "runs", "known by", "by times", "by the paper", "by profile"],
        [
            [
                *entry["pair"],
                VERDICTS.get(entry["used"], entry["used"]),
                entry["source"],
                entry["time_fused"] + (" (layout)" if entry["layout"] else ""),
                entry["paper_fused"],
                {True: "fused", False: "separate", None: ""}[entry["graph_fused"]],
            ]
            for entry in outcome["pairs"]
        ],
    )
    if outcome["transfers"]["costly"]:
        share = outcome["transfers"]["share"]
        output.out().print(
            f"transfers take {share:.0%} of an op's call, so pairs are timed between pads"
        )
    output.out().print(_score(outcome["black_box"], "times alone"))
    if outcome["black_box"]["pairs"]:
        output.out().print(_score(outcome["paper"], "inequation 1 as printed"))
    output.out().print(f"latfarm fusion compare {campaign.name}@detected {campaign.name}@used")


def _score(found: dict[str, Any], way: str) -> str:
    if not found["pairs"]:
        return "there is no profiler to compare the times with"
    said = [
        f"{name} {'none to tell from' if found[name] is None else format(found[name], '.2f')}"
        for name in ("precision", "recall")
    ]
    return (
        f"{way}, against the profiler: {', '.join(said)} over {found['pairs']} pairs, "
        f"{found['undecided']} undecided"
    )


@app.command()
def show(
    platform: inputs.BundlePlatform = "",
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="Show the rules of this file instead.", readable=False),
    ] = None,
    as_json: inputs.Json = False,
) -> None:
    """Show the rules in the bundle in use of a platform, or of a file.

    \b
    Examples:
      latfarm fusion show -p local-onnxruntime1.31-fp32-1t
      latfarm fusion show --rules rules.json --json
    """
    if rules is not None and platform:
        raise UsageError("give either --platform or --rules, not both")
    found = fusion_rules.of_platform(platform) if rules is None else inputs.read_rules(rules)
    if as_json:
        output.json_text(found.to_json())
        return
    output.table(
        f"{found.platform}: multi-inbound {found.multi_inbound}, "
        f"multi-outbound {found.multi_outbound} (0 none, 1 first, 2 last branch)",
        ["op", "followed by", "runs"],
        [
            [first, second, VERDICTS.get(verdict, verdict)]
            for (first, second), verdict in sorted(found.pairs.items())
        ],
    )


@app.command()
def edit(
    source: Source,
    change: Changes = None,
    multi_inbound: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2,
            help="Branch with which an op of several inputs is fused. 0: none; 1: the first; 2: "
            "the last.",
        ),
    ] = None,
    multi_outbound: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2,
            help="Branch with which an op with several readers is fused. 0: none; 1: the first; "
            "2: the last.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: the source, if it is a file."),
    ] = None,
    wait_s: inputs.Wait = 0.0,
) -> None:
    """Change rules by options, or in $EDITOR if no option is given. The result is checked.

    A bundle keeps the rules that it was trained with. To train one with the new rules:
    latfarm characterize --rules FILE.

    \b
    Examples:
      latfarm fusion edit local-onnxruntime1.31-fp32-1t --set Conv+Add=separate -o rules.json
      latfarm fusion edit rules.json --set Add+Relu=fused --multi-inbound 1
      latfarm fusion edit rules.json
    """
    file = Path(source) if Path(source).is_file() else None
    target = to or file
    if target is None:
        raise UsageError(
            f"{source} is not a file; name the file for the changed rules with -o FILE"
        )
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent}: there is no such folder; create it first")
    inputs.check_to_write(target)
    rules = fusion_rules.load(source, wait_s)
    if change or multi_inbound is not None or multi_outbound is not None:
        changed = fusion_rules.changed(rules, change or (), multi_inbound, multi_outbound)
    else:
        changed = fusion_rules.edited(rules, target)
    fusion_rules.write(changed, target)
    output.out().print(f"{target}: {len(changed.pairs)} pairs")


@app.command()
def compare(
    left: Source,
    right: Source,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Show where two sets of rules differ.

    The second set counts as the truth.

    \b
    Examples:
      latfarm fusion compare mine.json local-onnxruntime1.31-fp32-1t
      latfarm fusion compare fusion-1f2e3d4c@detected fusion-1f2e3d4c@used --json
    """
    from latfarm_predictors.kernels.fusion_diff import compare as compare_rules

    found = compare_rules(fusion_rules.load(left, wait_s), fusion_rules.load(right, wait_s))
    if as_json:
        output.json_text(found.to_json())
        return
    rows = [
        ["+".join(pair), *(VERDICTS.get(verdict, verdict) for verdict in both)]
        for pair, both in sorted(found.differ.items())
    ]
    rows += [["+".join(p), VERDICTS.get(v, v), ""] for p, v in sorted(found.only_left.items())]
    rows += [["+".join(p), "", VERDICTS.get(v, v)] for p, v in sorted(found.only_right.items())]
    rows += [[name, *map(str, both)] for name, both in found.options.items()]
    output.table(
        "the rules cut every network alike" if found.equal else "", ["rule", left, right], rows
    )
    numbers = [
        f"{name} {format(value, '.2f')}"
        for name, value in (("precision", found.precision), ("recall", found.recall))
        if value is not None
    ]
    if numbers:
        output.out().print(f"{', '.join(numbers)} of {left} over {found.compared} pairs in both")
