"""The files by which controller and board prove to each other who they are, and when they must."""

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
"""For each step of meeting a board; a board on a busy host takes its time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerTlsFiles:
    """PEM files: our certificate with its key, and the authority that signed the board's.

    `server_name` is the name in the board's certificate where the address is another. Who is
    revoked is read from `revoked.json` beside the authority.
    """

    ca: Path
    cert: Path
    key: Path
    server_name: str = ""

    @property
    def files(self) -> Files:
        """The same, as the handshake wants them."""
        return Files(self.cert, self.key, self.ca)


def home_files(folder: Path) -> ControllerTlsFiles | None:
    """The controller's own files in a home's `tls` folder; None where there are none.

    Each board's certificate is for the address or name by which the board is called.
    """
    files = ControllerTlsFiles(
        folder / "ca.crt", folder / "controller.crt", folder / "controller.key"
    )
    return files if files.cert.exists() else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as its two parts; the host without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_open(address: str, tls: ControllerTlsFiles | None, insecure: bool) -> None:
    """Refuse to speak in the clear to a board that is not on this machine.

    Raises:
        CertificateError: no certificates, and nobody said that they may be missing.
    """
    if tls is None and not insecure and not is_loopback(split(address)[0]):
        raise CertificateError(
            f"{address} is beyond loopback, and there are no certificates to prove who is there: "
            "make them with `latfarm certs init`, or add the board with --insecure if whoever "
            "is on that network may pose as the board"
        )


async def meet_board(address: str, tls: ControllerTlsFiles) -> Proof:
    """Who answers at an address, proven both ways.

    Raises:
        CertificateError: the board is not to be trusted, or does not trust us; says why.
        AgentLostError: nobody answers, or who did went away before a word was said of trust.
        UsageError: our own files cannot be used.
    """
    host, port = split(address)
    name = tls.server_name or host
    try:
        return await meet_async(host, port, name, tls.files, (AGENT,), MEET_S)
    except RefusedError as error:
        refusal = error.refusal
        if refusal.reason == GONE:  # as an agent that is killed: that says nothing of trust
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
    """Whether a board that was met is on the list by now.

    Raises:
        CertificateError: the list cannot be read, so that nobody can be trusted.
    """
    try:
        return proof.identity.fingerprint in listed(tls.files)
    except RevokedError as error:
        raise CertificateError(str(error)) from error
