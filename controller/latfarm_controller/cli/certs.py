"""`latfarm certs`: the farm's certificate authority, and who has a certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli import inputs, output

if TYPE_CHECKING:
    from latfarm_controller.agents.authority import Authority

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Certificates of this farm: its authority lies in `tls` of the home.

    \b
    Examples:
      latfarm certs init --name farm.example.org
      latfarm certs issue board-7 --role agent --name 192.0.2.7
      latfarm certs issue ada --role operator
      latfarm certs revoke board-7
      latfarm certs list
    """,
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="certs")


Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="host name or address that it is called by; may be repeated"),
]


@app.command()
def init(names: Names = None) -> None:
    """Make the authority, and this machine's certificate as the controller.

    \b
    Examples:
      latfarm certs init
      latfarm certs init --name farm.example.org --name 192.0.2.1
    """
    for path in _authority().init(names or []):
        output.err().print(f"made {path}")


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="who it is for")],
    role: Annotated[str, typer.Option(help="agent, controller, operator or viewer")],
    names: Names = None,
    request: Annotated[
        Path | None, typer.Option("--csr", help="sign this request; its key stays where it is")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="how long it holds")] = 365,
    replace: Annotated[
        bool, typer.Option("--replace", help="issue anew under a name that has one")
    ] = False,
) -> None:
    """Issue a certificate.

    A viewer may read, an operator may act; an agent's is a board's, for the address or name by
    which the board is called.

    \b
    Examples:
      latfarm certs issue board-7 --role agent --name 192.0.2.7
      latfarm certs issue board-8 --role agent --csr board-8.csr
      latfarm certs issue ada --role operator --days 90
    """
    path = _authority().issue(name, role, names or [], request=request, days=days, replace=replace)
    output.err().print(f"issued {path}" + ("" if request else f" and {path.with_suffix('.key')}"))


@app.command()
def revoke(
    which: Annotated[str, typer.Argument(help="name, certificate file or SHA-256 fingerprint")],
) -> None:
    """Shut a certificate out. The controller sees it at once; boards need the new revoked.json.

    \b
    Examples:
      latfarm certs revoke board-7
      latfarm certs revoke old/ada.crt
    """
    authority = _authority()
    found = authority.revoke(which)
    output.err().print(f"revoked {found}; give boards the new {authority.revoked_file}")


@app.command("list")
def list_certificates(as_json: inputs.Json = False) -> None:
    """List what was issued here.

    \b
    Examples:
      latfarm certs list
      latfarm certs list --json
    """
    found = _authority().list()
    if as_json:
        output.json_text(
            [
                {
                    "name": one.name,
                    "roles": list(one.roles),
                    "state": one.state,
                    "expires_s": one.expires_s,
                    "sha256": one.fingerprint,
                    "path": str(one.path),
                }
                for one in found
            ]
        )
        return
    rows = [
        [
            *(one.name, " ".join(one.roles), one.state),
            datetime.fromtimestamp(one.expires_s, UTC).date().isoformat(),
            one.fingerprint[:16],
        ]
        for one in found
    ]
    output.table("", ["name", "role", "state", "expires", "sha256"], rows)


def _authority() -> Authority:
    from latfarm_controller.agents.authority import Authority
    from latfarm_controller.config import load_config

    return Authority(load_config().tls_dir)
