"""`latfarm audit`: who started campaigns, changed certificates, or enrolled boards."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit", cls=formerly({"--last": "--limit"}))(audit)


def audit(
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Largest number of entries to list. 0: all.")
    ] = 50,
    as_json: inputs.Json = False,
) -> None:
    """List who did what in this home, newest first.

    It tells about campaigns, certificates and boards. Users of this machine are shown as unix:NAME,
    and others by the name in their certificate. The log is the file audit.jsonl in the home.

    \b
    Examples:
      latfarm audit
      latfarm audit --limit 0 --json
    """
    from latfarm_controller.audit import AuditLog
    from latfarm_controller.config import load_config

    found = AuditLog(load_config().audit_file).entries()[::-1]
    found = found[:limit] if limit else found
    if as_json:
        output.json_text([entry.to_json() for entry in found])
        return
    rows = [
        [
            datetime.fromtimestamp(entry.at_s).astimezone().isoformat(" ", "seconds"),
            *(entry.actor, entry.action, entry.subject),
            " ".join(f"{key}={_text(value)}" for key, value in entry.details.items() if value),
        ]
        for entry in found
    ]
    output.table(
        "",
        ["when", "by", "action", "what", "details"],
        rows,
        empty="nothing was done in this home yet",
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
