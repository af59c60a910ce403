"""`latfarm platforms`: what latencies can be measured and predicted here."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli import output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("platforms")(platforms)


def platforms(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the platforms of all boards, and the runtimes that are missing with the remedy.

    \b
    Examples:
      latfarm platforms
      latfarm platforms --json
    """
    from google.protobuf.json_format import MessageToDict

    from latfarm_controller.cli.connect import controller

    with controller() as client:
        found = client.platforms()
    if as_json:
        output.json_text([MessageToDict(p, preserving_proto_field_name=True) for p in found])
        return
    output.table(
        "",
        ["platform", "format", "boards", "bundle", "missing"],
        [[p.name or f"({p.runtime})", p.model_format, ", ".join(p.boards), p.bundle or "-", p.missing] for p in found],
    )
