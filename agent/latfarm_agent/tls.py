"""Mutual TLS: certificates from files, read again when they change; clients need the CA's word."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from latfarm_agent.errors import UsageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: this board's certificate and key, and the CA that signs its clients'."""

    cert: Path
    key: Path
    ca: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Certificate, key and CA, checked to be usable together.

        Raises:
            UsageError: a file is missing, is no PEM, or the key is not the certificate's.
        """
        before = self.stamp()
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # A key with a passphrase must fail here, not ask on the terminal.
            context.load_cert_chain(str(self.cert), str(self.key), password=lambda: b"")
            context.load_verify_locations(str(self.ca))
            texts = self.cert.read_bytes(), self.key.read_bytes(), self.ca.read_bytes()
        except (OSError, ValueError) as error:
            names = f"{self.cert}, {self.key}, {self.ca}"
            raise UsageError(f"cannot use the TLS files {names}: {error}") from error
        if self.stamp() != before:
            raise UsageError(f"{self.cert} or its companions changed while being read")
        return texts

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Differs when a file was replaced or written.

        Raises:
            UsageError: a file is missing.
        """
        stamps = []
        for path in (self.cert, self.key, self.ca):
            try:
                stat = path.stat()
            except OSError as error:
                text = f"cannot read the TLS file {path}: {error.strerror or error}"
                raise UsageError(text) from error
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(stamps)


class CertificateReloader:
    """Looks at the files at each handshake; unusable new ones leave the old ones in force."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._stamp = files.stamp()
        self._reported: object = None
        self.initial = self._configuration()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """A new configuration if the files changed, else None: what gRPC asks for."""
        with self._lock:
            try:
                stamp = self._files.stamp()
                if stamp == self._stamp:
                    return None
                configuration = self._configuration()
            except UsageError as error:
                if str(error) != self._reported:
                    self._reported = str(error)
                    logger.warning("keeping the old certificate: %s", error)
                return None
            self._stamp = stamp
            self._reported = None
            logger.info("took over the new certificate %s", self._files.cert)
            return configuration

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        cert, key, ca = self._files.read()
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that refuse clients without a certificate of the CA.

    Raises:
        UsageError: the files cannot be used.
    """
    reloader = CertificateReloader(files)
    return grpc.dynamic_ssl_server_credentials(
        reloader.initial, reloader.fetch, require_client_authentication=True
    )
