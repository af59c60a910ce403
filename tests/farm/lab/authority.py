"""A certificate authority that openssl makes for a test, and the certificates that it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from latfarm_controller.agents.tls import ControllerTlsFiles

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
"""Options of `openssl req` for a new key that is not encrypted."""


class LabAuthority:
    """The certificate authority of one test's farm.

    Args:
        folder: folder for its keys and certificates; it is made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.ca = folder / "ca.crt"
        files = ("-keyout", folder / "ca.key", "-out", self.ca, "-days", "3650")
        _openssl("req", "-x509", *_CURVE, *files, "-subj", "/CN=farm")

    def issue(self, name: str, role: str = "agent", days: int = 2) -> ControllerTlsFiles:
        """Sign a certificate for a name; a second one for the same name replaces the first.

        Args:
            name: DNS name in the certificate. The address 127.0.0.1 is in it as well.
            role: role of the holder, as latfarm writes it into certificates.
            days: number of days for which the certificate is valid.
        """
        stem = self._folder / name
        key, ask, cert, ext = (stem.with_suffix(end) for end in (".key", ".csr", ".crt", ".ext"))
        if not key.exists():
            _openssl("req", *_CURVE, "-subj", f"/CN={name}", "-keyout", key, "-out", ask)
        ext.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1,URI:urn:latfarm:role:{role}\n")
        signer = ("-CA", self.ca, "-CAkey", self._folder / "ca.key", "-CAcreateserial")
        part = cert.with_suffix(".part")  # an agent that reads the certificate sees a whole file
        _openssl(
            *("x509", "-req", "-in", ask, *signer, "-out", part, "-days", str(days)),
            *("-extfile", ext),
        )
        part.replace(cert)
        return ControllerTlsFiles(self.ca, cert, key)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
