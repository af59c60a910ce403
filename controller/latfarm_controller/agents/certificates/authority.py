"""The farm's certificate authority: a folder of PEM files, made with the openssl command.

```
tls/ca.crt ca.key                  the authority; its key never leaves this machine. While a new
                                   authority takes over (ca_rotation.py), ca.crt holds both
tls/controller.crt controller.key  what this machine shows to boards, and to clients that call it
tls/client.crt client.key          what commands of this machine show to another controller
tls/issued/NAME.crt [NAME.key]     the newest certificate of each name that was issued here
tls/signed/SHA256.crt              all certificates that were signed (signed.py)
tls/revoked.json                   fingerprints of revoked certificates; boards get a copy
tls/revoked.json.lock              is held while revoked.json is read and written
```

Other tools may sign with the same authority, as Ansible's community.crypto does, which hands each
certificate to `keep`. What counts in a certificate is the role in its subject alternative names,
and its extended key usage.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import BinaryIO

from latfarm_predictors.whole_file import written_whole
from latfarm_protos.trust.identity import (
    AGENT,
    BOARD_PREFIX,
    CONTROLLER,
    ROLE_PREFIX,
    ROLES,
)
from latfarm_protos.trust.revoked import FILE_NAME, RevokedError, read_revoked, revoked_text

from latfarm_controller.agents.certificates.passphrase import has_passphrase
from latfarm_controller.agents.certificates.signed import (
    ISSUED,
    Issued,
    SignedCertificates,
    der_of,
    read_der,
)
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import hint
from latfarm_controller.private_files import FILE_MODE, locked_file, private_folder

CA_DAYS = 3650
"""Days that an authority is valid, unless told otherwise."""
DAYS = 365
"""Days that a certificate is valid, unless told otherwise."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_BOTH = "clientAuth,serverAuth"
_USAGE = {AGENT: "serverAuth", CONTROLLER: _BOTH}
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_PASSIN = ("-passin", "stdin")
_CONFIG = "[req]\ndistinguished_name=dn\n[dn]\n"


class OpensslError(UsageError):
    """The openssl command ran, and refused what it was given."""


class Authority:
    """The certificate authority in a folder.

    Args:
        folder: the folder.
        passphrase: of the authority's key; empty: a new key gets none.

    Every method raises:
        UsageError: a file is missing, or exists and must not, a name is malformed, or openssl
            fails.
    """

    def __init__(self, folder: Path, passphrase: str = "") -> None:
        self.folder = folder
        self._passphrase = passphrase
        self._signed = SignedCertificates(folder)
        self.cert = folder / "ca.crt"
        self.key = folder / "ca.key"
        self.revoked_file = folder / FILE_NAME

    def init(self, names: Sequence[str] = (), *, days: int = CA_DAYS) -> list[Path]:
        """Make the authority and this machine's own certificate; returns the files that were made.

        Args:
            names: further host names and addresses by which this machine is called.
            days: how long the authority is valid; the certificate is valid for a year.
        """
        if self.cert.exists() or self.key.exists():
            raise UsageError(f"{self.cert}: there is an authority already; it is left as it is")
        private_folder(self.folder)
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            self.make_root(scratch, "latfarm farm", days)
            install(Path(scratch) / "new.key", self.key)
            install(Path(scratch) / "new.crt", self.cert)
        self._write_revoked(set())
        here = ("localhost", "127.0.0.1", "::1", socket.gethostname())
        self.issue_own([*here, *names])
        return [self.cert, self.key, self.folder / "controller.crt", self.folder / "controller.key"]

    def make_root(self, scratch: str, name: str, days: int) -> None:
        """Make an authority in the folder `scratch`: `new.key` and the self-signed `new.crt`."""
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign")
        added = [word for text in extensions for word in ("-addext", text)]
        locked = ("-aes-256-cbc", "-pass", "stdin") if self._passphrase else ()
        self.openssl(
            scratch, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
            *locked, "-out", "new.key", secret=self._passphrase,
        )  # fmt: skip
        self.openssl(
            scratch, "req", "-x509", "-days", str(days), "-subj", f"/CN={name}", *added,
            *("-key", "new.key", *_PASSIN, "-out", "new.crt"), secret=self._passphrase,
        )  # fmt: skip

    def secret_of(self, key: Path) -> str:
        """The passphrase of a private key of the authority; empty if the key has none.

        Raises:
            UsageError: it has one, and none or another one was given.
        """
        if not has_passphrase(key):
            return ""
        if not self._passphrase:
            raise UsageError(f"{key}: has a passphrase; give a file with it: --passphrase-file")
        try:
            words = ("pkey", "-in", key.absolute(), "-noout", *_PASSIN)
            self.openssl(str(self.folder), *words, secret=self._passphrase)
        except OpensslError as error:
            raise UsageError(f"{key}: the passphrase that was given is another one") from error
        return self._passphrase

    def issue_own(self, names: Sequence[str]) -> None:
        """Issue this machine's own certificate, for these host names and addresses."""
        self.issue("controller", CONTROLLER, dict.fromkeys(names))
        for suffix in (".crt", ".key"):
            source = self.folder / "issued" / f"controller{suffix}"
            install(source, self.folder / f"controller{suffix}", copy=True)

    def issue(
        self,
        name: str,
        role: str,
        names: Sequence[str] | dict[str, None] = (),
        *,
        request: Path | None = None,
        days: int = DAYS,
        replace: bool = True,
        board_id: str = "",
        dials_in: bool = False,
    ) -> Path:
        """Issue a certificate; returns its file. If a key is made too, it lies beside that file.

        Args:
            name: the common name, and the name of the files in the folder `issued`.
            role: agent, controller, operator or viewer.
            names: host names and addresses that the certificate is for, beside `name`.
            request: a signing request, made by the owner of the key; its subject and extensions are
                ignored. None: a key is made here.
            days: how long the certificate is valid.
            replace: whether to replace an earlier certificate of this name, which stays valid.
            board_id: the id of the board that it is for; no other board can use it then.
            dials_in: the board calls the controller, for which it must be a client as well.
        """
        _check_subject(name, role, board_id)
        if dials_in and role != AGENT:
            raise UsageError(f"only a board dials in, and {name} has the role {role}")
        if not self.key.exists():
            raise UsageError(f"{self.key}: there is no authority here; latfarm certs init")
        secret = self.secret_of(self.key)
        issued = self.folder / ISSUED
        private_folder(issued)
        if not replace and (issued / f"{name}.crt").exists():
            raise UsageError(f"{issued / name}.crt: issued already; give --replace to issue anew")
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            extensions = Path(scratch) / "extensions"
            usage = _BOTH if dials_in else _USAGE.get(role, "clientAuth")
            extensions.write_text(_extensions(role, [name, *names], usage, board_id), "ascii")
            asked = Path(scratch) / "new.csr"
            made = ("-keyout", "new.key") if request is None else ()
            if request is None:
                self.openssl(
                    scratch, "req", "-new", *_NEW_KEY, "-subj", f"/CN={name}", *made, "-out", asked
                )
            else:
                asked = request.absolute()
            self.openssl(
                scratch, "x509", "-req", "-in", asked, "-CA", self.cert.absolute(),
                "-CAkey", self.key.absolute(), *_PASSIN, "-subj", f"/CN={name}",
                "-set_serial", f"0x{secrets.token_hex(16)}", "-days", str(days), "-sha256",
                "-extfile", extensions, "-out", "new.crt", secret=secret,
            )  # fmt: skip
            self._signed.keep(Path(scratch) / "new.crt")
            if request is None:
                install(Path(scratch) / "new.key", issued / f"{name}.key")
            else:
                (issued / f"{name}.key").unlink(missing_ok=True)
            install(Path(scratch) / "new.crt", issued / f"{name}.crt")
        return issued / f"{name}.crt"

    def keep(self, source: Path) -> tuple[Issued, bool]:
        """Keep a certificate that another program signed with this authority, as Ansible does.

        Args:
            source: a PEM file with the certificate.

        Returns:
            The certificate, and whether it was not kept before.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            copy = Path(scratch) / "kept.crt"
            copy.write_text(ssl.DER_cert_to_PEM_cert(der_of(source)), encoding="ascii")
            words = ("-CAfile", self.cert.absolute(), "-no-CApath", "-no-CAstore")
            try:
                self.openssl(scratch, "verify", "-no_check_time", *words, copy.name)
            except OpensslError as error:
                raise UsageError(f"{source}: was not signed by {self.cert}") from error
            return self._signed.keep(copy)

    def revoke(self, which: str) -> list[Issued]:
        """Revoke certificates for ever; returns them. The name of one means all of that name.

        Args:
            which: a name, a serial number or a fingerprint in hex, or a PEM file.
        """
        known = self.list()
        number = which.lower().replace(":", "")
        found = [one for one in known if which == one.name]
        found += [one for one in known if number == one.fingerprint]
        found += [one for one in known if number.lstrip("0") == one.serial.lstrip("0")]
        if not found and re.fullmatch(r"[0-9a-f]{64}", number):
            found = [Issued("", (), number, 0.0, Path())]  # it was signed elsewhere
        if not found:
            path = Path(which)
            if not path.is_file():
                names = ", ".join(dict.fromkeys(one.name for one in known)) or "none"
                raise UsageError(
                    f"no certificate of {which!r} is known here, and there is no such file; "
                    f"names with a certificate: {names}{hint(which, (one.name for one in known))}"
                )
            found = [read_der(der_of(path), path)]
        with self._revoking():
            self._write_revoked({*self.revoked(), *(one.fingerprint for one in found)})
        return [dataclasses.replace(one, revoked=True) for one in found]

    def revoked(self) -> frozenset[str]:
        """The fingerprints of all revoked certificates."""
        try:
            return read_revoked(self.revoked_file) if self.revoked_file.exists() else frozenset()
        except RevokedError as error:
            raise UsageError(str(error)) from error

    def list(self) -> list[Issued]:
        """All certificates that are known to be signed by this authority, sorted by name."""
        return self._signed.list(self.revoked())

    def _revoking(self) -> BinaryIO:
        """Let nobody else change what is revoked meanwhile, or one of two lists would be lost."""
        try:
            return locked_file(self.revoked_file.with_name(f"{FILE_NAME}.lock"))
        except OSError as error:
            raise UsageError(f"{self.revoked_file}: cannot be written: {error.strerror}") from error

    def _write_revoked(self, fingerprints: set[str]) -> None:
        try:
            with written_whole(self.revoked_file, durable=True, mode=FILE_MODE) as part:
                part.write_text(revoked_text(fingerprints), encoding="ascii")
        except OSError as error:
            raise UsageError(f"{self.revoked_file}: cannot be written: {error.strerror}") from error

    def openssl(self, folder: str, *words: object, secret: str = "") -> str:
        """Run openssl in a folder and return what it prints, which never contains a key.

        Args:
            folder: where it runs.
            words: its arguments.
            secret: a passphrase, for its standard input.
        """
        command = shutil.which("openssl")
        if command is None:
            raise UsageError("the openssl command is needed: apt-get install openssl")
        config = Path(folder) / ".openssl.cnf"
        config.write_text(_CONFIG, encoding="ascii")
        try:
            done = subprocess.run(
                [command, *map(str, words)], cwd=folder, capture_output=True, text=True,
                check=False, input=f"{secret}\n", umask=0o077,
                env={**os.environ, "OPENSSL_CONF": str(config)},
            )  # fmt: skip
        finally:
            config.unlink(missing_ok=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip(".+*-")]
            raise OpensslError(f"openssl {words[0]} failed: {' / '.join(lines[-3:])}")
        return done.stdout


def _check_subject(name: str, role: str, board_id: str) -> None:
    """Check what a certificate is to be for.

    Raises:
        UsageError: there can be no such certificate.
    """
    if board_id and (role != AGENT or not _NAME.fullmatch(board_id)):
        raise UsageError(
            f"board id {board_id!r}: only for the role {AGENT}; letters, digits, '.', '_' and "
            "'-' only, at most 63"
        )
    if not _NAME.fullmatch(name):
        raise UsageError(f"name {name!r}: letters, digits, '.', '_' and '-' only, at most 63")
    if role not in ROLES:
        raise UsageError(f"no role {role!r}; there are: {', '.join(ROLES)}")


def _extensions(role: str, names: Sequence[str], usage: str, board_id: str) -> str:
    named = [_alternative(name) for name in dict.fromkeys(names)]
    named += [f"URI:{BOARD_PREFIX}{board_id}"] if board_id else []
    return (
        "basicConstraints=critical,CA:FALSE\n"
        "keyUsage=critical,digitalSignature\n"
        f"extendedKeyUsage={usage}\n"
        f"subjectAltName={','.join([*named, f'URI:{ROLE_PREFIX}{role}'])}\n"
    )


def _alternative(name: str) -> str:
    with suppress(ValueError):
        return f"IP:{ip_address(name)}"
    if not re.fullmatch(r"[A-Za-z0-9*][A-Za-z0-9._*-]{0,252}", name):
        raise UsageError(f"{name!r} is neither a host name nor an address")
    return f"DNS:{name}"


def end_s(text: str, path: Path) -> float:
    """When a certificate expires, in Unix time, from the output of `openssl x509 -enddate`.

    Raises:
        UsageError: the output contains no end date; the message names `path`.
    """
    ends = re.search(r"notAfter=(.*)", text)
    if ends is None:
        raise UsageError(f"{path}: openssl does not say when it ends")
    return float(ssl.cert_time_to_seconds(ends[1].strip()))


def install(source: Path, target: Path, *, copy: bool = False) -> None:
    """Move a file to its place in one step, or copy it there; only its owner may read it."""
    try:
        with written_whole(target, mode=FILE_MODE) as part:
            part.write_bytes(source.read_bytes())
        if not copy:
            source.unlink()
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from error
