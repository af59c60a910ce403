"""Mutual TLS with certificates from the openssl command: who is let in, who is refused, and why."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import grpc
import pytest
from latfarm_agent import errors
from latfarm_agent.service.tls import AgentTlsFiles, open_gate
from latfarm_protos.trust.crowd import CrowdLimits
from latfarm_protos.trust.gate import Gate, GateLimits
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from latfarm_agent.service.server import AgentServer
    from tests.agent.service.conftest import Client, Farm

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificates with the openssl command"
)

NEW_KEY = ("-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


class Authority:
    """A certificate authority in a folder."""

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
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,digitalSignature", "-subj", f"/CN={name}"),
            *("-keyout", self.key, "-out", self.cert),
        )

    def issue(self, name: str, role: str = "controller", days: int = 2) -> AgentTlsFiles:
        """Make a certificate for 127.0.0.1; a second one with the same name replaces the files."""
        self._serial += 1
        base = self.directory / name
        extensions = self.directory / "extensions.cnf"
        named = f"IP:127.0.0.1,URI:urn:latfarm:role:{role}" if role else "IP:127.0.0.1"
        extensions.write_text(f"subjectAltName={named}\n")
        self._openssl(
            *("req", "-new", *NEW_KEY),
            *("-subj", f"/CN={name}", "-keyout", f"{base}.key", "-out", f"{base}.csr"),
        )
        self._openssl(
            *("x509", "-req", "-days", str(days), "-in", f"{base}.csr", "-CA", self.cert),
            *("-CAkey", self.key, "-set_serial", self._serial, "-extfile", extensions),
            *("-out", f"{base}.pem"),
        )
        return AgentTlsFiles(Path(f"{base}.pem"), Path(f"{base}.key"), self.cert)

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


def credentials(files: AgentTlsFiles) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
    )


def refused(client: Client) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.Describe(pb.DescribeRequest())
    code: grpc.StatusCode = caught.value.code()
    return code


def served_serial(port: int, files: AgentTlsFiles) -> int:
    """The serial number of the certificate that a new connection receives."""
    with handshake(port, files) as wrapped:
        certificate = wrapped.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def handshake(
    port: int, files: AgentTlsFiles, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(files.ca))
    context.maximum_version = newest
    context.load_cert_chain(str(files.cert), str(files.key))
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    try:
        return context.wrap_socket(plain, server_hostname="127.0.0.1")
    except BaseException:
        plain.close()
        raise


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[str], bool]:
    """Waits until the log has a text."""
    caplog.set_level("INFO", "latfarm_protos.trust")

    def said(text: str) -> bool:
        return until(lambda: text in caplog.text)

    return said


def until(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def turned_away(server: AgentServer, reason: str) -> float:
    value = server.metrics.registry.get_sample_value(
        "latfarm_agent_refused_connections_total", {"reason": reason}
    )
    return value or 0.0


def test_the_controller_gets_in(farm: Farm, ca: Authority) -> None:
    server = farm.start(tls=ca.issue("board", "agent"))
    assert farm.client(server, credentials(ca.issue("client"))).state() == "idle"


@pytest.mark.parametrize(
    ("case", "reason", "told"),
    [
        ("missing", "missing", "it shows no certificate"),
        ("expired", "expired", "its certificate is expired"),
        ("wrong_ca", "wrong_ca", "its certificate is of another CA"),
        ("self_signed", "wrong_ca", "its certificate is signed by itself"),
        ("plain", "not_tls", "it does not speak TLS"),
        ("old_tls", "old_tls", "it speaks no TLS 1.3"),
    ],
)
def test_a_handshake_that_fails_is_told_in_the_log_and_counted(
    farm: Farm, ca: Authority, tmp_path: Path, log: Callable[[str], bool], case: str,
    reason: str, told: str,
) -> None:  # fmt: skip
    server = farm.start(tls=ca.issue("board", "agent"))
    ours = ca.issue("client", days=-1 if case == "expired" else 2)
    stranger = Authority(tmp_path, "stranger")
    if case == "plain":
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
            plain.sendall(b"hello, are you there?\r\n\r\n")
            assert plain.recv(100)[:1] in (b"", b"\x15"), "an alert at most"
    elif case == "old_tls":
        with pytest.raises(ssl.SSLError):
            handshake(server.port, ours, ssl.TLSVersion.TLSv1_2)
    else:
        other = stranger.issue("other")
        shown: dict[str, tuple[bytes, ...]] = {
            "missing": (),
            "expired": (ours.key.read_bytes(), ours.cert.read_bytes()),
            "wrong_ca": (other.key.read_bytes(), other.cert.read_bytes()),
            "self_signed": (stranger.key.read_bytes(), stranger.cert.read_bytes()),
        }
        proof = grpc.ssl_channel_credentials(ca.cert.read_bytes(), *shown[case])
        assert refused(farm.client(server, proof)) is grpc.StatusCode.UNAVAILABLE
    assert log(told)
    assert log(f"[{reason}]")
    assert turned_away(server, reason) >= 1
    assert farm.client(server, credentials(ca.issue("client"))).state() == "idle"


@pytest.mark.parametrize("role", ["", "agent", "viewer", "operator"])
def test_another_role_than_the_controllers_is_refused(
    farm: Farm, ca: Authority, log: Callable[[str], bool], role: str
) -> None:
    server = farm.start(tls=ca.issue("board", "agent"))
    client = farm.client(server, credentials(ca.issue("other", role)))
    assert refused(client) is grpc.StatusCode.PERMISSION_DENIED
    assert log(f"has the role {role or 'none'}, not controller")
    assert turned_away(server, "wrong_role") == 1


def test_a_revoked_certificate_is_refused_and_who_is_connected_is_cut_off(
    farm: Farm, ca: Authority, tmp_path: Path, log: Callable[[str], bool]
) -> None:
    board = ca.issue("board", "agent")
    revoked = tmp_path / "revoked.json"
    server = farm.start(tls=AgentTlsFiles(board.cert, board.key, board.ca, revoked))
    bad, good = ca.issue("bad"), ca.issue("good")
    client = farm.client(server, credentials(bad))
    assert client.state() == "idle"

    shut_out(revoked, bad)
    assert log("was revoked: cut off")
    assert until(lambda: refused(client) is grpc.StatusCode.UNAUTHENTICATED)
    assert log("the certificate of bad (")
    assert farm.client(server, credentials(good)).state() == "idle"

    revoked.write_text("half-writ")
    assert refused(farm.client(server, credentials(bad))) is grpc.StatusCode.UNAUTHENTICATED
    revoked.unlink()
    assert refused(farm.client(server, credentials(bad))) is grpc.StatusCode.UNAUTHENTICATED
    revoked.write_text(json.dumps({"version": 1, "sha256": []}))
    assert farm.client(server, credentials(bad)).state() == "idle"


def shut_out(path: Path, files: AgentTlsFiles) -> None:
    der = ssl.PEM_cert_to_DER_cert(files.cert.read_text())
    listed = {"version": 1, "sha256": [hashlib.sha256(der).hexdigest()]}
    path.write_text(json.dumps(listed))


def test_a_client_that_says_nothing_is_dropped_and_keeps_nobody_out(
    farm: Farm, ca: Authority, tmp_path: Path, log: Callable[[str], bool]
) -> None:
    board, ours = ca.issue("board", "agent"), ca.issue("client")
    crowd = CrowdLimits(per_address=3)
    gate = Gate(board.files, ("controller",), limits=GateLimits(crowd, handshake_s=0.5))
    port = gate.listen("127.0.0.1", 0)
    gate.start()

    def shakes_hands() -> bool:
        # On a busy host, an honest handshake may take too long as well; the next one gets in.
        try:
            handshake(port, ours).close()
        except OSError:
            return False
        return True

    try:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(3)]
        assert [plain.recv(1) for plain in silent] == [b""] * 3
        assert log("its handshake took too long [timeout]")
        assert until(lambda: gate.count == 0)
        # No server runs behind this gate, but the handshake itself is complete.
        assert until(shakes_hands)
        for plain in silent:
            plain.close()
    finally:
        gate.close()
    assert not gate.inner.parent.exists()


def test_one_address_cannot_take_all_connections(
    farm: Farm, ca: Authority, log: Callable[[str], bool]
) -> None:
    board, ours = ca.issue("board", "agent"), ca.issue("client")
    gate = Gate(board.files, ("controller",), limits=GateLimits(CrowdLimits(per_address=2)))
    with socket.socket(socket.AF_UNIX) as behind:
        behind.bind(str(gate.inner))
        behind.listen()
        behind.settimeout(30)
        port = gate.listen("127.0.0.1", 0)
        gate.start()
        try:
            held: list[socket.socket] = []
            for _ in range(2):
                # The gate connects to the server when it lets a client in.
                held += [handshake(port, ours), behind.accept()[0]]
            with socket.create_connection(("127.0.0.1", port), timeout=30) as third:
                assert third.recv(1) == b""
            assert log("2 connections of this address are open [too_many]")
            assert gate.count == 2
            for one in held:
                one.close()
        finally:
            gate.close()


def test_a_large_model_goes_through_whole(farm: Farm, ca: Authority) -> None:
    server = farm.start(tls=ca.issue("board", "agent"))
    client = farm.client(server, credentials(ca.issue("client")))
    data = bytes(range(256)) * (20 << 12)
    token = client.acquire()
    sha256 = hashlib.sha256(data).hexdigest()
    state = client.stub.UploadBlob(
        pb.UploadBlobRequest(
            token=token, sha256=sha256, size_bytes=len(data), data=data[start : start + (1 << 20)],
        )
        for start in range(0, len(data), 1 << 20)
    )  # fmt: skip
    assert state.complete


def test_a_renewed_certificate_serves_new_connections_and_old_ones_live_on(
    farm: Farm, tmp_path: Path
) -> None:
    ca = Authority(tmp_path, "ca")
    board = ca.issue("board", "agent")
    first = ca.last_serial
    client_files = ca.issue("client")
    server = farm.start(tls=board)
    client = farm.client(server, credentials(client_files))
    token = client.acquire()
    assert served_serial(server.port, client_files) == first

    ca.issue("board", "agent")
    assert served_serial(server.port, client_files) == ca.last_serial
    client.upload(token)

    board.cert.write_text("half-written")
    assert farm.client(server, credentials(client_files)).state() == "leased"
    ca.issue("board", "agent")
    assert served_serial(server.port, client_files) == ca.last_serial


def test_files_that_do_not_fit_together_are_refused_at_the_start(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    one, two = ca.issue("one"), ca.issue("two")
    missing = tmp_path / "missing.pem"
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    for files in (
        AgentTlsFiles(one.cert, two.key, ca.cert),
        AgentTlsFiles(missing, one.key, ca.cert),
        AgentTlsFiles(one.cert, one.key, missing),
        AgentTlsFiles(garbage, one.key, ca.cert),
        AgentTlsFiles(one.cert, one.key, garbage),
    ):
        with pytest.raises(errors.AgentUsageError, match="TLS file"):
            open_gate(files, lambda _reason: None)
        with pytest.raises(errors.AgentUsageError, match="TLS file"):
            files.read()
    with pytest.raises(errors.AgentUsageError, match="is no JSON"):
        open_gate(AgentTlsFiles(one.cert, one.key, ca.cert, garbage), lambda _reason: None)
