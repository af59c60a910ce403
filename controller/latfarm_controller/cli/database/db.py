"""`latfarm db`: what the store holds, whether it is sound, and how to copy, clean and repair it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfarm_controller.cli.database import db_exchange
from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    The store: look into it, check it, copy and exchange it.
    While latfarm serve runs, it does what these commands ask for; repair needs it to be stopped.

    \b
    Examples:
      latfarm db info
      latfarm db verify
      latfarm db export measurements --licence CC-BY-4.0 --source "our lab"
      latfarm db import measurements --dry-run
    """,
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="db")


db_exchange.register(app)


@app.command()
def info(wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> None:
    """Show what the store holds: size, platforms and imports.

    Platforms of other farms and losses that were noticed are told, too.

    \b
    Examples:
      latfarm db info
      latfarm db info --json
    """
    from latfarm_controller.cli.database.performed import performed

    told = performed("info", {}, wait_s)
    if as_json:
        output.json_text(told)
        return
    rows = [
        ("file", told["path"]),
        ("size, bytes", str(told["size_bytes"])),
        ("write-ahead log, bytes", str(told["log_bytes"])),
        ("bytes for each measurement", str(told["bytes_per_measurement"])),
        ("version of the schema", str(told["schema_version"])),
        *((name.replace("_", " "), str(count)) for name, count in told["rows"].items()),
        ("discarded measurements", str(told["discarded"])),
        ("different networks", str(told["networks"])),
    ]
    output.table("", ["", ""], [list(row) for row in rows])
    output.table(
        "Platforms",
        ["platform", "measurements", "good", "graphs"],
        [
            [each["platform"], *(str(each[name]) for name in ("measurements", "good", "graphs"))]
            for each in told["platforms"]
        ],
    )
    if told["foreign_platforms"]:
        header = ["platform", "measurements", "graphs", "source"]
        output.table(
            "Platforms of others",
            header,
            [[str(each[name]) for name in header] for each in told["foreign_platforms"]],
        )
    if told["imports"]:
        header = ["source", "licence", "kind", "state", "added"]
        output.table(
            "Imports", header, [[str(each[name]) for name in header] for each in told["imports"]]
        )
    for loss in told["losses"]:
        output.error(loss["story"])


@app.command()
def verify(wait_s: inputs.Wait = 0.0, as_json: inputs.Json = False) -> int:
    """Read every row and every graph, and compute all hashes anew.

    The exit code is 1 if anything is wrong.

    \b
    Examples:
      latfarm db verify
      latfarm db verify --json
    """
    from latfarm_controller.cli.database.performed import performed

    found = performed("verify", {}, wait_s, bars=True)
    if as_json:
        output.json_text(found)
    else:
        for story in (*found["losses"], *found["faults"]):
            output.error(story)
        if found["more_faults"]:
            output.error(f"and {found['more_faults']} more")
        told = "sound" if found["sound"] else "not sound"
        output.out().print(
            f"{found['measurements']} measurements and {found['graphs']} graphs were read: {told}"
        )
    return 0 if found["sound"] else 1


@app.command()
def snapshot(
    folder: Annotated[Path, typer.Argument(help="Folder to write; an older snapshot is replaced.")],
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Write all tables as Parquet, as of one moment.

    Other programs can read them.

    \b
    Examples:
      latfarm db snapshot backup
    """
    from latfarm_controller.cli.database.performed import for_the_caller, performed

    told = performed("snapshot", {"folder": str(folder.absolute())}, wait_s, make=True)
    for_the_caller(folder)
    rows = told["rows"]
    if as_json:
        output.json_text({**told, "folder": str(folder)})
        return
    output.err().print(f"{sum(rows.values())} rows of {len(rows)} tables were written to {folder}")


@app.command()
def gc(
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove it. Without this, it is only counted.")
    ] = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Count what nothing refers to any more, or remove it.

    That is: discarded measurements, unfinished imports, and graphs without measurements. Whatever
    the provenance of a bundle names always stays.

    \b
    Examples:
      latfarm db gc
      latfarm db gc --remove
    """
    from latfarm_controller.cli.database.performed import performed

    found = performed("gc", {"remove": remove}, wait_s)
    if as_json:
        output.json_text(found)
        return
    done = "were removed" if remove else "can be removed with --remove"
    output.err().print(
        f"{found['discarded']} discarded measurements, {found['staged']} rows of unfinished "
        f"imports and {found['graphs']} graphs {done}; {found['protected']} discarded measurements "
        "stay, because a bundle was made from their campaign"
    )


@app.command(cls=formerly({"--to": "--output"}))
def repair(
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write. Default: beside the store, with the suffix .repaired.",
        ),
    ] = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Write what is readable of a damaged store anew.

    It goes into a new file, and what is lost is listed. The damaged store is only read, and
    latfarm serve must not run. Exit code 1 if something is lost.

    \b
    Examples:
      latfarm db repair
      latfarm db repair --output saved.duckdb --json
    """
    from latfarm_controller.api.database_client import held
    from latfarm_controller.config import load_config
    from latfarm_controller.store.log_file import log_of
    from latfarm_controller.store.upkeep.repair import repair as save

    config = load_config()
    with held(config, wait_s):
        store = config.store_file
        target = to or store.with_name(f"{store.name}.repaired")
        found = save(store, target, lambda table: output.err().print(f"reading {table}"))
    if as_json:
        output.json_text(
            {
                "path": str(found.path),
                "kept": found.kept,
                "lost": found.lost,
                "log_bytes": found.log_bytes,
                "log_used_bytes": found.log_used_bytes,
            }
        )
    else:
        for story in found.lost:
            output.error(f"lost: {story}")
        output.err().print(
            f"{sum(found.kept.values())} rows were written to {target}. To use this file, move "
            f"{store} and {log_of(store).name} away, then move it to {store}."
        )
    return 1 if found.lost else 0
