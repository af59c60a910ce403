"""The files by which controller and board prove to each other who they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.errors import UsageError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: our certificate with its key, and the authority that signed the board's.

    `server_name` is the name in the board's certificate where the address is another.
    """

    ca: Path
    cert: Path
    key: Path
    server_name: str = ""

    def credentials(self) -> Any:
        """Credentials of a channel, read now.

        Raises:
            UsageError: a file cannot be read; names it.
        """
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.cert),
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot read this TLS file: {error.strerror}") from error
