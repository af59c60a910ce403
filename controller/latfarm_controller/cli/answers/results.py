"""`latfarm results`: stored measurements, listed or exported."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import callers_umask

app = typer.Typer(
    rich_markup_mode=None,
    help="""
    Stored measurements, newest first. Without a subcommand, list them.

    \b
    Examples:
      latfarm results --limit 20
      latfarm results --campaign demo --purpose network --json
      latfarm results --purpose query --energy
      latfarm results export measurements.parquet
      latfarm results export measurements.csv --platform local-onnxruntime1.31-fp32-1t
    """,
)
Platform = Annotated[
    str, typer.Option("--platform", "-p", help="Only measurements of this platform.")
]
CampaignOption = Annotated[
    str,
    typer.Option("--campaign", help="Only measurements of this campaign, named by its id or name."),
]
Purpose = Annotated[
    str,
    typer.Option(
        help="Only measurements of this purpose: fusion, kernel, network, sentinel or query."
    ),
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="results")


@app.callback(invoke_without_command=True)
def list_results(
    context: typer.Context,
    platform: Platform = "",
    campaign: CampaignOption = "",
    purpose: Purpose = "",
    limit: Annotated[
        int, typer.Option(min=0, help="Largest number of measurements to list. 0: all.")
    ] = 50,
    energy: Annotated[
        bool, typer.Option("--energy", help="Show the energy of an inference, too.")
    ] = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """List the measurements."""
    if context.invoked_subcommand:
        return
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        found = list(
            islice(
                client.results(
                    platform=platform, campaign_id=campaign, purpose=purpose, limit=limit
                ),
                limit or None,
            )
        )
    if as_json:
        output.json_text([output.measurement_json(m) for m in found])
        return
    output.table(
        "",
        [
            *("graph", "platform", "purpose", *output.LATENCY_HEADER),
            *(output.ENERGY_HEADER if energy else ()),
            *("runs", "outcome"),
        ],
        [
            [
                m.graph_hash[:12],
                m.platform,
                m.purpose,
                *output.latency_cells(m, 4),
                *(output.energy_cells(m) if energy else ()),
                str(m.runs),
                m.error_code or output.stability(m) or str(m.outcome),
            ]
            for m in found
        ],
    )


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="File to write, named *.csv or *.parquet.")],
    platform: Platform = "",
    campaign: CampaignOption = "",
    purpose: Purpose = "",
    wait_s: inputs.Wait = 0.0,
) -> None:
    """Write measurements as CSV or Parquet.

    \b
    Examples:
      latfarm results export measurements.parquet
      latfarm results export nets.csv --purpose network -p local-onnxruntime1.31-fp32-1t
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.store.snapshot import write_measurements

    if path.suffix not in {".csv", ".parquet"}:
        raise UsageError(f"{path}: the name of the file must end in .csv or .parquet")
    with controller(wait_s) as client:
        found = client.results(platform=platform, campaign_id=campaign, purpose=purpose)
        with callers_umask():
            rows = write_measurements(path, found)
    output.err().print(f"{rows} measurements were written to {path}")
