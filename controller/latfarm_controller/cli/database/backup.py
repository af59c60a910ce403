"""`latfarm backup`: back the whole home of a controller up, and restore it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import UsageError

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Back the whole home up, and restore it.
    A backup holds the store, boards, certificates, bundles, settings and the audit log, and is as
    secret as the home. It holds no passphrase, log or report.

    \b
    Examples:
      latfarm backup create /srv/backups --keep 14
      latfarm backup list /srv/backups
      latfarm backup restore /srv/backups --replace
    """,
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="backup")


Folder = Annotated[Path, typer.Argument(help="Folder in which the backups lie.")]
Backup = Annotated[
    Path, typer.Argument(help="A backup, or a folder of backups: then its newest one.")
]


@app.command()
def create(
    folder: Folder,
    keep: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of newest backups to keep in the folder; older ones are removed. 0: all.",
        ),
    ] = 0,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Make a backup of the home, also while latfarm serve runs.

    The store is copied as of one moment. The backup has the time in its name, and the hash of each
    of its files in manifest.json.

    \b
    Examples:
      latfarm backup create /srv/backups
      latfarm backup create /srv/backups --keep 14
    """
    from latfarm_controller.api.database_client import perform_at_home
    from latfarm_controller.backups.manifest import read_manifest
    from latfarm_controller.backups.shelf import make_backup, prune
    from latfarm_controller.config import load_config

    config = load_config()

    def copy_store(target: Path) -> None:
        options = {"file": str(target)}
        perform_at_home(config, "copy", options, wait_s=wait_s, on_wait=output.error)

    made = make_backup(config, folder.absolute(), copy_store)
    manifest = read_manifest(made)
    removed = prune(folder.absolute(), keep) if keep else []
    if as_json:
        gone = [path.name for path in removed]
        output.json_text({"backup": str(made), **manifest.summary(), "removed": gone})
        return
    for story in manifest.refused:
        output.error(f"not in the backup: {story}")
    output.err().print(
        f"{made}: {len(manifest.files)} files, {manifest.size_bytes} bytes, "
        f"{manifest.measurements} measurements"
        + (f"; {len(removed)} older backups were removed" if removed else "")
    )


@app.command("list")
def list_(folder: Folder, as_json: inputs.Json = False) -> None:
    """List the backups in a folder, the oldest first.

    \b
    Examples:
      latfarm backup list /srv/backups
      latfarm backup list /srv/backups --json
    """
    from latfarm_controller.backups.manifest import read_manifest
    from latfarm_controller.backups.shelf import backups_in

    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; latfarm backup create makes it")
    found = [(path, read_manifest(path)) for path in backups_in(folder)]
    if as_json:
        output.json_text([{"backup": str(path), **each.summary()} for path, each in found])
        return
    rows = [
        [
            *(path.name, _local(each.made_at_s), each.host, each.latfarm),
            *(str(each.measurements), str(each.size_bytes)),
        ]
        for path, each in found
    ]
    header = ["backup", "made", "host", "latfarm", "measurements", "bytes"]
    output.table("", header, rows, empty="no backup yet; latfarm backup create makes one")


@app.command()
def verify(backup: Backup, as_json: inputs.Json = False) -> None:
    """Read every file of a backup and compare it with its hash.

    The exit code is 1 if one is missing or damaged.

    \b
    Examples:
      latfarm backup verify /srv/backups
      latfarm backup verify /srv/backups/latfarm-20260102T030000Z
    """
    from latfarm_controller.backups.manifest import verify_backup
    from latfarm_controller.backups.shelf import newest_backup

    found = newest_backup(backup)
    manifest = verify_backup(found)
    if as_json:
        output.json_text({"backup": str(found), **manifest.summary()})
        return
    output.out().print(f"{found}: {len(manifest.files)} files were read: sound")


@app.command()
def restore(
    backup: Backup,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the state that the home has; it is kept beside."),
    ] = False,
    as_json: inputs.Json = False,
) -> None:
    """Give the home the state of a backup. No latfarm serve of this home may run.

    A home with state needs --replace; its former state is kept in a folder replaced-... in the
    home. Certificates that were revoked since the backup stay revoked.

    \b
    Examples:
      latfarm --home /srv/latfarm backup restore /srv/backups
      latfarm backup restore /srv/backups/latfarm-20260102T030000Z --replace
    """
    from latfarm_controller.backups.restore import restore_backup
    from latfarm_controller.backups.shelf import newest_backup
    from latfarm_controller.config import load_config

    config = load_config()
    found = newest_backup(backup)
    done = restore_backup(config, found, replace=replace)
    replaced = None if done.replaced is None else str(done.replaced)
    if as_json:
        told: dict[str, Any] = {"backup": str(found), **done.manifest.summary()}
        output.json_text({**told, "replaced": replaced, "still_revoked": done.revoked})
        return
    output.err().print(
        f"{config.home} has the state of {_local(done.manifest.made_at_s)}, from {found}"
    )
    if replaced is not None:
        output.err().print(f"its former state is in {replaced}; remove it when you are sure")
    if done.revoked:
        output.err().print(f"{done.revoked} certificates revoked since then stay revoked")
    if done.manifest.home != str(config.home):
        output.error(
            f"the backup is of {done.manifest.home}: paths that boards.json and latfarm.toml name "
            "there are as they were"
        )


def _local(at_s: float) -> str:
    """A time as people of this machine write it."""
    return datetime.fromtimestamp(at_s).astimezone().isoformat(" ", "seconds")
