"""`latfarm cover`: measure the kernels that predictions of some networks lack, and retrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.named_networks import check_shape, named_networks
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.predict.predictor import PlatformPredictor

    from latfarm_controller.app.summaries import PlatformSummary

BUDGET = 50
"""Kernels that are measured unless another number is given."""

Models = Annotated[
    list[str] | None,
    typer.Argument(
        help="ONNX or TFLite files, folders of them, or names of networks in the zoo. Without "
        "this, the networks of the zoo."
    ),
]
Layers = Annotated[
    list[str] | None,
    typer.Option(help="Measure the kernel that has the node of this name. May be repeated."),
]
FamilyName = Annotated[
    str, typer.Option(help="Measure only kernels of this family, for example softmax.")
]
Budget = Annotated[int, typer.Option(min=1, help="Largest number of kernels to measure.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="List the kernels that would be measured, without measuring."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cover")(cover)


def cover(
    platform: inputs.Platform,
    models: Models = None,
    layer: Layers = None,
    family: FamilyName = "",
    budget: Budget = BUDGET,
    dry_run: DryRun = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    tags: inputs.Tags = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Measure the kernels that a bundle covers badly.

    A better bundle is made from them. A kernel is badly covered if no kernel of its kind was
    measured, or if none near it was measured and its interval is wide; latfarm predict --explain
    shows these kernels. The new bundle is made from all measurements of the old one and the new
    measurements. You can stop this at any point; the same command continues where it stopped.

    \b
    Examples:
      latfarm cover model.onnx --platform local-onnxruntime1.31-fp32-1t
      latfarm cover model.onnx -p jetson-tensorrt10.3-fp16 --layer conv_12 --layer conv_14
      latfarm cover -p local-ncnn20261020-fp32-1t --family softmax --budget 10
      latfarm cover mobilenet-v2 resnet18 -p local-ncnn20261020-fp32-1t --dry-run --json
    """
    from latfarm_predictors.bundle import load_bundle, read_provenance
    from latfarm_predictors.kernels.workload import configuration, workload

    from latfarm_controller.campaigns.sampling.badly_covered import choose
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import choose as choose_bundle

    check_shape(models or [], shape)
    path = choose_bundle(load_config().bundles_dir, platform)
    predictor = load_bundle(path)
    named = named_networks(models or [], batch, shape or [], predictor.platform)
    graphs = list(named.values())
    choice = choose(predictor, graphs, budget, layers=layer or (), family=family)
    told: dict[str, Any] = {
        "platform": platform,
        "bundle": str(path),
        "badly_covered": choice.badly,
        "left": choice.left,
        "coverage": coverages(predictor, named),
        "kernels": [
            {"type": kernel.type, **configuration(workload(kernel))} for kernel in choice.kernels
        ],
    }
    if choice.kernels and not dry_run:
        made = read_provenance(path)
        told |= _measure(platform, made, choice.kernels, wait_s, tags)
        told["coverage_after"] = coverages(load_bundle(Path(told["new_bundle"])), named)
    if as_json:
        output.json_text(told)
    else:
        _show(told, dry_run=dry_run)


def coverages(predictor: PlatformPredictor, named: Mapping[str, Graph]) -> dict[str, float]:
    """How well each network is covered, from 0 to 1, by the same names."""
    from latfarm_predictors.trust.network_trust import weighted_coverage

    return {name: weighted_coverage(predictor, graph) for name, graph in named.items()}


def refuse_changed(platform: str, then: str, offered: Sequence[PlatformSummary]) -> None:
    """Refuse boards that changed since a bundle was made: their times could not be added to it.

    Args:
        platform: the platform.
        then: the fingerprint that it had when the bundle was made; empty if that is not known.
        offered: the platforms of today.

    Raises:
        UsageError: boards offer the platform, with another fingerprint.
    """
    now = {each.fingerprint for each in offered if each.name == platform and each.fingerprint}
    if then and now and then not in now:
        raise UsageError(
            f"the boards of {platform} changed since its bundle in use was made: their runtime, "
            f"settings or hardware are others (fingerprint {min(now)[:12]}, then {then[:12]}), so "
            "what is measured now cannot be added to that bundle; to measure everything again, "
            f"run: latfarm characterize --platform {platform}"
        )


def _measure(
    platform: str,
    made: Mapping[str, Any],
    kernels: Sequence[Any],
    wait_s: float,
    tags: list[str] | None,
) -> dict[str, Any]:
    """Have kernels measured and a bundle made; facts about it for the answer.

    Args:
        platform: the platform.
        made: how its bundle in use was made; names the campaign and the fingerprint.
        kernels: what to measure.
        wait_s: seconds to wait for the store.
        tags: a board that measures must have all of these tags.
    """
    from latfarm_controller.campaigns.cover import cover_config
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    base = str(made.get("campaign", ""))
    with controller(wait_s) as client:
        try:
            known = client.campaign(base)
        except UsageError as error:
            raise UsageError(
                f"the bundle in use of {platform} was made elsewhere: its campaign "
                f"{base or '(not told)'} is not in this store; to make one here, run: "
                f"latfarm characterize --platform {platform}"
            ) from error
        refuse_changed(platform, str(made.get("fingerprint", "")), client.platforms(tags or ()))
        config = {
            **cover_config(known.campaign_id, known.outcome, kernels),
            **inputs.chosen_by(tags),
        }
        began = client.start("cover", platform, config)
        campaign = follow(client, began.campaign_id)
    outcome = campaign.outcome
    return {
        "campaign_id": campaign.campaign_id,
        "measured": outcome["kernels"],
        "failed": outcome["failed"],
        "board_ms": campaign.board_ms,
        "new_bundle": outcome["bundle"],
    }


def _show(told: dict[str, Any], *, dry_run: bool) -> None:
    console = output.out()
    if not told["kernels"]:
        console.print("there is nothing to measure: no kernel that was asked for is badly covered")
        return
    if dry_run:
        console.print(f"{len(told['kernels'])} kernels would be measured:")
        for kernel in told["kernels"]:
            sizes = " ".join(f"{k}={v}" for k, v in kernel.items() if k != "type")
            console.print(f"  {kernel['type']} {sizes}")
    else:
        console.print(f"{told['measured']} kernels measured, {len(told['failed'])} failures")
        for failure in told["failed"].values():
            console.print(f"  {failure['type']}: {failure['error']}", style="yellow")
        for name, after in told["coverage_after"].items():
            console.print(f"coverage of {name}: {told['coverage'][name]:.0%}, now {after:.0%}")
        console.print(f"bundle: {told['new_bundle']}")
    if told["left"]:
        enough = len(told["kernels"]) + told["left"]
        console.print(f"{told['left']} more kernels are left out; --budget {enough} includes them")
