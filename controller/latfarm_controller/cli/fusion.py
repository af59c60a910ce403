"""`latfarm fusion`: which ops a platform's runtime executes as one kernel."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli import inputs, output

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Fusion rules of a platform, as detected.

    \b
    Examples:
      latfarm fusion show -p local-onnxruntime1.31-fp32-1t
      latfarm fusion show -p local-onnxruntime1.31-fp32-1t --json
    """,
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="fusion")


@app.callback()
def fusion() -> None:
    """Keep `show` a subcommand of its own."""


@app.command()
def show(
    platform: Annotated[
        str, typer.Option("--platform", "-p", help="may be left out where one bundle is known")
    ] = "",
    as_json: inputs.Json = False,
) -> None:
    """Show the rules in the newest bundle of a platform.

    \b
    Examples:
      latfarm fusion show -p local-onnxruntime1.31-fp32-1t
      latfarm fusion show --json
    """
    from latfarm_controller.bundles import open_bundle
    from latfarm_controller.config import load_config

    rules = open_bundle(load_config().bundles_dir, platform).rules
    if as_json:
        output.json_text(rules.to_json())
        return
    output.table(
        f"{rules.platform}: multi-inbound {rules.multi_inbound}, "
        f"multi-outbound {rules.multi_outbound} (0 none, 1 first, 2 last branch)",
        ["op", "followed by", "runs"],
        [
            [first, second, {"fused": "as one kernel", "separate": "apart"}.get(verdict, verdict)]
            for (first, second), verdict in sorted(rules.pairs.items())
        ],
    )
