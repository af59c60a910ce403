"""Every certificate that the authority has signed, in its folder `signed`.

A certificate is kept whoever made its key, and stays when a newer one of its name is signed. So a
certificate can be revoked by name when nobody can read it from its owner any more. Its file is
named by its SHA-256 fingerprint.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from latfarm_predictors.whole_file import written_whole
from latfarm_protos.trust.der import VERSION, element, elements, inside
from latfarm_protos.trust.expiry import der_expires_at_s, pem_to_der
from latfarm_protos.trust.identity import ROLE_PREFIX, fingerprint_of

from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import FILE_MODE, private_folder

FOLDER = "signed"
"""Name of the folder below that of the authority."""
ISSUED = "issued"
"""Name of the folder with the newest certificate of each name that was made here."""
MAX_NAME_LENGTH = 100
"""Most letters of a name that are shown."""
MAX_BYTES = 1 << 20
"""Largest size of a certificate's file in bytes."""
_COMMON_NAME = bytes.fromhex("550403")  # the identifier 2.5.4.3 (X.520)
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")  # 2.5.29.17 (RFC 5280, section 4.2.1.6)
_EXTENSIONS, _URI = 0xA3, 0x86


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that the authority has signed; it expires at the Unix time `expires_s`.

    `serial` is its serial number in hex, as openssl writes it, and `fingerprint` its SHA-256.
    """

    name: str
    roles: tuple[str, ...]
    fingerprint: str
    expires_s: float
    path: Path
    revoked: bool = False
    serial: str = ""

    @property
    def state(self) -> str:
        """One of `revoked`, `expired` and `valid`."""
        if self.revoked:
            return "revoked"
        expired = self.expires_s <= datetime.now(UTC).timestamp()
        return "expired" if expired else "valid"

    @property
    def expires_on(self) -> str:
        """The day on which it expires, in UTC, as YYYY-MM-DD."""
        return datetime.fromtimestamp(self.expires_s, UTC).date().isoformat()

    @property
    def title(self) -> str:
        """Begins a sentence: the fingerprint, and whose certificate it is if that is known."""
        return (
            f"{self.fingerprint}, a certificate of {self.name}," if self.name else self.fingerprint
        )


class SignedCertificates:
    """The certificates that were signed by the authority in a folder.

    Every method raises:
        UsageError: a file cannot be read or written, or is no certificate.
    """

    def __init__(self, authority: Path) -> None:
        self._folder = authority / FOLDER
        self._issued = authority / ISSUED

    def keep(self, source: Path) -> tuple[Issued, bool]:
        """Keep the certificate in a PEM file; returns it, and whether it was not kept before."""
        der = der_of(source)
        path = self._folder / f"{fingerprint_of(der)}.crt"
        found = replace(read_der(der, source), path=path)
        if path.exists():
            return found, False
        private_folder(self._folder)
        try:
            with written_whole(path, durable=True, mode=FILE_MODE) as part:
                part.write_text(ssl.DER_cert_to_PEM_cert(der), encoding="ascii")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
        return found, True

    def list(self, revoked: Collection[str] = ()) -> list[Issued]:
        """All certificates, sorted by name and end.

        Args:
            revoked: the fingerprints of revoked certificates.
        """
        found: dict[str, Issued] = {}
        # Certificates of older versions lie in `issued` alone, and that is where people look.
        for folder in (self._folder, self._issued):
            for path in sorted(folder.glob("*.crt")):
                one = read_der(der_of(path), path)
                found[one.fingerprint] = replace(one, revoked=one.fingerprint in revoked)
        return sorted(found.values(), key=lambda one: (one.name, one.expires_s, one.serial))


def read_der(der: bytes, path: Path) -> Issued:
    """Name, roles, serial number and end of a certificate.

    Args:
        der: its DER bytes.
        path: its file, which messages name.

    Raises:
        UsageError: the bytes are no certificate.
    """
    try:
        rest = inside(inside(der))  # the content of TBSCertificate
        if rest[:1] == bytes([VERSION]):
            rest = element(rest)[2]
        _, serial, rest = element(rest)
        fields = list(elements(rest))  # signature, issuer, validity, subject, key, extensions
        names = [part for _, group in elements(fields[3][1]) for part in elements(group)]
        name = next((text for text in map(_common_name, names) if text), "")
        extensions = next((content for tag, content in fields[4:] if tag == _EXTENSIONS), b"")
        return Issued(
            name or path.stem,
            tuple(sorted(_roles(extensions))),
            fingerprint_of(der),
            der_expires_at_s(der),
            path,
            serial=serial.lstrip(b"\0").hex() or "00",
        )
    except (ValueError, IndexError) as error:
        raise UsageError(f"{path}: is no certificate: {error}") from error


def der_of(path: Path) -> bytes:
    """The DER bytes of the first certificate in a PEM file.

    Raises:
        UsageError: the file cannot be read, or contains no certificate.
    """
    try:
        with path.open("rb") as file:
            return pem_to_der(file.read(MAX_BYTES).decode("ascii", errors="replace"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: is no certificate in PEM") from error


def _common_name(part: tuple[int, bytes]) -> str:
    identifier, value = list(elements(part[1]))[:2]
    if identifier[1] != _COMMON_NAME:
        return ""
    text = value[1].decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "?" for char in text)[:MAX_NAME_LENGTH]


def _roles(extensions: bytes) -> set[str]:
    """The roles that the subject's alternative names name."""
    found: set[str] = set()
    for _, extension in elements(inside(extensions) if extensions else b""):
        parts = list(elements(extension))
        if parts[0][1] != _ALTERNATIVE_NAMES:
            continue
        for tag, content in elements(inside(parts[-1][1])):
            text = content.decode("ascii", errors="replace")
            if tag == _URI and text.startswith(ROLE_PREFIX):
                found.add(text[len(ROLE_PREFIX) :])
    return found
