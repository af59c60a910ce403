"""`latfarm train`: make a new model of a platform from the measurements in the store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_controller.config import ControllerConfig
    from latfarm_controller.training.entering import EnteredModel
    from latfarm_controller.training.fit_bundle import TrainingInputs

Since = Annotated[
    str,
    typer.Option(
        metavar="TIME|REVISION",
        help="Train a model further instead of making it anew: a time such as 2026-11-20T12:00 or "
        "an age such as 7d trains the model in use with the rows since then; the number of a model "
        "or the revision of its rows trains that model with what came later.",
    ),
]
ForeignSource = Annotated[
    list[str] | None,
    typer.Option(
        "--foreign-source",
        metavar="SOURCE",
        help="Also train with the networks that this source measured on the platform "
        "(latfarm db import; latfarm results --foreign names sources). May be repeated. They teach "
        "the correction from sums of kernels to networks, and the width of intervals; kernels are "
        "learned from own measurements alone. The bundle names source and licence. Without this, "
        "no measurement of others trains a model.",
    ),
]
Nnlp = Annotated[
    bool,
    typer.Option(
        "--nnlp",
        help="Also train graph networks (NNLP), each family of networks left out in turn. One of "
        "them answers in the place of the sum of kernels if it wins so, and the model tells why or "
        "why not. This takes minutes, and torch: pip install 'latfarm-predictors[gnn]'.",
    ),
]
Promote = Annotated[
    bool,
    typer.Option(
        "--promote",
        help="Put the new model in use, unless it predicts the frozen set worse. Without this it "
        "is a candidate.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


def train(
    platform: inputs.Platform,
    since: Since = "",
    foreign_source: ForeignSource = None,
    nnlp: Nnlp = False,
    promote: Promote = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Train a new model from the measurements.

    It is trained from the campaign of the bundle in use and from all campaigns that were added to
    it. With --since, only what new rows touch is fitted again: families of kernels without new rows
    keep their models and predict the same. Without new rows nothing is done.

    The frozen set of the platform judges the new model. It is chosen once, from networks that no
    model was trained on, and no training uses it. Nothing is measured and no board is needed.
    latfarm serve may run meanwhile: it gives a copy of the measurements, and this command computes.

    \b
    Examples:
      latfarm train -p local-onnxruntime1.31-fp32-1t
      latfarm train -p local-onnxruntime1.31-fp32-1t --since 7d --promote
      latfarm train -p local-onnxruntime1.31-fp32-1t --since 0002 --json
      latfarm train -p local-onnxruntime1.31-fp32-1t --foreign-source "another lab"
      latfarm train -p local-onnxruntime1.31-fp32-1t --nnlp --promote
    """
    if since and foreign_source:
        raise UsageError(
            "--since and --foreign-source contradict each other; train without --since"
        )
    from latfarm_controller.cli.answers.fit_shown import fitted
    from latfarm_controller.config import load_config

    config = load_config()
    _check_networks(config, platform, nnlp=nnlp)
    read = _inputs(config, platform, since, foreign_source or [], wait_s)
    if read is not None:
        read = replace(read, nnlp=nnlp)
    entered = None if read is None else fitted(config.bundles_dir, read, promote=promote)
    _show(platform, since, entered, as_json=as_json)


def _check_networks(config: ControllerConfig, platform: str, *, nnlp: bool) -> None:
    """Refuse graph networks that cannot be trained, and tell of one that is not tried again.

    Raises:
        NoTorchError: torch is not installed; without this it would be missing after minutes.
        UsageError: the platform has no bundle.
    """
    from latfarm_predictors.bundle import read_provenance
    from latfarm_predictors.gnn.learning.device import torch_module

    from latfarm_controller.training.bundles import choose
    from latfarm_controller.training.training import has_graph_network

    if nnlp:
        torch_module()
    elif has_graph_network(read_provenance(choose(config.bundles_dir, platform))):
        output.err().print(
            f"the model in use of {platform} answers with a graph network, and this training tries "
            "none; to try them, add --nnlp"
        )


def _show(platform: str, since: str, entered: EnteredModel | None, *, as_json: bool) -> None:
    """Print what became of the training; None: there were no new rows."""
    from latfarm_predictors.bundle import read_provenance
    from latfarm_predictors.gnn.shipping import ShippingDecision

    tried = None if entered is None else read_provenance(entered.path).get("corrector")
    if as_json:
        told = {"platform": platform, "trained": entered is not None}
        if entered is not None:
            told |= {"bundle": str(entered.path), **entered.to_json()}
            told |= {} if tried is None else {"corrector": tried}
        output.json_text(told)
        return
    if entered is None:
        output.err().print(f"{platform} has no new rows since {since}, so nothing was trained")
        return
    output.err().print(f"the bundle of {platform} was written to {entered.path}")
    decision = ShippingDecision.from_json(tried)
    for each in decision.all if decision is not None else ():
        output.err().print(f"{each.method}: {each.sentence}")
    if entered.scores is None:
        output.err().print(
            "no frozen set judges it: fewer than 8 networks were measured outside of the campaigns "
            "that train; latfarm query measures networks"
        )
    output.err().print("\n".join(entered.sentences))


def _inputs(
    config: ControllerConfig, platform: str, since: str, foreign: list[str], wait_s: float
) -> TrainingInputs | None:
    """What the model is fitted to; None if nothing is new."""
    from latfarm_controller.api.readable_store import readable_store
    from latfarm_controller.training.since import inputs_since, read_since
    from latfarm_controller.training.training import read_inputs, trained_from

    folder = config.bundles_dir
    asked = read_since(folder, platform, since) if since else None
    with readable_store(config, platform, wait_s, output.error) as store:
        if asked is not None:
            return inputs_since(store, folder, platform, asked)
        campaign, seed, chain = trained_from(store, folder, platform, added=True)
        return read_inputs(
            store,
            platform,
            campaign,
            seed=seed,
            bundles_dir=folder,
            chain=chain,
            foreign=foreign,
        )
