"""Silent connections keep nobody out: of an agent, of its metrics, and of a controller."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.service.tls import AgentTlsFiles
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.server import ControllerServer
from latfarm_protos.trust.contexts import Files, client_context
from latfarm_protos.trust.crowd import Caller, CrowdLimits, place_for
from latfarm_protos.trust.identity import AGENT, CONTROLLER, OPERATOR

from tests.agent.service.conftest import Farm
from tests.security.conftest import Home, channel

SILENT = 160
"""Number of silent connections: more than any port takes of one address, or of all."""
ONE = ("127.0.0.1",)
SEVERAL = tuple(f"127.0.0.{number}" for number in range(1, 41))
"""Addresses from which strangers connect; on Linux all of 127.0.0.0/8 is loopback."""
ADDRESSES = pytest.mark.parametrize("addresses", [ONE, SEVERAL], ids=["one", "several"])


@contextlib.contextmanager
def silent(port: int, addresses: Sequence[str]) -> Iterator[list[socket.socket]]:
    """Hold silent connections to a port, from these addresses in turn."""
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(SILENT):
            source = (addresses[number % len(addresses)], 0)
            made = socket.create_connection(("127.0.0.1", port), 30, source_address=source)
            held.append(stack.enter_context(made))
        yield held


def files_of(home: Home, name: str, role: str) -> Files:
    """The files of a new certificate of the home's authority."""
    cert = home.authority.issue(name, role, ["127.0.0.1"])
    return Files(cert, cert.with_suffix(".key"), home.authority.cert)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    started = Farm(tmp_path)
    yield started
    started.close()


def page_of(port: int, files: Files) -> bytes:
    """The page of metrics that a port answers to a client with these files."""
    context = client_context(files)
    context.set_alpn_protocols(["http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        wrapped.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return wrapped.makefile("rb").read()


@ADDRESSES
def test_silent_strangers_keep_nobody_out_of_an_agent_and_its_metrics(
    home: Home, farm: Farm, addresses: Sequence[str]
) -> None:
    from grpc import ssl_channel_credentials

    board, ours = files_of(home, "board", AGENT), files_of(home, "controller-2", CONTROLLER)
    server = farm.start(tls=AgentTlsFiles(board.cert, board.key, board.ca))
    proof = ssl_channel_credentials(
        ours.ca.read_bytes(), ours.key.read_bytes(), ours.cert.read_bytes()
    )
    connected = farm.client(server, proof)
    assert connected.state() == "idle"
    with silent(server.port, addresses):
        assert farm.client(server, proof).state() == "idle"
        assert connected.state() == "idle"
    metrics = server.serve_metrics(0)
    try:
        with silent(metrics.port, addresses):
            page = page_of(metrics.port, ours)
            assert b'latfarm_agent_refused_connections_total{reason="too_many"}' in page
    finally:
        metrics.close()


@ADDRESSES
def test_silent_strangers_keep_nobody_out_of_a_controller(
    home: Home, addresses: Sequence[str]
) -> None:
    ada = home.client("ada", OPERATOR)

    def look(server: ControllerServer) -> None:
        port = int(server.outside.rpartition(":")[2])
        with channel(server, ada) as connected:
            assert ControllerClient(connected).boards()
            with silent(port, addresses):
                with channel(server, ada) as opened:
                    assert ControllerClient(opened).boards()
                assert ControllerClient(connected).boards()

    served(home, look)


def test_the_oldest_silent_connection_makes_room(home: Home) -> None:
    ada = home.client("ada", OPERATOR)
    files = Files(ada.tls_cert or Path(), ada.tls_key or Path(), ada.tls_ca or Path())

    def look(server: ControllerServer) -> None:
        port = int(server.outside.rpartition(":")[2])
        most = CrowdLimits().unfinished_per_address
        with silent(port, ONE) as held:
            assert [one.recv(1) for one in held[:-most]] == [b""] * (SILENT - most)
            with (
                socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
                client_context(files).wrap_socket(plain, server_hostname="localhost") as wrapped,
            ):
                assert wrapped.recv(1), "the server has let it in, and sends its settings"
                assert held[-most].recv(1) == b""
                held[-1].settimeout(0.0)
                with pytest.raises((BlockingIOError, ssl.SSLWantReadError)):
                    held[-1].recv(1)

    served(home, look)


def served(home: Home, look: Callable[[ControllerServer], None]) -> None:
    """Run `look` in a thread beside a controller."""

    async def play() -> None:
        async with home.serving() as server:
            await asyncio.to_thread(look, server)

    asyncio.run(play())


LIMITS = CrowdLimits(connections=6, unfinished=4, per_address=3, unfinished_per_address=2)
ARRIVALS = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=60)


@given(ARRIVALS)
def test_whoever_was_let_in_stays_and_no_limit_is_passed(arrivals: list[tuple[str, bool]]) -> None:
    known: list[Caller] = []
    for host, finishes in arrivals:
        place = place_for(host, known, LIMITS)
        same = [caller for caller in known if caller.host == host]
        if not place.free:
            full = all(caller.finished for caller in known) and len(known) == LIMITS.connections
            assert full or (len(same) == LIMITS.per_address and all(one.finished for one in same))
            assert place.dropped is None
            continue
        if place.dropped is not None:
            gone = known.pop(place.dropped)
            assert not gone.finished
            assert place.why
        known.append(Caller(host, finishes))
        waiting = [caller.host for caller in known if not caller.finished]
        assert len(known) <= LIMITS.connections
        assert len(waiting) <= LIMITS.unfinished
        assert sum(caller.host == host for caller in known) <= LIMITS.per_address
        assert waiting.count(host) <= LIMITS.unfinished_per_address
