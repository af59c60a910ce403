"""TLS contexts of server and client, for TLS 1.3 only; a server reloads changed files."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from latfarm_protos.trust.identity import (
    EXPIRED,
    GONE,
    HANDSHAKE,
    MISSING,
    NOT_TLS,
    NOT_YET_VALID,
    OLD_TLS,
    WRONG_CA,
    WRONG_NAME,
    Refusal,
)
from latfarm_protos.trust.revoked import FILE_NAME

logger = logging.getLogger(__name__)

# For the reasons of OpenSSL in `SSLError.reason`: our reason, and a text for the log.
_ERRORS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (MISSING, "it shows no certificate"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (MISSING, "it wants a certificate of ours"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (EXPIRED, "it says that our certificate is expired"),
    "TLSV1_ALERT_UNKNOWN_CA": (WRONG_CA, "it does not know the CA of our certificate"),
    "SSLV3_ALERT_BAD_CERTIFICATE": (HANDSHAKE, "it does not accept our certificate"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (HANDSHAKE, "it does not accept our certificate"),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (HANDSHAKE, "our certificate is not for this use"),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": (HANDSHAKE, "it says that our certificate is revoked"),
    "UNSUPPORTED_PROTOCOL": (OLD_TLS, "it speaks no TLS 1.3"),
    "TLSV1_ALERT_PROTOCOL_VERSION": (OLD_TLS, "it speaks another version of TLS"),
    "NO_PROTOCOLS_AVAILABLE": (OLD_TLS, "it speaks no TLS 1.3"),
    "WRONG_VERSION_NUMBER": (NOT_TLS, "it does not speak TLS"),
    "HTTP_REQUEST": (NOT_TLS, "it speaks HTTP without TLS"),
    "HTTPS_PROXY_REQUEST": (NOT_TLS, "it takes us for a proxy"),
    "RECORD_LAYER_FAILURE": (NOT_TLS, "it does not speak TLS"),
    "PACKET_LENGTH_TOO_LONG": (NOT_TLS, "it does not speak TLS"),
    "UNEXPECTED_EOF_WHILE_READING": (GONE, "it went away during the handshake"),
}
# For the verification results of X.509 (see "Diagnostics" in OpenSSL's x509_verify_cert
# documentation): our reason, and a text for the log.
_VERIFY = {
    9: (NOT_YET_VALID, "its certificate is not valid yet; are both clocks right?"),
    10: (EXPIRED, "its certificate is expired; are both clocks right?"),
    2: (WRONG_CA, "its certificate is of another CA"),
    7: (WRONG_CA, "its certificate has a wrong signature"),
    18: (WRONG_CA, "its certificate is signed by itself"),
    19: (WRONG_CA, "its certificate is of another CA"),
    20: (WRONG_CA, "its certificate is of another CA"),
    21: (WRONG_CA, "its certificate is of another CA"),
    26: (HANDSHAKE, "its certificate is not for this use (extended key usage)"),
    62: (WRONG_NAME, "its certificate is for another name"),
    64: (WRONG_NAME, "its certificate is for another address"),
}


class TlsFileError(Exception):
    """A certificate, key or CA file cannot be used; the text names the files."""


@dataclass(frozen=True)
class Files:
    """PEM files of one side of a connection.

    Attributes:
        cert: its certificate.
        key: the private key of the certificate.
        ca: the CA that signs certificates of the other side.
        revoked_file: list of revoked certificates; None: `revoked.json` beside the CA.
    """

    cert: Path
    key: Path
    ca: Path
    revoked_file: Path | None = None

    @property
    def revoked(self) -> Path:
        """The list of revoked certificates."""
        return self.revoked_file or self.ca.parent / FILE_NAME

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes when a file is replaced or written.

        Raises:
            TlsFileError: a file is missing.
        """
        stamps = []
        for path in (self.cert, self.key, self.ca):
            try:
                stat = path.stat()
            except OSError as error:
                text = f"cannot read the TLS file {path}: {error.strerror or error}"
                raise TlsFileError(text) from error
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(stamps)


HTTP = ("h2",)
"""The protocol of gRPC, as TLS names it (RFC 9113, section 3.1)."""


def server_context(files: Files, protocols: Sequence[str] = HTTP) -> ssl.SSLContext:
    """A context for a server; every client must have a certificate of the CA.

    Args:
        files: of the server.
        protocols: that it speaks over TLS, the preferred one first.

    Raises:
        TlsFileError: the files cannot be used together.
    """
    context = _context(files, ssl.PROTOCOL_TLS_SERVER, protocols)
    context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session would skip the check of the certificate.
    context.num_tickets = 0
    return context


def client_context(files: Files, protocols: Sequence[str] = HTTP) -> ssl.SSLContext:
    """A context for a client; the server must have a certificate of the CA for the called name.

    Args:
        files: of the client.
        protocols: that it speaks over TLS, the preferred one first.

    Raises:
        TlsFileError: the files cannot be used together.
    """
    return _context(files, ssl.PROTOCOL_TLS_CLIENT, protocols)


def _context(files: Files, protocol: int, protocols: Sequence[str]) -> ssl.SSLContext:
    before = files.stamp()
    try:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(list(protocols))
        # A key with a passphrase must fail here instead of asking on the terminal.
        context.load_cert_chain(str(files.cert), str(files.key), password=lambda: b"")
        context.load_verify_locations(str(files.ca))
    except (OSError, ValueError) as error:
        names = f"{files.cert}, {files.key}, {files.ca}"
        raise TlsFileError(f"cannot use the TLS files {names}: {error}") from error
    if files.stamp() != before:
        raise TlsFileError(f"{files.cert} or its companions changed while being read")
    return context


class ServerContexts:
    """The current context of a server; if new files cannot be used, the old ones stay in use.

    Args:
        files: of the server.
        protocols: that it speaks over TLS, the preferred one first.

    Raises:
        TlsFileError: on construction, when the files cannot be used together.
    """

    def __init__(self, files: Files, protocols: Sequence[str] = HTTP) -> None:
        self._files = files
        self._protocols = tuple(protocols)
        self._lock = threading.Lock()
        self._stamp = files.stamp()
        self._context = server_context(files, self._protocols)
        self._complained = ""

    def current(self) -> ssl.SSLContext:
        """The context for the next connection."""
        with self._lock:
            try:
                stamp = self._files.stamp()
                if stamp == self._stamp:
                    return self._context
                context = server_context(self._files, self._protocols)
            except TlsFileError as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    logger.warning("keeping the old certificate: %s", error)
                return self._context
            self._stamp, self._context, self._complained = stamp, context, ""
            logger.info("took over the new certificate %s", self._files.cert)
            return context


def refusal_of(error: Exception) -> Refusal:
    """The refusal for an error of a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFY.get(error.verify_code)
        if known is not None:
            return Refusal(*known)
        return Refusal(HANDSHAKE, f"its certificate is not valid: {error.verify_message}")
    if isinstance(error, ssl.SSLEOFError):
        return Refusal(GONE, "it went away during the handshake")
    reason = str(getattr(error, "reason", "") or "")
    if reason in _ERRORS:
        return Refusal(*_ERRORS[reason])
    if isinstance(error, ssl.SSLError):
        return Refusal(HANDSHAKE, f"the TLS handshake failed: {reason or error}")
    return Refusal(GONE, f"it went away during the handshake: {error}")
