"""The files with which controller and boards prove who they are, and when that is necessary."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from pathlib import Path

from latfarm_protos.trust.contexts import Files, TlsFileError
from latfarm_protos.trust.identity import AGENT, GONE
from latfarm_protos.trust.proof import Proof, RefusedError, listed, meet_async
from latfarm_protos.trust.revoked import RevokedError

from latfarm_controller.errors import AgentLostError, CertificateError, UsageError

MEET_S = 5.0
"""Seconds that each step of the handshake with a board may take; a busy board is slow."""

UNIX = "unix:/"
"""How the address of a Unix socket begins: only this user can make and reach ours."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerTlsFiles:
    """PEM files of the controller.

    `cert` and `key` are the controller's certificate and its key; `ca` is the authority that signed
    the certificate of the board. `server_name` is the name in the board's certificate, if that is
    not the host name in the board's address. The list of revoked certificates is `revoked.json`
    beside `ca`.
    """

    ca: Path
    cert: Path
    key: Path
    server_name: str = ""

    @property
    def files(self) -> Files:
        """Return these files as the type that the TLS handshake takes."""
        return Files(self.cert, self.key, self.ca)


def home_files(folder: Path) -> ControllerTlsFiles | None:
    """The controller's own files in the folder `tls` of a home; None if there are none.

    With these, the certificate of each board must be for the name or address in the inventory.
    """
    files = ControllerTlsFiles(
        folder / "ca.crt", folder / "controller.crt", folder / "controller.key"
    )
    return files if files.cert.exists() else None


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split(address: str) -> tuple[str, int]:
    """The host and the port of `host:port` or `[v6]:port`; the host is without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_open(address: str, tls: ControllerTlsFiles | None, insecure: bool) -> None:
    """Refuse to speak in plain text to a board that is not on this machine.

    Raises:
        CertificateError: there are no certificates, and `insecure` is not set.
        AgentLostError: the board dials in, and this process takes no such boards.
    """
    if address.startswith(UNIX):
        return
    if not address:
        raise AgentLostError("the board dials in, which needs `latfarm serve --listen HOST:PORT`")
    if tls is None and not insecure and not is_loopback(split(address)[0]):
        raise CertificateError(
            f"{address} is beyond loopback, and there are no certificates to prove who is there: "
            "make them with `latfarm certs init`, or add the board with --insecure if you "
            "trust everybody on that network not to pose as the board"
        )


async def meet_board(address: str, tls: ControllerTlsFiles) -> Proof:
    """Make a TLS handshake with a board, in which both sides prove who they are.

    Raises:
        CertificateError: one side does not trust the other; says why.
        AgentLostError: nobody answers, or the connection broke before either side refused.
        UsageError: the controller's own files cannot be used.
    """
    host, port = split(address)
    name = tls.server_name or host
    try:
        return await meet_async(host, port, name, tls.files, (AGENT,), MEET_S)
    except RefusedError as error:
        refusal = error.refusal
        if refusal.reason == GONE:  # an agent that is killed meanwhile has refused nobody
            raise AgentLostError(f"{address}: {refusal.text}") from error
        logger.warning("refused the board at %s: %s [%s]", address, refusal.text, refusal.reason)
        raise CertificateError(
            f"{address}: no connection: {refusal.text} [{refusal.reason}]"
        ) from error
    except (TlsFileError, RevokedError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise AgentLostError(f"{address}: {error.strerror or error}") from error


def is_revoked(proof: Proof, tls: ControllerTlsFiles) -> bool:
    """Whether the certificate of a proven board has been revoked since.

    Raises:
        CertificateError: the list of revoked certificates cannot be read, so no board is trusted.
    """
    try:
        return proof.identity.fingerprint in listed(tls.files)
    except RevokedError as error:
        raise CertificateError(str(error)) from error
