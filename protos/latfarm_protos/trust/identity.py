"""Who is at the other end of a TLS connection, and whether we speak to them.

A certificate says its role in a URI among its subject's alternative names,
`urn:latfarm:role:controller`; its fingerprint is the SHA-256 of its DER bytes, in hex.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Collection, Mapping

AGENT = "agent"
CONTROLLER = "controller"
OPERATOR = "operator"
VIEWER = "viewer"
ROLES = (AGENT, CONTROLLER, OPERATOR, VIEWER)
ROLE_PREFIX = "urn:latfarm:role:"

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
"""Why a connection is refused; few, as they are labels of a counter."""


@dataclass(frozen=True)
class Refusal:
    """Why somebody is not spoken to: one of `REASONS`, and a sentence for the log."""

    reason: str
    text: str


@dataclass(frozen=True)
class Identity:
    """What a verified certificate says of its holder. `serial` and `fingerprint` in hex."""

    name: str
    roles: tuple[str, ...]
    fingerprint: str
    serial: str = ""
    expires: str = ""

    @property
    def role(self) -> str:
        """Its one role; empty where it has none, or several and thus none that is certain."""
        return self.roles[0] if len(self.roles) == 1 else ""

    def __str__(self) -> str:
        return f"{self.name or 'a nameless certificate'} ({self.fingerprint[:16]})"


def identity_of(certificate: Mapping[str, Any], der: bytes) -> Identity:
    """Read what `ssl.SSLSocket.getpeercert()` tells of a verified certificate.

    Args:
        certificate: the decoded form.
        der: the same certificate's DER bytes.
    """
    subject = {key: value for part in certificate.get("subject", ()) for key, value in part}
    names = certificate.get("subjectAltName", ())
    roles = {
        value[len(ROLE_PREFIX) :]
        for kind, value in names
        if kind == "URI" and value.startswith(ROLE_PREFIX)
    }
    return Identity(
        name=_printable(str(subject.get("commonName", ""))),
        roles=tuple(sorted(_printable(role) for role in roles)),
        fingerprint=fingerprint_of(der),
        serial=str(certificate.get("serialNumber", "")),
        expires=str(certificate.get("notAfter", "")),
    )


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of a certificate's DER bytes, as `revoked.json` lists them."""
    return hashlib.sha256(der).hexdigest()


def judge(identity: Identity, allowed: Collection[str], revoked: Collection[str]) -> Refusal | None:
    """Whether a certificate that the CA signed is still refused, and why."""
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
    """Names come from outside and end in logs: one line, bounded."""
    return "".join(char if char.isprintable() else "?" for char in text)[:100]
