"""`latfarm profile`: where the time of networks goes, beside what a bundle predicts for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.named_networks import check_shape, named_networks
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.measurement import Measurement
    from latfarm_predictors.predict.predictor import PlatformPredictor

MOST = 15
"""Number of rows of each table, unless another one is asked for."""
Models = Annotated[
    list[str],
    typer.Argument(help="ONNX or TFLite files, folders of them, or names of networks in the zoo."),
]
Most = Annotated[int, typer.Option(min=1, help="Number of rows of each table.")]
Layers = Annotated[
    bool,
    typer.Option(
        "--layers",
        help="Show the layers as the runtime tells them, without predictions. A platform without "
        "a bundle shows nothing else.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile")(profile)


def profile(
    models: Models,
    platform: inputs.Platform,
    layers: Layers = False,
    most: Most = MOST,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    tags: inputs.Tags = None,
    name: inputs.CampaignName = "",
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Show where the time of networks goes, beside its prediction.

    A board measures the networks, and its runtime tells how long each layer took. Layers are joined
    to the kernels that the bundle in use predicts, so that a wrong prediction shows which kernels
    it misses. The kernels with the largest errors come first. Several networks are added up by the
    configuration of their kernels.

    The same command again shows the same measurements; --name NAME measures anew.

    \b
    Examples:
      latfarm profile model.onnx -p local-onnxruntime1.31-fp32-1t
      latfarm profile models/ -p local-ncnn20261020-fp32-1t --most 40
      latfarm profile mobilenet-v2 resnet18 -p local-mnn3.6-fp32-1t --json
      latfarm profile model.tflite -p local-litert2.3-fp32-1t --layers
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import load, promoted_of

    check_shape(models, shape)
    bundle = None if layers else promoted_of(load_config().bundles_dir, platform)
    predictor = None if bundle is None else load(bundle)
    named = named_networks(models, batch, shape or [], platform)
    found, failed = _measured(named, platform, tags, name, wait_s)
    for model, text in failed.items():
        output.error(f"{model}: {text}")
    if predictor is None:
        told = _layers(found, 0 if as_json else most)
        if found and not layers:
            output.error(
                f"{platform} has no bundle, so that layers stand without predictions; to make one: "
                f"latfarm characterize --platform {platform}"
            )
    else:
        told = _kernels(predictor, named, found, 0 if as_json else most)
    if as_json:
        output.json_text({"platform": platform, **told, "failed": failed})
    return 1 if failed else 0


def _layers(found: Mapping[str, Measurement], most: int) -> dict[str, Any]:
    """The layers as runtimes tell them, as plain JSON types; shown if any rows are asked for."""
    from latfarm_controller.cli.campaigns.profile_show import layers_json, show_layers

    if most:
        show_layers(found, most)
    return {"networks": layers_json(found)}


def _kernels(
    predictor: PlatformPredictor,
    named: Mapping[str, Graph],
    found: Mapping[str, Measurement],
    most: int,
) -> dict[str, Any]:
    """The kernels beside their predictions, likewise."""
    from latfarm_controller.cli.campaigns.profile_show import show_kernels
    from latfarm_controller.reports.facts.predicted_and_profiled import (
        by_configuration,
        predicted_and_profiled,
    )

    times = predicted_and_profiled(predictor, [(named[model], m) for model, m in found.items()])
    sums = by_configuration(times)
    if times and most:
        show_kernels(list(found), times, sums, most)
    return {
        "bundle": predictor.bundle,
        "networks": [
            {"model": model} | each.to_json() for model, each in zip(found, times, strict=True)
        ],
        "configurations": [each.to_json() for each in sums],
    }


def _measured(
    named: Mapping[str, Graph], platform: str, tags: list[str] | None, name: str, wait_s: float
) -> tuple[dict[str, Measurement], dict[str, str]]:
    """The measurement with a profile of each network, and why others have none, by their names.

    Raises:
        ControllerError: the campaign failed or was interrupted.
    """
    from latfarm_predictors.graph.hash import hash_of

    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    config: dict[str, Any] = {
        "graphs": [graph.to_json() for graph in named.values()],
        "profile": True,
        **inputs.chosen_by(tags),
    }
    with controller(wait_s) as client:
        if not any(platform == each.name for each in client.platforms(tags or ())):
            raise UsageError(
                f"no board offers {platform!r}; latfarm platforms lists those that boards offer"
            )
        campaign = follow(client, client.start("networks", platform, config, name).campaign_id)
        answers = {m.graph_hash: m for m in client.results(campaign_id=campaign.campaign_id)}
    found: dict[str, Measurement] = {}
    failed: dict[str, str] = {}
    for model, graph in named.items():
        answer = answers.get(hash_of(graph))
        if answer is None:
            failed[model] = "it was not measured"
        elif not answer.ok or answer.latency_ms is None:
            failed[model] = answer.error_message or answer.error_code
        elif not answer.layers:
            failed[model] = f"the runtime of {platform} told no layers"
        else:
            found[model] = answer
    return found, failed
