"""`latfarm platforms`: the platforms whose latencies can be measured or predicted."""

from __future__ import annotations

import typer

from latfarm_controller.cli.shell import inputs, output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("platforms")(platforms)


def platforms(
    tags: inputs.Tags = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """List the platforms of all boards.

    The runtimes that boards lack are listed as well, with remedies.

    \b
    Examples:
      latfarm platforms
      latfarm platforms --json
      latfarm platforms --tag jetson --tag lab2
    """
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        found = client.platforms(tags or ())
    if as_json:
        output.json_text([platform.to_json() for platform in found])
        return
    output.table(
        "",
        ["platform", "format", "boards", "bundle", "missing"],
        [
            [
                p.name or f"({p.runtime})",
                p.model_format,
                ", ".join(p.boards),
                p.bundle or "-",
                p.missing,
            ]
            for p in found
        ],
    )
