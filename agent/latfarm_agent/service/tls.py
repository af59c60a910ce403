"""Mutual TLS of the agent: only the controller may connect.

Certificates are files that are read again when they change. A gate (`latfarm_protos.trust.gate`)
has the port; the gRPC server listens behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from latfarm_protos.trust.contexts import Files, TlsFileError, server_context
from latfarm_protos.trust.gate import Gate
from latfarm_protos.trust.identity import CONTROLLER
from latfarm_protos.trust.revoked import RevokedError

from latfarm_agent.errors import AgentUsageError

ALLOWED = (CONTROLLER,)
"""Roles that may call an agent. The commands of people go through a controller."""


@dataclass(frozen=True)
class AgentTlsFiles:
    """PEM files: this board's certificate and key, and the CA that signs its clients'.

    `revoked_file`: the list of revoked certificates; None: `revoked.json` beside the CA.
    """

    cert: Path
    key: Path
    ca: Path
    revoked_file: Path | None = None

    @property
    def files(self) -> Files:
        """Return these files as the type that the TLS gate takes."""
        return Files(self.cert, self.key, self.ca, self.revoked_file)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Certificate, key and CA, after a check that they can be used together.

        Raises:
            AgentUsageError: a file is missing or not PEM, or the key is not the certificate's.
        """
        try:
            server_context(self.files)
            return self.cert.read_bytes(), self.key.read_bytes(), self.ca.read_bytes()
        except (TlsFileError, OSError) as error:
            raise AgentUsageError(str(error)) from error

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes when one of the files is replaced or written.

        Raises:
            AgentUsageError: a file is missing.
        """
        try:
            return self.files.stamp()
        except TlsFileError as error:
            raise AgentUsageError(str(error)) from error


def open_gate(tls: AgentTlsFiles, on_refused: Callable[[str], None]) -> Gate:
    """The gate of an agent.

    Args:
        tls: the agent's files.
        on_refused: called with the reason of each refused connection.

    Raises:
        AgentUsageError: the files cannot be used.
    """
    try:
        return Gate(tls.files, ALLOWED, on_refused)
    except (TlsFileError, RevokedError) as error:
        raise AgentUsageError(str(error)) from error
