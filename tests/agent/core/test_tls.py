"""Mutual TLS with certificates that the openssl command makes, and their renewal while serving."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from latfarm_agent import errors
from latfarm_agent.tls import CertificateReloader, TlsFiles
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.agent.core.conftest import Client, Farm

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificates with the openssl command"
)

NEW_KEY = ("-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


class Authority:
    """A CA in a folder."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.cert = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        self._serial = 100
        config = directory / "openssl.cnf"
        config.write_text("[req]\ndistinguished_name=dn\n[dn]\n")
        self._openssl(
            *("req", "-x509", "-days", "2", *NEW_KEY),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-subj", f"/CN={name}"),
            *("-keyout", self.key, "-out", self.cert),
        )

    def issue(self, name: str) -> TlsFiles:
        """A certificate for 127.0.0.1; the same name again replaces its files."""
        self._serial += 1
        base = self.directory / name
        extensions = self.directory / "extensions.cnf"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl(
            *("req", "-new", *NEW_KEY),
            *("-subj", f"/CN={name}", "-keyout", f"{base}.key", "-out", f"{base}.csr"),
        )
        self._openssl(
            *("x509", "-req", "-days", "2", "-in", f"{base}.csr", "-CA", self.cert),
            *("-CAkey", self.key, "-set_serial", self._serial, "-extfile", extensions),
            *("-out", f"{base}.pem"),
        )
        return TlsFiles(Path(f"{base}.pem"), Path(f"{base}.key"), self.cert)

    @property
    def last_serial(self) -> int:
        return self._serial

    def _openssl(self, *args: object) -> None:
        command = ["openssl", *(str(arg) for arg in args)]
        environment = {**os.environ, "OPENSSL_CONF": str(self.directory / "openssl.cnf")}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr


def credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
    )


def refused(client: Client) -> bool:
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.Describe(pb.DescribeRequest())
    return bool(caught.value.code() is grpc.StatusCode.UNAVAILABLE)


def served_serial(port: int, files: TlsFiles) -> int:
    """The serial number of the certificate that a new connection meets."""
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(str(files.cert), str(files.key))
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
        certificate = wrapped.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def test_only_clients_with_a_certificate_of_the_ca_get_in(farm: Farm, tmp_path: Path) -> None:
    ca, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "stranger")
    server = farm.start(tls=ca.issue("board"))
    client_files = ca.issue("client")
    assert farm.client(server, credentials(client_files)).state() == "idle"

    assert refused(farm.client(server))
    only_ca = grpc.ssl_channel_credentials(ca.cert.read_bytes())
    assert refused(farm.client(server, only_ca))
    other = stranger.issue("other")
    foreign = TlsFiles(other.cert, other.key, ca.cert)
    assert refused(farm.client(server, credentials(foreign)))
    distrusting = TlsFiles(client_files.cert, client_files.key, stranger.cert)
    assert refused(farm.client(server, credentials(distrusting)))


def test_a_renewed_certificate_serves_new_connections_and_old_ones_live_on(
    farm: Farm, tmp_path: Path
) -> None:
    ca = Authority(tmp_path, "ca")
    board = ca.issue("board")
    first = ca.last_serial
    client_files = ca.issue("client")
    server = farm.start(tls=board)
    client = farm.client(server, credentials(client_files))
    token = client.acquire()
    assert served_serial(server.port, client_files) == first

    ca.issue("board")
    assert served_serial(server.port, client_files) == ca.last_serial
    client.upload(token)

    board.cert.write_text("half-written")
    assert farm.client(server, credentials(client_files)).state() == "leased"
    ca.issue("board")
    assert served_serial(server.port, client_files) == ca.last_serial


def test_the_reloader_gives_a_configuration_only_when_something_changed(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    files = ca.issue("board")
    reloader = CertificateReloader(files)
    assert reloader.fetch() is None
    ca.issue("board")
    assert reloader.fetch() is not None
    assert reloader.fetch() is None
    files.key.unlink()
    assert reloader.fetch() is None, "the old one serves on"
    ca.issue("board")
    assert reloader.fetch() is not None


def test_files_that_do_not_fit_together_are_refused_at_the_start(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    one, two = ca.issue("one"), ca.issue("two")
    missing = tmp_path / "missing.pem"
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    for files in (
        TlsFiles(one.cert, two.key, ca.cert),
        TlsFiles(missing, one.key, ca.cert),
        TlsFiles(one.cert, one.key, missing),
        TlsFiles(garbage, one.key, ca.cert),
        TlsFiles(one.cert, one.key, garbage),
    ):
        with pytest.raises(errors.UsageError, match="TLS file"):
            CertificateReloader(files)
