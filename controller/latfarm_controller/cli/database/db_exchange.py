"""`latfarm db export` and `latfarm db import`: measurements to and from other farms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from latfarm_controller.cli.shell import filters, inputs, output

MOST_SHOWN = 20
"""Number of refused rows that are printed; --json tells all."""

Source = Annotated[
    str, typer.Option("--source", help="Who measured, such as the name of a lab or a citation.")
]
Licence = Annotated[
    str, typer.Option("--licence", help="Under which licence the measurements may be used.")
]
Method = Annotated[
    str, typer.Option("--method", help="How it was measured, in one sentence or as a citation.")
]
Kind = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        help="latfarm, nnlqp (gt.txt with its ONNX files), nnlqp-cells (cells.csv), help (HELP's "
        "NASBench-201 tables), ncnn (benchmarks.csv with models/*.param), or nn-meter (.jsonl "
        "files). Default: what the files in the folder are.",
    ),
]
OWN_METHOD = "latfarm, as docs/measuring.md describes"
"""How this farm measures, for exports."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("export")(export)
    app.command("import")(import_)


def export(
    folder: Annotated[Path, typer.Argument(help="New folder to write.")],
    source: Source,
    licence: Licence,
    method: Method = OWN_METHOD,
    platform: filters.Platform = "",
    campaign: filters.Campaign = "",
    purpose: filters.Purpose = "",
    csv: Annotated[
        bool, typer.Option("--csv", help="Write CSV. Default: Parquet, which is smaller.")
    ] = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Write this farm's measurements for another farm.

    Their graphs are written without weights. Discarded measurements and those of other farms are
    left out.

    \b
    Examples:
      latfarm db export ours --source "our lab" --licence CC-BY-4.0
      latfarm db export nets --source us --licence CC0-1.0 --purpose network --csv
    """
    from latfarm_controller.cli.database.performed import for_the_caller, performed

    written = performed(
        "export",
        {
            "folder": str(folder.absolute()),
            "origin": {"source": source, "licence": licence, "method": method},
            "selection": {"platform": platform, "campaign_id": campaign, "purpose": purpose},
            "form": "csv" if csv else "parquet",
        },
        wait_s,
    )
    for_the_caller(folder)
    if as_json:
        output.json_text({**written, "folder": str(folder)})
        return
    output.err().print(
        f"{written['measurements']} measurements of {written['graphs']} graphs were written to "
        f"{folder}"
    )


def import_(
    folder: Annotated[
        Path, typer.Argument(help="What latfarm db export wrote, or the files of another project.")
    ],
    kind: Kind = "",
    source: Source = "",
    licence: Licence = "",
    method: Method = "",
    own: Annotated[
        bool,
        typer.Option(
            "--own",
            help="The measurements are this farm's own, such as a backup: they answer questions "
            "like measurements that were taken here.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read everything and tell what would be taken, but change nothing."
        ),
    ] = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Take in measurements of another farm or project.

    All good rows are taken, or after a failure none. They answer questions only with latfarm query
    --foreign, and train no bundle. What is known already is not taken twice. An interrupted import
    goes on where it stopped. Rows that are none are told with their line, and the exit code is then
    1. Origin, licence and method are as the files tell them, unless they are given.

    \b
    Examples:
      latfarm db import theirs --dry-run
      latfarm db import backup --own
      latfarm db import nnlqp/multi_platform --licence "as its authors say"
    """
    from latfarm_controller.cli.database.performed import performed

    options = {
        "folder": str(folder.absolute()),
        "format": kind,
        "origin": {"source": source, "licence": licence, "method": method},
        "own": own,
        "dry_run": dry_run,
    }
    found = performed("import", options, wait_s, make=True, bars=True)
    if as_json:
        output.json_text(found)
    else:
        _tell(found, folder)
    return 1 if found["refused_rows"] else 0


def _tell(found: dict[str, Any], folder: Path) -> None:
    for refused in found["refused"][:MOST_SHOWN]:
        output.error(f"{refused['file']}:{refused['line']}: {refused['reason']}")
    if found["refused_rows"] > MOST_SHOWN:
        output.error(f"and {found['refused_rows'] - MOST_SHOWN} more rows; --json tells each")
    for warning in found["warnings"]:
        output.error(f"warning: {warning}")
    if found["imported_before"]:
        output.err().print(f"{folder} was imported before; nothing is changed")
        return
    would = "would be " if found["dry_run"] else ""
    output.err().print(f"source: {found['origin']['source']}; {found['origin']['licence']}")
    output.err().print(f"method: {found['origin']['method']}")
    output.err().print(
        f"{found['added']} measurements and {found['graphs']} graphs {would or 'are '}new, "
        f"{found['known']} measurements were known, {found['refused_rows']} rows were refused"
    )
