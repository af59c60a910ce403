"""`latfarm certs`: the farm's certificate authority, and who has a certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from latfarm_controller.agents.authority import Authority
    from latfarm_controller.agents.ca_rotation import CaRotation

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
      latfarm certs authority show
    """,
)
authority_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Replace the authority while the farm works: begin, switch, finish.

    After each step everybody needs the new ca.crt, after `switch` new certificates too, before the
    next step is done. For boards ansible/rotate-certs.yml does all of it.

    \b
    Examples:
      latfarm certs authority show
      latfarm certs authority begin
      latfarm certs authority switch
      latfarm certs authority finish
    """,
)
app.add_typer(authority_app, name="authority")


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


@authority_app.command()
def show(as_json: inputs.Json = False) -> None:
    """Who is trusted now, how far a change is, and who would be left behind by its end.

    \b
    Examples:
      latfarm certs authority show
      latfarm certs authority show --json
    """
    succession = _succession()
    trusted, left = succession.trusted(), succession.left_behind()
    if as_json:
        output.json_text(
            {
                "step": str(succession.step),
                "trusted": [
                    {
                        "name": one.name,
                        "sha256": one.fingerprint,
                        "expires_s": one.expires_s,
                        "signs": one.signs,
                    }
                    for one in trusted
                ],
                "left_behind": left,
            }
        )
        return
    rows = [
        [
            one.name,
            "signs" if one.signs else "trusted",
            datetime.fromtimestamp(one.expires_s, UTC).date().isoformat(),
            one.fingerprint[:16],
        ]
        for one in trusted
    ]
    output.table("", ["authority", "state", "expires", "sha256"], rows)
    if left:
        output.err().print(f"not signed by the first: {', '.join(left)}")


@authority_app.command()
def begin(
    days: Annotated[int, typer.Option(min=1, help="how long the next authority holds")] = 3650,
) -> None:
    """Make the next authority and trust it beside the present one, which still signs.

    \b
    Examples:
      latfarm certs authority begin
    """
    _succession().begin(days=days)
    path = _authority().cert
    output.err().print(f"{path} holds both authorities: give it to boards and people, then switch")


@authority_app.command()
def switch() -> None:
    """Sign with the next authority; this machine's own certificate is issued anew at once.

    \b
    Examples:
      latfarm certs authority switch
    """
    succession = _succession()
    succession.switch()
    left = ", ".join(succession.left_behind()) or "none of those listed here"
    output.err().print(f"the next authority signs; to be issued anew, then finish: {left}")


@authority_app.command()
def finish(
    force: Annotated[
        bool, typer.Option("--force", help="also if valid certificates of the old one are known")
    ] = False,
) -> None:
    """Trust the old authority no more: what it signed is worth nothing.

    \b
    Examples:
      latfarm certs authority finish
    """
    _succession().finish(force=force)
    output.err().print(f"one authority again; give boards and people the new {_authority().cert}")


def _succession() -> CaRotation:
    from latfarm_controller.agents.ca_rotation import CaRotation

    return CaRotation(_authority())


def _authority() -> Authority:
    from latfarm_controller.agents.authority import Authority
    from latfarm_controller.config import load_config

    return Authority(load_config().tls_dir)
