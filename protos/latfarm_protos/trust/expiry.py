"""Read from a certificate file when the certificate expires.

The agent has no X.509 library, and Python's `ssl` decodes certificates in files only if they are
CAs. RFC 5280, section 4.1, defines the structures `Certificate`, `TBSCertificate` and `Validity`.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timezone
from pathlib import Path

from latfarm_protos.trust.der import GENERALISED_TIME, UTC_TIME, VERSION, element, inside

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def expires_at_s(path: Path) -> float:
    """When the first certificate of a PEM file expires, in seconds since 1970.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no certificate.
    """
    return der_expires_at_s(pem_to_der(path.read_text(encoding="ascii", errors="replace")))


def pem_to_der(text: str) -> bytes:
    """The first certificate of a PEM text.

    Raises:
        ValueError: there is no certificate.
    """
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        raise ValueError("no certificate in PEM")
    return ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])


def der_expires_at_s(der: bytes) -> float:
    """When a certificate in DER expires, in seconds since 1970.

    Raises:
        ValueError: the bytes are not a certificate.
    """
    rest = inside(inside(der))  # the content of TBSCertificate
    if rest[:1] == bytes([VERSION]):
        rest = element(rest)[2]
    for _ in range(3):  # serial number, signature, issuer
        rest = element(rest)[2]
    validity = inside(rest)
    tag, text, _ = element(element(validity)[2])
    return _moment(tag, text.decode("ascii"))


def _moment(tag: int, text: str) -> float:
    if tag == UTC_TIME:  # the year has two digits: 50 to 99 mean 1950 to 1999
        text = ("19" if text >= "50" else "20") + text
    elif tag != GENERALISED_TIME:
        raise ValueError(f"tag {tag:#x} where a time belongs")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
