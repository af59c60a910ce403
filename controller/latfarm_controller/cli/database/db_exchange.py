"""`latfarm db export` and `latfarm db import`: measurements to and from other farms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_controller.store.exchange.importing import Imported

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
    platform: Annotated[
        str, typer.Option("--platform", "-p", help="Only measurements of this platform.")
    ] = "",
    campaign: Annotated[
        str, typer.Option("--campaign", help="Only measurements of the campaign with this id.")
    ] = "",
    purpose: Annotated[
        str, typer.Option("--purpose", help="Only measurements of this purpose.")
    ] = "",
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
    from latfarm_controller.cli.database.opened import opened
    from latfarm_controller.store.exchange.exporting import Selection
    from latfarm_controller.store.exchange.exporting import export as write
    from latfarm_controller.store.exchange.form import Origin

    origin = Origin(source, licence, method)
    with opened(wait_s) as file, callers_umask():
        written = write(
            file,
            folder,
            origin,
            Selection(platform, campaign, purpose),
            "csv" if csv else "parquet",
        )
    if as_json:
        output.json_text({"folder": str(folder), **written.to_json()})
        return
    output.err().print(
        f"{written.measurements} measurements of {written.graphs} graphs were written to {folder}"
    )


def import_(
    folder: Annotated[Path, typer.Argument(help="What latfarm db export wrote.")],
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
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Take in measurements of another farm.

    All good rows are taken, or after a failure none. They answer questions only with latfarm query
    --foreign, and train no bundle. What is known already is not taken twice. An interrupted import
    goes on where it stopped. Rows that are none are told with their line, and the exit code is then
    1. Origin, licence and method are as the files tell them, unless they are given.

    \b
    Examples:
      latfarm db import theirs
      latfarm db import backup --own
      latfarm db import theirs --source "their lab, 2026" --json
    """
    from dataclasses import replace

    from latfarm_controller.cli.database.opened import opened
    from latfarm_controller.store.exchange.importing import Importer
    from latfarm_controller.store.exchange.reading import LatfarmReader

    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; check the path")
    reader = LatfarmReader(folder)
    given = {"source": source, "licence": licence, "method": method}
    origin = replace(reader.origin, **{name: text for name, text in given.items() if text})
    with opened(wait_s, make=True) as file:
        found = Importer(file, reader, origin, own=own).run()
    if as_json:
        output.json_text(_json(found))
    else:
        _tell(found, folder)
    return 1 if found.refused_rows else 0


def _json(found: Imported) -> dict[str, Any]:
    return {
        "import_id": found.import_id,
        "own": found.own,
        "measurements": found.told,
        "added": found.added,
        "known": found.known,
        "graphs": found.graphs,
        "refused": [
            {"file": each.file, "line": each.line, "reason": each.reason} for each in found.refused
        ],
        "refused_rows": found.refused_rows,
        "warnings": found.warnings,
        "imported_before": found.again,
    }


def _tell(found: Imported, folder: Path) -> None:
    for refused in found.refused[:MOST_SHOWN]:
        output.error(str(refused))
    if found.refused_rows > MOST_SHOWN:
        output.error(f"and {found.refused_rows - MOST_SHOWN} more rows; --json tells each")
    for warning in found.warnings:
        output.error(f"warning: {warning}")
    if found.again:
        output.err().print(f"{folder} was imported before; nothing is changed")
        return
    output.err().print(
        f"{found.added} measurements and {found.graphs} graphs are new, {found.known} measurements "
        f"were known, {found.refused_rows} rows were refused"
    )
