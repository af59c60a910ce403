"""What an attacker tries with connections, certificates, clocks and claims."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from latfarm_agent.service.server import AgentServer
from latfarm_agent.service.tls import AgentTlsFiles
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.errors import CertificateError, StoreBusyError
from latfarm_protos.trust.contexts import Files, client_context
from latfarm_protos.trust.gate import Gate, GateLimits
from latfarm_protos.trust.identity import AGENT, CONTROLLER, OPERATOR
from latfarm_protos.v1 import agent_pb2 as pb

from tests.agent.service.conftest import Client, Farm
from tests.security.conftest import Home, channel

DAY_S = 86_400.0
EXABYTE = 1 << 60


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    started = Farm(tmp_path)
    yield started
    started.close()


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock of this process to another time; the monotonic clock goes on."""
    real = time.time

    def set_clock(by_s: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + by_s)

    return set_clock


def until(condition: Callable[[], bool]) -> bool:
    give_up_s = time.monotonic() + 60
    while not condition() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return condition()


def files_of(home: Home, name: str, role: str, days: int = 30) -> Files:
    cert = home.authority.issue(name, role, ["127.0.0.1"], days=days)
    return Files(cert, cert.with_suffix(".key"), home.authority.cert)


def agent_of(farm: Farm, home: Home) -> AgentServer:
    board = files_of(home, "board", AGENT)
    return farm.start(tls=AgentTlsFiles(board.cert, board.key, board.ca))


def client_of(farm: Farm, server: AgentServer, files: Files) -> Client:
    parts = (files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes())
    return farm.client(server, grpc.ssl_channel_credentials(*parts))


def served(home: Home, look: Callable[[ControllerServer], Any]) -> Any:
    """Run `look` in a thread beside a controller, and return its result."""

    async def play() -> Any:
        async with home.serving() as server:
            return await asyncio.to_thread(look, server)

    return asyncio.run(play())


def test_a_certificate_that_expires_while_connected_is_cut_off(
    own_home: Home, farm: Farm, jump: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "latfarm_protos.trust")
    server = agent_of(farm, own_home)
    short = client_of(farm, server, files_of(own_home, "short", CONTROLLER, days=2))
    lasting = client_of(farm, server, files_of(own_home, "lasting", CONTROLLER, days=30))
    assert short.state() == lasting.state() == "idle"
    jump(3 * DAY_S)
    assert until(lambda: "has expired: cut off" in caplog.text)
    assert lasting.state() == "idle"

    def refused() -> bool:
        with pytest.raises(grpc.RpcError) as caught:
            short.state()
        return caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    assert until(refused)
    assert "[expired]" in caplog.text


def test_a_board_whose_certificate_expires_while_connected_is_not_called_again(
    own_home: Home, farm: Farm, jump: Callable[[float], None]
) -> None:
    board = files_of(own_home, "board", AGENT, days=2)
    server = farm.start(tls=AgentTlsFiles(board.cert, board.key, board.ca))
    mine = files_of(own_home, "controller-2", CONTROLLER)
    ours = ControllerTlsFiles(mine.ca, mine.cert, mine.key, "board")

    async def play() -> None:
        patience = Patience(call_ms=10_000)
        async with AgentClient(f"127.0.0.1:{server.port}", "me", ours, patience=patience) as client:
            await client.describe()
            jump(3 * DAY_S)
            with pytest.raises(CertificateError, match="is expired"):
                await client.describe()

    asyncio.run(play())


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S], ids=["forward", "back"])
def test_a_clock_that_jumps_by_a_day_ends_no_lease_and_no_connection(
    own_home: Home, farm: Farm, jump: Callable[[float], None], by_s: float
) -> None:
    server = agent_of(farm, own_home)
    client = client_of(farm, server, files_of(own_home, "controller-2", CONTROLLER))
    token = client.acquire()
    jump(by_s)
    assert client.state() == "leased"
    client.upload(token)
    with pytest.raises(grpc.RpcError):
        client.acquire("bob")
    client.release(token)
    assert client.state() == "idle"


def attempt(port: int, files: Files | None, words: bytes, newest: ssl.TLSVersion) -> bytes:
    """What a port answers to some bytes, inside TLS or in the clear."""
    heard = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
    ):
        if files is None:
            plain.sendall(words)
            return plain.recv(1 << 14)
        context = client_context(files)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = newest
        context.set_alpn_protocols(["http/1.1"])
        context.check_hostname = False
        with context.wrap_socket(plain) as wrapped:
            wrapped.sendall(words)
            while data := wrapped.recv(1 << 14):
                heard += data
    return heard


HELLO_WITHOUT_END = b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc\x03\x03"
"""The begin of a first message of TLS that claims 16 KiB (RFC 8446, sections 4 and 5.1)."""

GET = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1152921504606846976\r\n\r\n"


@pytest.mark.parametrize("way", ["plaintext", "HTTP/1", "TLS 1.2"])
def test_other_protocols_get_no_answer_from_an_agent_or_a_controller(
    own_home: Home, farm: Farm, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = agent_of(farm, own_home)
    ours = files_of(own_home, "controller-2", CONTROLLER)
    ada = own_home.client("ada", OPERATOR)
    person = files_of(own_home, "person", OPERATOR)

    def tries(port: int, files: Files) -> bytes:
        newest = ssl.TLSVersion.TLSv1_2 if way == "TLS 1.2" else ssl.TLSVersion.TLSv1_3
        return attempt(port, None if way == "plaintext" else files, GET, newest)

    def look(controller: ControllerServer) -> None:
        for port, files in (
            (server.port, ours),
            (int(controller.outside.rpartition(":")[2]), person),
        ):
            answer = tries(port, files)
            assert b"200" not in answer
            assert b"HTTP/1" not in answer
        with channel(controller, ada) as opened:
            assert ControllerClient(opened).boards()

    served(own_home, look)
    assert client_of(farm, server, ours).state() == "idle"
    if way != "HTTP/1":  # with a certificate, the bytes reach the HTTP/2 server, which ends them
        reason = "not_tls" if way == "plaintext" else "old_tls"
        assert caplog.text.count(f"[{reason}]") == 2


def test_a_handshake_that_comes_byte_by_byte_has_the_same_deadline(
    own_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "latfarm_protos.trust")
    board = files_of(own_home, "board", AGENT)
    gate = Gate(board, (CONTROLLER,), limits=GateLimits(handshake_s=0.5))
    port = gate.listen("127.0.0.1", 0)
    gate.start()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
            slow.sendall(HELLO_WITHOUT_END)
            slow.settimeout(0.05)
            while True:  # far beyond the deadline, unless the gate ends it
                try:
                    if not slow.recv(1):
                        break
                except TimeoutError:
                    with contextlib.suppress(OSError):
                        slow.sendall(b"\0")
                except OSError:
                    break
        assert until(lambda: "[timeout]" in caplog.text)
        assert until(lambda: gate.count == 0)
    finally:
        gate.close()


@pytest.mark.parametrize("size_bytes", [EXABYTE, (1 << 63) - 1])
def test_a_claim_of_an_exabyte_is_refused_before_anything_is_kept(
    own_home: Home, farm: Farm, size_bytes: int
) -> None:
    server = agent_of(farm, own_home)
    client = client_of(farm, server, files_of(own_home, "controller-2", CONTROLLER))
    token = client.acquire()
    claim = pb.UploadBlobRequest(token=token, sha256="0" * 64, size_bytes=size_bytes, data=b"x")
    with pytest.raises(grpc.RpcError) as caught:
        client.send([claim])
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    kept = [path for path in (farm.state_dir / "blobs").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) < 4096
    client.upload(token)


@pytest.mark.parametrize("off", [-1, 1, 1 << 40])
def test_stale_and_future_tokens_are_refused(own_home: Home, farm: Farm, off: int) -> None:
    server = agent_of(farm, own_home)
    client = client_of(farm, server, files_of(own_home, "controller-2", CONTROLLER))
    client.release(client.acquire())
    token = client.acquire()
    with pytest.raises(grpc.RpcError):
        client.upload(token + off)
    with pytest.raises(grpc.RpcError):
        client.release(token + off)
    assert client.state() == "leased"
    client.upload(token)


def test_a_second_controller_at_the_same_home_is_refused(own_home: Home) -> None:
    async def play() -> None:
        async with own_home.serving() as server:
            with pytest.raises(StoreBusyError, match="held by process"):
                await ControllerServer.open(own_home.config)
            with grpc.insecure_channel(server.address) as opened:
                boards = await asyncio.to_thread(ControllerClient(opened).boards)
            assert [board.name for board in boards] == ["toy"]

    asyncio.run(play())
