"""A certificate authority for tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from latfarm_protos.trust.contexts import Files


class Authority:
    """A certificate authority in a folder, with the certificates that it signs."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not here")
        folder.mkdir()
        self.folder = folder
        self.cert = folder / "ca.crt"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", folder / "ca.key", "-out", self.cert, "-days", "3650", "-subj", "/CN=ca"),
        )

    def issue(self, name: str, role: str = "", days: int = 2) -> Files:
        """Make a certificate for loopback, with a role or without one."""
        key, ask, cert, ext = (
            self.folder / f"{name}.{end}" for end in ("key", "csr", "crt", "ext")
        )
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", key, "-out", ask, "-subj", f"/CN={name}"),
        )
        uri = f",URI:urn:latfarm:role:{role}" if role else ""
        ext.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1{uri}\n")
        self._openssl(
            *("x509", "-req", "-in", ask, "-CA", self.cert, "-CAkey", self.folder / "ca.key"),
            *("-CAcreateserial", "-out", cert, "-days", str(days), "-extfile", ext),
        )
        return Files(cert, key, self.cert)

    def ends(self, cert: Path) -> str:
        """When a certificate expires, as openssl prints it."""
        return self._openssl("x509", "-in", cert, "-noout", "-enddate").strip()[len("notAfter=") :]

    def _openssl(self, *words: str | Path) -> str:
        done = subprocess.run(
            ["openssl", *map(str, words)], check=True, capture_output=True, text=True
        )
        return done.stdout
