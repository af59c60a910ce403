"""The identity in a certificate, and the decision whether a connection is allowed.

A certificate names its role in a URI among its subject alternative names, for example
`urn:latfarm:role:controller`. That of a board may name the id of the board, too, for example
`urn:latfarm:board:0f3c...`. Its fingerprint is the SHA-256 of its DER bytes, in hex.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from dataclasses import dataclass
from typing import Any, Collection, Mapping

AGENT = "agent"
CONTROLLER = "controller"
OPERATOR = "operator"
VIEWER = "viewer"
ROLES = (AGENT, CONTROLLER, OPERATOR, VIEWER)
ROLE_PREFIX = "urn:latfarm:role:"
BOARD_PREFIX = "urn:latfarm:board:"

MISSING = "missing"
EXPIRED = "expired"
NOT_YET_VALID = "not_yet_valid"
WRONG_CA = "wrong_ca"
WRONG_NAME = "wrong_name"
WRONG_ROLE = "wrong_role"
REVOKED = "revoked"
NOT_TLS = "not_tls"
OLD_TLS = "old_tls"
HANDSHAKE = "handshake"
TIMEOUT = "timeout"
TOO_MANY = "too_many"
GONE = "gone"
REASONS = (
    MISSING,
    EXPIRED,
    NOT_YET_VALID,
    WRONG_CA,
    WRONG_NAME,
    WRONG_ROLE,
    REVOKED,
    NOT_TLS,
    OLD_TLS,
    HANDSHAKE,
    TIMEOUT,
    TOO_MANY,
    GONE,
)
"""All reasons for a refusal; there are few, since they are labels of a counter."""


@dataclass(frozen=True)
class Refusal:
    """Why a connection or call is refused: one of `REASONS`, and a text for the log."""

    reason: str
    text: str


@dataclass(frozen=True)
class Identity:
    """What a verified certificate says about its owner.

    Attributes:
        name: common name.
        roles: all roles that it names; a valid certificate has one.
        fingerprint: SHA-256 of its DER bytes, in hex.
        serial: serial number, in hex.
        board_id: id of the board that it is for; empty if it names none. Several ids are joined by
            a space, so that no board has them.
        expires_s: Unix time at which the certificate expires.
    """

    name: str
    roles: tuple[str, ...]
    fingerprint: str
    serial: str = ""
    board_id: str = ""
    expires_s: float = float("inf")

    @property
    def expired(self) -> bool:
        """Whether the certificate has expired by now, which may happen during a connection."""
        return self.expires_s <= time.time()

    @property
    def role(self) -> str:
        """Return the role that the certificate names; empty if it names none or several."""
        return self.roles[0] if len(self.roles) == 1 else ""

    def __str__(self) -> str:
        """The name and the beginning of the fingerprint."""
        return f"{self.name or 'a nameless certificate'} ({self.fingerprint[:16]})"


def identity_of(certificate: Mapping[str, Any], der: bytes) -> Identity:
    """The identity in a certificate that `ssl` has verified.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert()` returns it.
        der: the DER bytes of the same certificate.
    """
    subject = {key: value for part in certificate.get("subject", ()) for key, value in part}
    names = certificate.get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI"]
    roles = {uri[len(ROLE_PREFIX) :] for uri in uris if uri.startswith(ROLE_PREFIX)}
    boards = {uri[len(BOARD_PREFIX) :] for uri in uris if uri.startswith(BOARD_PREFIX)}
    ends = certificate.get("notAfter")
    return Identity(
        name=_printable(str(subject.get("commonName", ""))),
        roles=tuple(sorted(_printable(role) for role in roles)),
        fingerprint=fingerprint_of(der),
        serial=str(certificate.get("serialNumber", "")),
        board_id=" ".join(sorted(_printable(board) for board in boards)),
        expires_s=float(ssl.cert_time_to_seconds(str(ends))) if ends else float("inf"),
    )


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of the DER bytes of a certificate in hex, as in `revoked.json`."""
    return hashlib.sha256(der).hexdigest()


def judge(identity: Identity, allowed: Collection[str], revoked: Collection[str]) -> Refusal | None:
    """Why a certificate of the CA is refused (expired, revoked, wrong role); None if it is not."""
    if identity.expired:
        return Refusal(EXPIRED, f"the certificate of {identity} is expired; are both clocks right?")
    if identity.fingerprint in revoked:
        return Refusal(REVOKED, f"the certificate of {identity} is revoked")
    if identity.role not in allowed:
        has = " and ".join(identity.roles) or "none"
        wanted = " or ".join(sorted(allowed))
        return Refusal(
            WRONG_ROLE, f"the certificate of {identity} has the role {has}, not {wanted}"
        )
    return None


def _printable(text: str) -> str:
    """A name from a certificate in one line and cut to 100 letters, since it goes to the log."""
    return "".join(char if char.isprintable() else "?" for char in text)[:100]
