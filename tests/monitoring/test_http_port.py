"""The port for metrics: who may read it, what it answers, and changes of certificates."""

from __future__ import annotations

import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from latfarm_protos.trust.contexts import Files, client_context
from latfarm_protos.trust.expiry import der_expires_at_s, expires_at_s
from latfarm_protos.trust.http_port import LIMITS, HttpPort, Page
from latfarm_protos.trust.identity import Identity, fingerprint_of

from tests.monitoring.certificates import Authority

PAGES = {"/metrics": lambda: Page(b"a 1\n"), "/-/healthy": lambda: Page(b"ill\n", status=503)}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


class Door:
    """A port with certificates, which keeps the reasons of its refusals."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.refused: list[str] = []
        self.readers: list[Identity] = []
        self.port = HttpPort("127.0.0.1", 0, PAGES, files, self.refused.append, self.readers.append)

    def refuses(self, *reasons: str) -> bool:
        """Whether it refused for these reasons, in this order; the last one may come late."""
        give_up_s = time.monotonic() + 30.0
        while len(self.refused) < len(reasons) and time.monotonic() < give_up_s:
            time.sleep(0.01)
        return self.refused == list(reasons)

    def read(self, files: Files | None, path: str = "/metrics") -> str:
        """The page that a client with these files reads."""
        context = ssl.create_default_context(cafile=str(self.files.ca))
        if files is not None:
            context = client_context(files)
            context.set_alpn_protocols(["h2", "http/1.1"])  # as Prometheus offers
        url = f"https://127.0.0.1:{self.port.port}{path}"
        with urllib.request.urlopen(url, timeout=20, context=context) as answer:
            return str(answer.read().decode())


@pytest.fixture
def door(authority: Authority) -> Iterator[Door]:
    door = Door(authority.issue("board", "agent"))
    yield door
    door.port.close()


@pytest.mark.parametrize("role", ["viewer", "operator", "controller"])
def test_certificates_with_a_reading_role_may_read(
    door: Door, authority: Authority, role: str
) -> None:
    assert door.port.scheme == "https"
    files = authority.issue(role, role)
    assert door.read(files) == "a 1\n"
    assert door.refused == []
    (reader,) = door.readers
    assert (reader.name, reader.roles) == (role, (role,))
    assert reader.expires_s == expires_at_s(files.cert)


@pytest.mark.parametrize(("name", "reason"), [("agent", "wrong_role"), ("", "wrong_role")])
def test_other_roles_of_the_farm_may_not_read(
    door: Door, authority: Authority, name: str, reason: str
) -> None:
    with pytest.raises(OSError, match=r"(?i)ssl|reset|closed"):
        door.read(authority.issue("other", name))
    assert door.refuses(reason), door.refused


def test_clients_without_our_certificate_may_not_read(door: Door, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"(?i)ssl|reset|closed"):
        door.read(None)
    stranger = Authority(tmp_path / "other").issue("viewer", "viewer")
    with pytest.raises(OSError, match=r"(?i)ssl|reset|closed"):
        door.read(Files(stranger.cert, stranger.key, door.files.ca))
    with socket.create_connection(("127.0.0.1", door.port.port)) as plain:
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        heard = b""
        with suppress(ConnectionResetError):
            heard = plain.recv(1000)
        assert b"a 1" not in heard
    assert door.refuses("missing", "wrong_ca", "not_tls"), door.refused
    assert door.readers == []


def test_the_revoked_are_shut_out_at_once(door: Door, authority: Authority) -> None:
    viewer = authority.issue("late", "viewer")
    assert door.read(viewer)
    der = ssl.PEM_cert_to_DER_cert(viewer.cert.read_text().split("\n\n")[-1])
    revoked = authority.folder / "revoked.json"
    revoked.write_text(json.dumps({"version": 1, "sha256": [fingerprint_of(der)]}))
    try:
        with pytest.raises(OSError, match=r"(?i)ssl|reset|closed"):
            door.read(viewer)
        assert door.refuses("revoked"), door.refused
    finally:
        revoked.write_text(json.dumps({"version": 1, "sha256": []}))


def test_a_new_certificate_is_taken_without_a_restart(door: Door, authority: Authority) -> None:
    viewer = authority.issue("viewer", "viewer")
    before = expires_at_s(door.files.cert)
    authority.issue("board", "agent", days=30)
    with socket.create_connection(("127.0.0.1", door.port.port)) as plain:
        context = client_context(viewer)
        with context.wrap_socket(plain, server_hostname="board") as wrapped:
            shown = der_expires_at_s(wrapped.getpeercert(binary_form=True) or b"")
    assert shown == expires_at_s(door.files.cert) > before + 86400


def test_plain_on_loopback_with_pages_and_without() -> None:
    port = HttpPort("127.0.0.1", 0, PAGES)
    try:
        url = f"http://127.0.0.1:{port.port}"
        with urllib.request.urlopen(f"{url}/metrics?x=1", timeout=20) as answer:
            assert answer.read() == b"a 1\n"
        for path, status in (("/-/healthy", 503), ("/etc/passwd", 404), ("/metrics/..", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url + path, timeout=20)
            assert caught.value.code == status
            caught.value.close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, b"x", method="POST"), timeout=20)
        assert refused.value.code == 501
        refused.value.close()
    finally:
        port.close()


def test_the_idle_make_room_for_a_client_with_a_request() -> None:
    refused: list[str] = []
    port = HttpPort("127.0.0.1", 0, PAGES, on_refused=refused.append)
    most = LIMITS.unfinished_per_address
    idle = [socket.create_connection(("127.0.0.1", port.port), timeout=20) for _ in range(most)]
    try:
        with socket.create_connection(("127.0.0.1", port.port), timeout=20) as late:
            assert idle[0].recv(10) == b"", "the oldest one made room"
            late.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"a 1" in late.makefile("rb").read()
        assert refused == ["too_many"]
    finally:
        for one in idle:
            one.close()
        port.close()


def test_a_request_that_comes_slowly_keeps_nobody_out() -> None:
    port = HttpPort("127.0.0.1", 0, PAGES)
    most = LIMITS.unfinished_per_address
    slow = [socket.create_connection(("127.0.0.1", port.port), timeout=20) for _ in range(most)]
    try:
        for one in slow:
            one.sendall(b"GET /metrics HTTP/1.0\r\nX-Slow: a")
        url = f"http://127.0.0.1:{port.port}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.read() == b"a 1\n"
    finally:
        for one in slow:
            one.close()
        port.close()


def test_ends_are_those_that_openssl_reads(authority: Authority) -> None:
    for days in (1, 400, 20_000):  # after 2049 a certificate has its time in another format
        cert = authority.issue("long", days=days).cert
        assert expires_at_s(cert) == ssl.cert_time_to_seconds(authority.ends(cert))
    assert expires_at_s(authority.cert) == ssl.cert_time_to_seconds(authority.ends(authority.cert))


@pytest.mark.parametrize("cut", [0, 1, 2, 30, 120])
def test_what_is_no_certificate_is_told(authority: Authority, tmp_path: Path, cut: int) -> None:
    text = authority.issue("cut").cert.read_text()
    der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN") :])
    with pytest.raises(ValueError, match=r"certificate|tag"):
        der_expires_at_s(der[:cut])
    (tmp_path / "none.crt").write_text("nothing")
    with pytest.raises(ValueError, match="no certificate"):
        expires_at_s(tmp_path / "none.crt")
