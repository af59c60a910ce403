"""Mutual TLS: certificates from files, read again when they change; the controller alone comes in.

The port is kept by a gate (`latfarm_protos.trust.gate`), the gRPC server listens behind it.
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
"""Roles that may call an agent: people's commands go through a controller."""


@dataclass(frozen=True)
class AgentTlsFiles:
    """PEM files: this board's certificate and key, and the CA that signs its clients'.

    `revoked_file`: who is shut out; None: `revoked.json` beside the CA.
    """

    cert: Path
    key: Path
    ca: Path
    revoked_file: Path | None = None

    @property
    def files(self) -> Files:
        """The same, as the gate wants them."""
        return Files(self.cert, self.key, self.ca, self.revoked_file)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Certificate, key and CA, checked to be usable together.

        Raises:
            AgentUsageError: a file is missing, is no PEM, or the key is not the certificate's.
        """
        try:
            server_context(self.files)
            return self.cert.read_bytes(), self.key.read_bytes(), self.ca.read_bytes()
        except (TlsFileError, OSError) as error:
            raise AgentUsageError(str(error)) from error

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Differs when a file was replaced or written.

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
        tls: its files.
        on_refused: told the reason of each refusal.

    Raises:
        AgentUsageError: the files cannot be used.
    """
    try:
        return Gate(tls.files, ALLOWED, on_refused)
    except (TlsFileError, RevokedError) as error:
        raise AgentUsageError(str(error)) from error
