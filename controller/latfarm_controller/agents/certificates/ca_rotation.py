"""Replaces the certificate authority by a new one while the farm goes on working.

There are three steps, so that each side always trusts the authority of the other side:

```
begin    ca.crt: old, new   ca.key: old   ca-next.key: new   give everybody the new ca.crt
switch   ca.crt: new, old   ca.key: new                      issue all certificates anew
finish   ca.crt: new        ca.key: new                      give everybody the new ca.crt
```

Both sides read `ca.crt` again when it changes. The first certificate in it is the authority that
signs new certificates.
"""

from __future__ import annotations

import re
import secrets
import shutil
import ssl
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from latfarm_protos.trust.identity import fingerprint_of

from latfarm_controller.agents.certificates.authority import (
    CA_DAYS,
    Authority,
    OpensslError,
    end_s,
    install,
)
from latfarm_controller.errors import UsageError

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_NAME = re.compile(r"(?:DNS|IP Address):([^,\s]+)")


class RotationStep(StrEnum):
    """How far the rotation is: not begun, or after which of its steps."""

    SINGLE = "single"
    BEGUN = "begun"
    SWITCHED = "switched"


@dataclass(frozen=True, slots=True)
class TrustedAuthority:
    """An authority that is trusted now.

    It expires at the Unix time `expires_s`. `signs` tells whether it signs new certificates.
    """

    name: str
    fingerprint: str
    expires_s: float
    signs: bool


class CaRotation:
    """The rotation of the authority in the folder `tls` of a home.

    Every method raises:
        UsageError: there is no authority, another step comes first, or openssl fails.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._next_key = authority.folder / "ca-next.key"

    @property
    def step(self) -> RotationStep:
        """The last step that was completed."""
        if len(self._certificates()) < 2:
            return RotationStep.SINGLE
        # `switch` writes the certificates first and moves the key afterwards, so it is not complete
        # while the next key is still there.
        return RotationStep.BEGUN if self._next_key.exists() else RotationStep.SWITCHED

    def trusted(self) -> list[TrustedAuthority]:
        """The authorities that are trusted; the one that signs comes first."""
        return [self._read(text, number) for number, text in enumerate(self._certificates())]

    def begin(self, *, days: int = CA_DAYS) -> None:
        """Make the next authority and trust it, while the present one still signs."""
        self._expect(RotationStep.SINGLE, "a change of authority is under way")
        (old,) = self._certificates()
        if not self._authority.key.exists():
            raise UsageError(f"{self._authority.key}: the authority's key is not on this machine")
        self._authority.secret_of(self._authority.key)
        with self._scratch() as scratch:
            # The authority gets a subject of its own, because certificates name their signer by it.
            name = f"latfarm farm {secrets.token_hex(4)}"
            self._authority.make_root(scratch, name, days)
            install(Path(scratch) / "new.key", self._next_key)
            self._write([old, (Path(scratch) / "new.crt").read_text(encoding="ascii")])

    def switch(self) -> None:
        """Sign with the next authority from now on, and still trust the old one.

        This machine's own certificate is issued again, for the same names.
        """
        self._expect(RotationStep.BEGUN, "there is no next authority to switch to: begin first")
        first, second = self._certificates()
        with self._scratch() as scratch:
            mine = self._public(scratch, self._next_key)
            new, old = (first, second) if self._key_of(scratch, first) == mine else (second, first)
            if self._key_of(scratch, new) != mine:
                raise UsageError(f"{self._next_key}: is the key of no certificate in ca.crt")
        self._write([new, old])
        self._next_key.replace(self._authority.key)
        own = self._authority.folder / "controller.crt"
        if own.exists():
            self._authority.issue_own(self._names(own))

    def finish(self, *, force: bool = False) -> None:
        """Stop trusting the old authority.

        Args:
            force: do so even if there are valid certificates that it signed, which are then refused
                everywhere.

        Raises:
            UsageError: another step comes first, or there are such certificates and no `force`.
        """
        self._expect(
            RotationStep.SWITCHED, "the next authority does not sign yet: begin and switch first"
        )
        left = self.left_behind()
        if left and not force:
            raise UsageError(
                f"still signed by the old authority: {', '.join(left)}; issue them anew "
                "(latfarm certs issue NAME --role ROLE --replace), revoke them, or give --force"
            )
        self._write(self._certificates()[:1])

    def left_behind(self) -> list[str]:
        """The names of the valid certificates issued here that the signing authority did not sign.

        They must be issued again before the rotation is finished.
        """
        texts = self._certificates()
        if len(texts) < 2:
            return []
        with self._scratch() as scratch:
            signer = Path(scratch) / "signer.crt"
            signer.write_text(texts[0], encoding="ascii")
            valid = [one for one in self._authority.list() if one.state == "valid"]
            ready = {one.name for one in valid if self._signed(scratch, signer, one.path)}
        return list(dict.fromkeys(one.name for one in valid if one.name not in ready))

    def _expect(self, step: RotationStep, otherwise: str) -> None:
        if self.step is not step:
            raise UsageError(f"{self._authority.cert}: {otherwise} (state: {self.step})")

    def _certificates(self) -> list[str]:
        try:
            text = self._authority.cert.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise UsageError(
                f"{self._authority.cert}: there is no authority here; latfarm certs init"
            ) from error
        found: list[str] = _PEM.findall(text)
        if not 1 <= len(found) <= 2:
            raise UsageError(f"{self._authority.cert}: must hold one authority or two")
        return found

    def _write(self, texts: list[str]) -> None:
        with self._scratch() as scratch:
            bundle = Path(scratch) / "bundle.crt"
            bundle.write_text("".join(f"{text.strip()}\n" for text in texts), encoding="ascii")
            install(bundle, self._authority.cert)

    def _read(self, text: str, number: int) -> TrustedAuthority:
        with self._scratch() as scratch:
            (Path(scratch) / "one.crt").write_text(text, encoding="ascii")
            words = ("x509", "-noout", "-subject", "-enddate", "-nameopt", "multiline")
            said = self._authority.openssl(scratch, *words, "-in", "one.crt")
        name = re.search(r"commonName\s*=\s*(.*)", said)
        return TrustedAuthority(
            name[1].strip() if name else "",
            fingerprint_of(ssl.PEM_cert_to_DER_cert(f"{text}\n")),
            end_s(said, self._authority.cert),
            number == 0,
        )

    def _names(self, cert: Path) -> list[str]:
        """The host names and addresses that a certificate is for."""
        words = ("x509", "-noout", "-ext", "subjectAltName", "-in", cert.absolute())
        with self._scratch() as scratch:
            return _NAME.findall(self._authority.openssl(scratch, *words))

    def _public(self, scratch: str, key: Path) -> str:
        secret = self._authority.secret_of(key)
        words = ("pkey", "-pubout", "-in", key.absolute(), "-passin", "stdin")
        return self._authority.openssl(scratch, *words, secret=secret)

    def _key_of(self, scratch: str, text: str) -> str:
        (Path(scratch) / "one.crt").write_text(text, encoding="ascii")
        return self._authority.openssl(scratch, "x509", "-noout", "-pubkey", "-in", "one.crt")

    def _signed(self, scratch: str, signer: Path, cert: Path) -> bool:
        try:
            words = ("verify", "-CAfile", signer.name, "-no-CApath", "-no-CAstore")
            self._authority.openssl(scratch, *words, cert.absolute())
        except OpensslError:
            return False
        return True

    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        if shutil.which("openssl") is None:
            raise UsageError("the openssl command is needed: apt-get install openssl")
        return tempfile.TemporaryDirectory(dir=self._authority.folder)
