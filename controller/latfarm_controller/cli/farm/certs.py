"""`latfarm certs`: the farm's certificate authority, and the certificates that it issues."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.private_files import private_home

if TYPE_CHECKING:
    from latfarm_controller.agents.authority import Authority
    from latfarm_controller.agents.ca_rotation import CaRotation

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Certificates of this farm. Its certificate authority is kept in the folder tls of the home.

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
    Replace the authority while the farm works, in three steps: begin, switch, finish.

    After each step, give the new ca.crt to all boards and people before you take the next step.
    After switch they need new certificates, too. ansible/rotate-certs.yml does this for boards.

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
    typer.Option("--name", help="Host name or address under which it is reached. May be repeated."),
]


@app.command()
def init(names: Names = None) -> None:
    """Make the authority, and a controller's certificate for this machine.

    \b
    Examples:
      latfarm certs init
      latfarm certs init --name farm.example.org --name 192.0.2.1
    """
    for path in _authority(changes=True).init(names or []):
        output.err().print(f"made {path}")


@app.command()
def issue(
    name: Annotated[
        str,
        typer.Argument(help="Name of the board, machine or person that the certificate is for."),
    ],
    role: Annotated[
        str,
        typer.Option(
            help="agent: a board; controller: a machine that runs latfarm serve; operator: a "
            "person who may read and act; viewer: a person who may read."
        ),
    ],
    names: Names = None,
    request: Annotated[
        Path | None,
        typer.Option(
            "--csr",
            help="Sign this certificate request, so that the private key stays with its owner. "
            "Without this, a key is made here.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days until the certificate expires.")] = 365,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Issue a new certificate for a name that already has one."),
    ] = False,
) -> None:
    """Issue a certificate.

    A board's certificate must name the address or host name under which the board is reached.

    \b
    Examples:
      latfarm certs issue board-7 --role agent --name 192.0.2.7
      latfarm certs issue board-8 --role agent --csr board-8.csr
      latfarm certs issue ada --role operator --days 90
    """
    path = _authority(changes=True).issue(
        name, role, names or [], request=request, days=days, replace=replace
    )
    output.err().print(f"issued {path}" + ("" if request else f" and {path.with_suffix('.key')}"))


@app.command()
def revoke(
    which: Annotated[
        str, typer.Argument(help="Name of the owner, certificate file, or SHA-256 fingerprint.")
    ],
) -> None:
    """Revoke a certificate. The controller refuses it at once; boards need the new revoked.json.

    \b
    Examples:
      latfarm certs revoke board-7
      latfarm certs revoke old/ada.crt
    """
    authority = _authority(changes=True)
    found = authority.revoke(which)
    output.err().print(f"{found} is revoked; copy the new {authority.revoked_file} to all boards")


@app.command("list")
def list_certificates(as_json: inputs.Json = False) -> None:
    """List the certificates that were issued here.

    \b
    Examples:
      latfarm certs list
      latfarm certs list --json
    """
    found = _authority(changes=False).list()
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
    """Show the trusted authorities, the step of a replacement, and who still needs a certificate.

    \b
    Examples:
      latfarm certs authority show
      latfarm certs authority show --json
    """
    succession = _succession(changes=False)
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
        output.err().print(
            f"these certificates are not signed by the first authority: {', '.join(left)}"
        )


@authority_app.command()
def begin(
    days: Annotated[int, typer.Option(min=1, help="Days until the next authority expires.")] = 3650,
) -> None:
    """Make the next authority and trust it too; the present one still signs.

    \b
    Examples:
      latfarm certs authority begin
    """
    _succession(changes=True).begin(days=days)
    path = _authority(changes=False).cert
    output.err().print(
        f"{path} holds both authorities; copy it to boards and people, then run: "
        "latfarm certs authority switch"
    )


@authority_app.command()
def switch() -> None:
    """Sign with the next authority; this machine gets a new certificate at once.

    \b
    Examples:
      latfarm certs authority switch
    """
    succession = _succession(changes=True)
    succession.switch()
    left = ", ".join(succession.left_behind()) or "none of those listed here"
    output.err().print(
        f"the next authority signs now; issue new certificates for {left}; then run: "
        "latfarm certs authority finish"
    )


@authority_app.command()
def finish(
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Finish even though certificates that the old authority signed are still valid.",
        ),
    ] = False,
) -> None:
    """Stop trusting the old authority; the certificates that it signed become invalid.

    \b
    Examples:
      latfarm certs authority finish
    """
    _succession(changes=True).finish(force=force)
    path = _authority(changes=False).cert
    output.err().print(f"there is one authority again; copy the new {path} to boards and people")


def _succession(*, changes: bool) -> CaRotation:
    from latfarm_controller.agents.ca_rotation import CaRotation

    return CaRotation(_authority(changes=changes))


def _authority(*, changes: bool) -> Authority:
    """The authority of the home, whose folder is made and closed if the command changes it."""
    from latfarm_controller.agents.authority import Authority
    from latfarm_controller.config import load_config

    config = load_config()
    if changes:
        private_home(config.home)
    return Authority(config.tls_dir)
