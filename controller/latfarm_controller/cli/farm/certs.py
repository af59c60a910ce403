"""`latfarm certs`: the farm's certificate authority, and the certificates that it issues."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import audited, inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.private_files import private_home

if TYPE_CHECKING:
    from latfarm_controller.agents.certificates.authority import Authority
    from latfarm_controller.agents.certificates.ca_rotation import CaRotation

MAX_CERTIFICATE_BYTES = 1 << 20
"""Most bytes that `keep -` reads."""
app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Certificates of this farm. Its certificate authority is kept in the folder tls of the home.

    \b
    Examples:
      latfarm certs init --host farm.example.org
      latfarm certs issue board-7 --role agent --host 192.0.2.7
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
    Replace the authority while the farm works.

    There are three steps: begin, switch and finish. After each step, give the new ca.crt to all
    boards and people before you take the next step. After switch they need new certificates, too.
    latfarm.farm.rotate_certs does this for boards.

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
    typer.Option("--host", help="Host name or address under which it is reached. May be repeated."),
]


PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="File whose first line is the passphrase of the authority's key. Only you may be "
        "able to read it. LATFARM_PASSPHRASE_FILE says the same for all commands.",
    ),
]


@app.command(cls=formerly({"--name": "--host"}))
def init(names: Names = None, passphrase_file: PassphraseFile = None) -> None:
    """Make the authority.

    A controller's certificate for this machine is made, too. With --passphrase-file the authority's
    key is encrypted, and each command that signs a certificate needs the passphrase.

    \b
    Examples:
      latfarm certs init
      latfarm certs init --host farm.example.org --host 192.0.2.1
      latfarm certs init --passphrase-file ~/farm.passphrase
    """
    for path in _authority(changes=True, secret=_secret(passphrase_file)).init(names or []):
        output.err().print(f"made {path}")
    audited.note("authority.made", "latfarm farm")


DialsIn = Annotated[
    bool,
    typer.Option(
        "--dials-in", help="Let the board call the controller, too, for a board behind a NAT."
    ),
]


@app.command(cls=formerly({"--name": "--host"}))
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
    board_id: Annotated[
        str,
        typer.Option(
            help="Id of the board, as latfarm-agent describe prints it. A controller then refuses "
            "any other board that shows this certificate. Use this for boards."
        ),
    ] = "",
    dials_in: DialsIn = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Issue a certificate.

    A board's certificate must name the address or host name under which the board is reached.

    \b
    Examples:
      latfarm certs issue board-7 --role agent --host 192.0.2.7
      latfarm certs issue board-8 --role agent --csr board-8.csr
      latfarm certs issue hidden --role agent --dials-in
      latfarm certs issue ada --role operator --days 90
    """
    authority = _authority(changes=True, secret=_secret(passphrase_file))
    path = authority.issue(
        name,
        role,
        names or [],
        request=request,
        days=days,
        replace=replace,
        board_id=board_id,
        dials_in=dials_in,
    )
    audited.note("certificate.issued", name, role=role, days=days)
    output.err().print(f"issued {path}" + ("" if request else f" and {path.with_suffix('.key')}"))


@app.command()
def keep(
    path: Annotated[
        Path, typer.Argument(help="File with the certificate; - reads it from standard input.")
    ],
) -> None:
    """Keep a certificate that another program signed.

    It was signed with the authority of this home. The certificate can then be listed, and be
    revoked by its name. The playbooks do this for each certificate that they sign.

    \b
    Examples:
      latfarm certs keep board-7.crt
    """
    import tempfile

    authority = _authority(changes=True)
    with tempfile.TemporaryDirectory() as scratch:
        if str(path) == "-":
            path = Path(scratch) / "certificate"
            path.write_bytes(typer.get_binary_stream("stdin").read(MAX_CERTIFICATE_BYTES))
        found, new = authority.keep(path)
    if new:
        audited.note("certificate.kept", found.name, roles=found.roles, sha256=found.fingerprint)
    output.err().print(f"the certificate of {found.name} {'is kept' if new else 'was kept before'}")


@app.command()
def revoke(
    which: Annotated[
        str,
        typer.Argument(
            help="Name of the owner, certificate file, serial number, or SHA-256 fingerprint."
        ),
    ],
) -> None:
    """Revoke certificates. The controller refuses them at once; boards need the new revoked.json.

    A name means all certificates of that name. The owner need not be reachable.

    \b
    Examples:
      latfarm certs revoke board-7
      latfarm certs revoke old/ada.crt
    """
    authority = _authority(changes=True)
    before = authority.revoked()
    for one in authority.revoke(which):
        known = one.fingerprint in before
        if not known:
            audited.note("certificate.revoked", one.name or which, sha256=one.fingerprint)
        output.err().print(f"{one.title} {'was revoked already' if known else 'is revoked'}")
    if authority.revoked() != before:
        output.err().print(f"copy the new {authority.revoked_file} to all boards")


@app.command("list")
def list_certificates(as_json: inputs.Json = False) -> None:
    """List the certificates that were signed.

    They are those of boards and people.

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
                    "serial": one.serial,
                }
                for one in found
            ]
        )
        return
    rows = [
        [
            *(one.name, " ".join(one.roles), one.state, one.expires_on),
            *(one.serial[:16], one.fingerprint[:16]),
        ]
        for one in found
    ]
    header = ["name", "role", "state", "expires", "serial", "sha256"]
    output.table("", header, rows, empty="no certificate yet; latfarm certs issue makes one")


@authority_app.command()
def show(as_json: inputs.Json = False) -> None:
    """Show the trusted authorities.

    It also tells the step of a replacement, and who still needs a certificate.

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
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make the next authority, and trust it too.

    The present one still signs. With --passphrase-file its key gets this passphrase, which must be
    that of the present key if that one has a passphrase.

    \b
    Examples:
      latfarm certs authority begin
    """
    _succession(changes=True, secret=_secret(passphrase_file)).begin(days=days)
    audited.note("authority.begun", "the next authority", days=days)
    path = _authority(changes=False).cert
    output.err().print(
        f"{path} holds both authorities; copy it to boards and people, then run: "
        "latfarm certs authority switch"
    )


@authority_app.command()
def switch(passphrase_file: PassphraseFile = None) -> None:
    """Sign with the next authority.

    This machine gets a new certificate at once.

    \b
    Examples:
      latfarm certs authority switch
    """
    succession = _succession(changes=True, secret=_secret(passphrase_file))
    succession.switch()
    audited.note("authority.switched", "the next authority")
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
    """Stop trusting the old authority.

    The certificates that it signed become invalid.

    \b
    Examples:
      latfarm certs authority finish
    """
    _succession(changes=True).finish(force=force)
    audited.note("authority.finished", "the former authority", forced=force)
    path = _authority(changes=False).cert
    output.err().print(f"there is one authority again; copy the new {path} to boards and people")


def _succession(*, changes: bool, secret: str = "") -> CaRotation:
    from latfarm_controller.agents.certificates.ca_rotation import CaRotation

    return CaRotation(_authority(changes=changes, secret=secret))


def _authority(*, changes: bool, secret: str = "") -> Authority:
    """The authority of the home, whose folder is made and closed if the command changes it."""
    from latfarm_controller.agents.certificates.authority import Authority
    from latfarm_controller.config import load_config

    config = load_config()
    if changes:
        private_home(config.home)
    return Authority(config.tls_dir, secret)


def _secret(passphrase_file: Path | None) -> str:
    """The passphrase of the authority's key; empty if no file with it is named."""
    from latfarm_controller.agents.certificates.passphrase import read_passphrase
    from latfarm_controller.config import load_config

    path = load_config({"passphrase_file": passphrase_file}).passphrase_file
    return "" if path is None else read_passphrase(path)
