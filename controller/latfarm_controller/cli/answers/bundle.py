"""`latfarm bundle`: list, show, promote, export, import and retrain bundles of predictors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfarm_controller.cli.shell import inputs, output, subcommands
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import callers_umask

app = typer.Typer(
    rich_markup_mode=None,
    help="""
    Bundles: files that hold what predictions need.

    latfarm characterize and latfarm train write them, and latfarm predict reads the one in use of
    a platform. Without a subcommand, list them.

    \b
    Examples:
      latfarm bundle list
      latfarm bundle show -p local-onnxruntime1.31-fp32-1t
      latfarm bundle promote -p local-onnxruntime1.31-fp32-1t
      latfarm bundle rollback -p local-onnxruntime1.31-fp32-1t
      latfarm bundle export -p local-onnxruntime1.31-fp32-1t pixel.zip
      latfarm bundle import pixel.zip
    """,
)


Model = Annotated[
    str,
    typer.Option(
        metavar="NUMBER", help="Number of the model, as latfarm bundle list --all tells it."
    ),
]
Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Why; the register of the models keeps it.")
]
PlatformOnce = formerly(first="--platform")
"""The class of commands whose first argument was the platform."""


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="bundle")


@app.callback(invoke_without_command=True)
def bundles_listed(
    context: typer.Context,
    as_json: inputs.Json = False,
) -> None:
    """List the platforms that have a bundle."""
    if not subcommands.named(context):
        list_bundles(as_json)


@app.command("list")
def list_bundles(
    as_json: inputs.Json = False,
    every: Annotated[
        bool,
        typer.Option("--all", help="List all models, instead of those in use alone."),
    ] = False,
) -> None:
    """List the platforms that have a bundle.

    The bundle in use stands beside each. With --all, every model is listed with its state
    (candidate, promoted or retired), its parent, the revision of the rows that trained it, and how
    it predicts the frozen set of its platform.

    \b
    Examples:
      latfarm bundle list
      latfarm bundle list --all --json
    """
    from latfarm_controller.cli.answers.models_shown import models_of, show_models
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import newest, promoted

    folder = load_config().bundles_dir
    if every:
        found = [model for path in newest(folder).values() for model in models_of(path.parent)]
        show_models(found, as_json=as_json)
        return
    in_use = promoted(folder)
    if as_json:
        output.json_text([{"platform": p, "path": str(path)} for p, path in in_use.items()])
        return
    output.table(
        "",
        ["platform", "bundle"],
        [[p, str(path)] for p, path in in_use.items()],
        empty="no platform has a bundle yet; latfarm demo makes one for this machine, and latfarm "
        "predict MODEL --platform sample needs none",
    )


@app.command("show", cls=PlatformOnce)
def show_bundle(
    platform: inputs.BundlePlatform = "",
    coverage: Annotated[
        float, typer.Option(min=0.5, max=0.99, help="Coverage of the intervals to tell about.")
    ] = 0.9,
    model: Model = "",
    as_json: inputs.Json = False,
) -> None:
    """Show what a bundle was made from, and what it promises.

    It is the bundle in use of the platform, or the one that --model names.

    \b
    Examples:
      latfarm bundle show
      latfarm bundle show -p local-onnxruntime1.31-fp32-1t
      latfarm bundle show -p local-onnxruntime1.31-fp32-1t --coverage 0.8 --json
    """
    from latfarm_predictors.bundle import read_provenance

    from latfarm_controller.campaigns.host_noise import HostNoise, counts_told
    from latfarm_controller.cli.answers.models_shown import models_of
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import choose, load

    path = choose(load_config().bundles_dir, platform, model)
    told, predictor = read_provenance(path), load(path)
    entry = next(found for found in models_of(path.parent) if found.record.number == path.stem)
    promised = predictor.guarantee(coverage)
    if as_json:
        shown = told | {"guarantee": promised.to_json(), "path": str(path)} | entry.to_json()
        output.json_text(shown | {"slow_core": predictor.slow_core.to_json()})
        return
    tried = predictor.shipping.all if predictor.shipping else []
    core, noise = predictor.slow_core, HostNoise.from_json(told.get("host_noise"))
    counts = counts_told(told.get("steadiness", {}))
    rows = [
        ("bundle", str(path)),
        *entry.rows,
        ("made at", str(told.get("trained_at", "unknown"))),
        ("kernels", str(told.get("kernels", "unknown"))),
        ("calibration networks", str(len(told.get("networks", ())))),
        *(
            (
                "of other farms",
                f"{theirs.get('networks', 0)} networks: "
                + ", ".join(str(theirs.get(name, "")) for name in ("source", "licence", "method")),
            )
            for theirs in told.get("foreign", ())
        ),
        *((each.method, each.sentence) for each in tried),
        ("intervals", promised.sentence),
        ("effect of a slow core", f"shift of the exponent {core.shift:+.2f}, {core.pairs} pairs"),
        ("noise of the host", noise.sentence or "unknown"),
        ("measurements", counts or "unknown"),
    ]
    output.table("", ["", ""], [list(row) for row in rows])


@app.command("remove", cls=PlatformOnce)
def remove_bundle(
    platform: inputs.Platform,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Remove all bundles of the platform, instead of the one in use alone."
        ),
    ] = False,
    model: Model = "",
    as_json: inputs.Json = False,
) -> None:
    """Remove the bundle in use of a platform.

    The one that was in use before it, if any, is used again. Measurements stay in the store:
    latfarm bundle retrain makes a bundle from them again, as long as one bundle of the platform is
    left to say from which campaign.

    \b
    Examples:
      latfarm bundle remove -p local-onnxruntime1.31-fp32-1t
      latfarm bundle remove -p local-onnxruntime1.31-fp32-1t --model 0002
      latfarm bundle remove -p local-onnxruntime1.31-fp32-1t --all
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import promoted, remove

    if every and model:
        raise UsageError("--all removes every model, and --model one of them; leave out one")
    folder = load_config().bundles_dir
    gone = remove(folder, platform, every=every, number=model)
    left = promoted(folder).get(platform)
    if as_json:
        removed = [str(path) for path in gone]
        told = {"platform": platform, "removed": removed, "bundle": str(left) if left else None}
        output.json_text(told)
        return
    output.err().print("\n".join(f"{path} was removed" for path in gone))
    output.err().print(f"{platform} now uses {left}" if left else f"{platform} has no bundle now")


@app.command("export", cls=PlatformOnce)
def export_bundle(
    platform: inputs.Platform,
    path: Annotated[Path, typer.Argument(help="File to write.")],
    model: Model = "",
) -> None:
    """Copy the bundle in use of a platform to a file.

    \b
    Examples:
      latfarm bundle export -p local-onnxruntime1.31-fp32-1t laptop.zip
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import export

    with callers_umask():
        export(load_config().bundles_dir, platform, path, model)
    output.err().print(f"the bundle of {platform} was written to {path}")


@app.command("import")
def import_bundle(path: Annotated[Path, typer.Argument(help="File to read.")]) -> None:
    """Check the bundle in a file, and use it.

    It is put in use, unless it predicts the frozen set of its platform worse than the bundle in
    use. Then it is kept as a candidate.

    \b
    Examples:
      latfarm bundle import laptop.zip
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.entering import enter_model
    from latfarm_controller.training.new_bundle import take_in

    config = load_config()
    config.make_dirs()
    platform, kept = take_in(config.bundles_dir, path)
    entered = enter_model(kept, promote=True)
    output.err().print(f"the bundle of {platform} was copied to {kept}")
    output.err().print("\n".join(entered.sentences))


@app.command("retrain", cls=PlatformOnce)
def retrain_bundle(
    platform: inputs.Platform,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Make a platform's bundle again.

    It is made from the measurements of the bundle in use. Use this after an update of latfarm, so
    that the bundle gains what newer versions store. Nothing is measured and no board is needed. It
    is put in use, unless it predicts the frozen set worse. latfarm serve may run meanwhile: it
    gives a copy of the measurements, and this command computes.

    \b
    Examples:
      latfarm bundle retrain -p local-onnxruntime1.31-fp32-1t
    """
    from latfarm_predictors.gnn.learning.device import torch_module

    from latfarm_controller.api.readable_store import readable_store
    from latfarm_controller.cli.answers.fit_shown import fitted
    from latfarm_controller.config import load_config
    from latfarm_controller.training.training import read_again

    config = load_config()
    with readable_store(config, platform, wait_s, output.error) as store:
        inputs = read_again(store, config.bundles_dir, platform)
    if inputs.nnlp:
        torch_module()  # refuses now what would fail after minutes
    entered = fitted(config.bundles_dir, inputs, promote=True)
    if as_json:
        told = {"platform": platform, "bundle": str(entered.path)}
        output.json_text(told | entered.to_json())
        return
    output.err().print(f"the bundle of {platform} was written to {entered.path}")
    output.err().print("\n".join(entered.sentences))


@app.command("promote")
def promote_bundle(
    platform: inputs.Platform,
    model: Model = "",
    reason: Reason = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Promote it although it predicts the frozen set worse; give --reason."
        ),
    ] = False,
    as_json: inputs.Json = False,
) -> None:
    """Put the newest candidate in use.

    --model names another model. A model is refused where its error or its coverage on the frozen
    set of the platform is worse than that of the model in use, by more than the noise of the
    bootstrap over these networks.

    \b
    Examples:
      latfarm bundle promote -p local-onnxruntime1.31-fp32-1t
      latfarm bundle promote -p local-onnxruntime1.31-fp32-1t --model 0003 --reason "new cooling"
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.entering import promote_model

    folder = load_config().bundles_dir
    entered = promote_model(folder, platform, model, reason=reason, force=force)
    if as_json:
        output.json_text({"platform": platform, "bundle": str(entered.path), **entered.to_json()})
        return
    output.err().print("\n".join(entered.sentences))


@app.command("rollback")
def rollback_bundle(
    platform: inputs.Platform, reason: Reason = "", as_json: inputs.Json = False
) -> None:
    """Put the model before the present one in use.

    Doing it again goes back one model further.

    \b
    Examples:
      latfarm bundle rollback -p local-onnxruntime1.31-fp32-1t --reason "wrong after the update"
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.entering import roll_back

    before, now = roll_back(load_config().bundles_dir, platform, reason=reason)
    if as_json:
        output.json_text({"platform": platform, "model": now, "replaced": before})
        return
    output.err().print(f"{platform} uses model {now} again, instead of {before}")
