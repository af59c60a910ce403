"""`latfarm results`: stored measurements, listed or exported."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import filters, inputs, output, subcommands
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_predictors.measurement import Measurement

app = typer.Typer(
    rich_markup_mode=None,
    help="""
    Stored measurements, newest first. Without a subcommand, list them.

    \b
    Examples:
      latfarm results --limit 20
      latfarm results --campaign demo --purpose network --json
      latfarm results --purpose query --energy
      latfarm results --foreign -p gpu-T4-trt7.1-fp32
      latfarm results export measurements.parquet
      latfarm results export measurements.csv --platform local-onnxruntime1.31-fp32-1t
    """,
)
Foreign = Annotated[
    bool,
    typer.Option(
        "--foreign",
        help="List measurements of other farms, too (latfarm db import), with their source, "
        "licence and method.",
    ),
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="results")


@app.callback(invoke_without_command=True)
def list_results(
    context: typer.Context,
    platform: filters.Platform = "",
    campaign: filters.Campaign = "",
    purpose: filters.Purpose = "",
    limit: Annotated[
        int, typer.Option(min=0, help="Largest number of measurements to list. 0: all.")
    ] = 50,
    energy: Annotated[
        bool, typer.Option("--energy", help="Show the energy of an inference, too.")
    ] = False,
    foreign: Foreign = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """List the measurements."""
    if subcommands.named(context):
        return
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        told = client.detailed_results(
            platform=platform, campaign_id=campaign, purpose=purpose, limit=limit, foreign=foreign
        )
        found = list(islice(told, limit or None))
    if as_json:
        output.json_text([_as_dict(measurement, details) for measurement, details in found])
        return
    output.table(
        "",
        [
            *("graph", "network or kernel", "platform", "purpose", "campaign", "measured at"),
            *output.LATENCY_HEADER,
            *(output.ENERGY_HEADER if energy else ()),
            *("runs", "outcome"),
            *(("origin",) if foreign else ()),
        ],
        [
            [
                m.graph_hash[:12],
                details.get("kernel") or details.get("network", ""),
                m.platform,
                m.purpose,
                details.get("campaign", ""),
                _when(m),
                *output.latency_cells(m, 4),
                *(output.energy_cells(m) if energy else ()),
                str(m.runs),
                m.error_code or output.stability(m) or str(m.outcome),
                *((_origin(m),) if foreign else ()),
            ]
            for m, details in found
        ],
        empty="no such measurement yet; latfarm query MODEL --platform PLATFORM makes one",
    )


def _origin(measurement: Measurement) -> str:
    """Source, licence and method of a measurement of another farm; empty for an own one."""
    from latfarm_controller.store.base import FOREIGN

    told = (measurement.conditions.get(name, "") for name in FOREIGN)
    return ", ".join(text for text in told if text)


def _when(measurement: Measurement) -> str:
    """When a measurement was received, in Coordinated Universal Time, to the minute."""
    from latfarm_controller.cli.answers.results_file import moment

    found = moment(measurement.told_at_s)
    return "" if found is None else found.strftime("%Y-%m-%d %H:%M")


def _as_dict(measurement: Measurement, details: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement and its details as plain JSON types, with times as ISO 8601 has them."""
    from latfarm_controller.cli.answers.results_file import moment

    told = output.measurement_json(measurement) | dict(details)
    for name in ("measured_at", "received_at"):
        found = moment(getattr(measurement, f"{name}_s"))
        told[name] = None if found is None else found.isoformat()
    return told


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="File to write, named *.csv or *.parquet.")],
    platform: filters.Platform = "",
    campaign: filters.Campaign = "",
    purpose: filters.Purpose = "",
    foreign: Foreign = False,
    wait_s: inputs.Wait = 0.0,
) -> None:
    """Write measurements as CSV or Parquet.

    Each has its network, kernel and campaign. Times are timestamps, and in Parquet layers, settings
    and conditions are nested types. The folder of the file must exist.

    \b
    Examples:
      latfarm results export measurements.parquet
      latfarm results export nets.csv --purpose network -p local-onnxruntime1.31-fp32-1t
    """
    from latfarm_controller.cli.answers.results_file import check_path, write_results
    from latfarm_controller.cli.shell.connect import controller

    check_path(path)
    with controller(wait_s) as client:
        found = client.detailed_results(
            platform=platform, campaign_id=campaign, purpose=purpose, foreign=foreign
        )
        with callers_umask():
            rows = write_results(path, found)
    output.err().print(f"{rows} measurements were written to {path}")
