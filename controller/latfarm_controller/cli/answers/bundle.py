"""`latfarm bundle`: list, show, export, import and retrain the bundles that hold predictors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.private_files import callers_umask

app = typer.Typer(
    rich_markup_mode=None,
    help="""
    Bundles: files that hold what predictions need.

    latfarm characterize writes them, and latfarm predict reads them. Without a subcommand, list
    them.

    \b
    Examples:
      latfarm bundle list
      latfarm bundle show -p local-onnxruntime1.31-fp32-1t
      latfarm bundle export -p local-onnxruntime1.31-fp32-1t pixel.zip
      latfarm bundle import pixel.zip
    """,
)


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
    if not context.invoked_subcommand:
        list_bundles(as_json)


@app.command("list")
def list_bundles(as_json: inputs.Json = False) -> None:
    """List the platforms that have a bundle.

    The file of the newest bundle stands beside each.

    \b
    Examples:
      latfarm bundle list
      latfarm bundle list --json
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import newest

    found = newest(load_config().bundles_dir)
    if as_json:
        output.json_text([{"platform": p, "path": str(path)} for p, path in found.items()])
        return
    output.table("", ["platform", "bundle"], [[p, str(path)] for p, path in found.items()])


@app.command("show", cls=PlatformOnce)
def show_bundle(
    platform: inputs.BundlePlatform = "",
    coverage: Annotated[
        float, typer.Option(min=0.5, max=0.99, help="Coverage of the intervals to tell about.")
    ] = 0.9,
    as_json: inputs.Json = False,
) -> None:
    """Show what a bundle was made from, and what it promises.

    It is the newest bundle of the platform.

    \b
    Examples:
      latfarm bundle show
      latfarm bundle show -p local-onnxruntime1.31-fp32-1t
      latfarm bundle show -p local-onnxruntime1.31-fp32-1t --coverage 0.8 --json
    """
    from latfarm_predictors.bundle import read_provenance

    from latfarm_controller.campaigns.host_noise import HostNoise, counts_told
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import choose, load

    path = choose(load_config().bundles_dir, platform)
    told, predictor = read_provenance(path), load(path)
    promised = predictor.correction.calibration.guarantee(coverage)
    if as_json:
        shown = told | {"guarantee": promised.to_json(), "path": str(path)}
        output.json_text(shown | {"slow_core": predictor.slow_core.to_json()})
        return
    core, noise = predictor.slow_core, HostNoise.from_json(told.get("host_noise"))
    counts = counts_told(told.get("steadiness", {}))
    rows = [
        ("bundle", str(path)),
        ("made at", str(told.get("trained_at", "unknown"))),
        ("kernels", str(told.get("kernels", "unknown"))),
        ("calibration networks", str(len(told.get("networks", ())))),
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
            "--all", help="Remove all bundles of the platform, instead of the newest one alone."
        ),
    ] = False,
    as_json: inputs.Json = False,
) -> None:
    """Remove the newest bundle of a platform.

    The one before it, if any, is used again. Measurements stay in the store: latfarm bundle retrain
    makes a bundle from them again, as long as one bundle of the platform is left to say from which
    campaign.

    \b
    Examples:
      latfarm bundle remove -p local-onnxruntime1.31-fp32-1t
      latfarm bundle remove -p local-onnxruntime1.31-fp32-1t --all
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import newest, remove

    folder = load_config().bundles_dir
    gone = remove(folder, platform, every=every)
    left = newest(folder).get(platform)
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
) -> None:
    """Copy the newest bundle of a platform to a file.

    \b
    Examples:
      latfarm bundle export -p local-onnxruntime1.31-fp32-1t laptop.zip
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import export

    with callers_umask():
        export(load_config().bundles_dir, platform, path)
    output.err().print(f"the bundle of {platform} was written to {path}")


@app.command("import")
def import_bundle(path: Annotated[Path, typer.Argument(help="File to read.")]) -> None:
    """Check the bundle in a file, and use it.

    It becomes the newest bundle of its platform.

    \b
    Examples:
      latfarm bundle import laptop.zip
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import take_in

    config = load_config()
    config.make_dirs()
    platform, kept = take_in(config.bundles_dir, path)
    output.err().print(f"the bundle of {platform} was copied to {kept}")


@app.command("retrain", cls=PlatformOnce)
def retrain_bundle(
    platform: inputs.Platform,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Make a platform's bundle again.

    It is made from the measurements of the newest bundle. Use this after an update of latfarm, so
    that the bundle gains what newer versions store. Nothing is measured and no board is needed. It
    cannot run while latfarm serve runs.

    \b
    Examples:
      latfarm bundle retrain -p local-onnxruntime1.31-fp32-1t
    """
    from latfarm_controller.cli.shell.progress import StageBars, bars
    from latfarm_controller.config import load_config
    from latfarm_controller.store.duckdb import DuckDBStore
    from latfarm_controller.store.lock import StoreLock
    from latfarm_controller.training.training import retrain

    config = load_config()
    config.make_dirs()
    lock = StoreLock(config.lock_file)
    lock.acquire(1000.0 * wait_s)
    with lock:
        store = DuckDBStore(config.store_file)
        try:
            with bars() as progress:
                stages = StageBars(progress)
                path = retrain(config, store, platform, on_progress=stages.show)
                stages.finish()
        finally:
            store.close()
    if as_json:
        output.json_text({"platform": platform, "bundle": str(path)})
        return
    output.err().print(f"the bundle of {platform} was written to {path}")
