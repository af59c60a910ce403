"""Who may call which method of the controller, over the network and over the home's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from latfarm_controller.api import roles
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.outside import Outside
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.audit import unix_user
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.store.base import BoardEvent
from latfarm_protos.trust.contexts import Files, client_context
from latfarm_protos.trust.identity import OPERATOR, VIEWER
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

from benchmarks.fuzzing.frames import PREFACE, request
from tests.security.conftest import Home, channel

METHODS = pb.DESCRIPTOR.services_by_name["ControllerService"].methods


def test_every_method_has_a_role() -> None:
    assert {method.name for method in METHODS} == set(roles.METHODS)
    assert set(roles.METHODS.values()) <= {VIEWER, OPERATOR}
    assert pb.DESCRIPTOR.services_by_name["ControllerService"].full_name == roles.SERVICE


def test_a_path_that_is_no_text_leaves_the_controller_well(home: Home) -> None:
    """A path that is not UTF-8 would end the main loop of gRPC's server; see `outside.py`."""
    ada = home.client("ada", OPERATOR)

    def look(server: ControllerServer) -> None:
        host, _, port = server.outside.rpartition(":")
        files = Files(ada.tls_cert or Path(), ada.tls_key or Path(), ada.tls_ca or Path())
        with (
            socket.create_connection((host, int(port)), timeout=30) as plain,
            client_context(files).wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(PREFACE + request(b"/\xff\xfe", b"", 1))
            assert wrapped.recv(1 << 14)
        with channel(server, ada) as opened:
            assert ControllerClient(opened).boards()

    served(home, look)


def test_what_has_no_role_is_nobodys() -> None:
    for method in ("/other.Service/ListBoards", f"/{roles.SERVICE}/Format", "", "/"):
        assert roles.refusal(OPERATOR, method) is not None
    assert roles.refusal("", f"/{roles.SERVICE}/ListBoards") is not None
    assert roles.refusal("agent", f"/{roles.SERVICE}/ListBoards") is not None


def served(home: Home, look: Callable[[ControllerServer], Any]) -> Any:
    """Run `look` in a thread beside the controller, and return its result."""

    async def play() -> Any:
        async with home.serving() as server:
            return await asyncio.to_thread(look, server)

    return asyncio.run(play())


def code_of(opened: grpc.Channel, method: Any) -> grpc.StatusCode:
    """Call a method with an empty request and return its status; OK if it is answered."""
    stub = controller_pb2_grpc.ControllerServiceStub(opened)
    request = getattr(pb, method.input_type.name)()
    try:
        asked = iter([request]) if method.client_streaming else request
        answer = getattr(stub, method.name)(asked, timeout=30)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_a_viewer_reads_and_an_operator_acts(home: Home) -> None:
    def look(server: ControllerServer) -> dict[str, dict[str, grpc.StatusCode]]:
        found = {}
        for role in (VIEWER, OPERATOR):
            with channel(server, home.client(f"a-{role}", role)) as opened:
                found[role] = {method.name: code_of(opened, method) for method in METHODS}
        return found

    found = served(home, look)
    denied = grpc.StatusCode.PERMISSION_DENIED
    for name, least in roles.METHODS.items():
        assert (found[VIEWER][name] is denied) == (least == OPERATOR), name
        assert found[OPERATOR][name] is not denied, name


@pytest.mark.parametrize("role", ["agent", "controller"])
def test_boards_and_controllers_have_no_business_here(
    home: Home, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    def look(server: ControllerServer) -> set[grpc.StatusCode]:
        # An agent's certificate is only valid for servers; OpenSSL refuses it in the handshake.
        with channel(server, home.client(f"a-{role}", role)) as opened:
            return {code_of(opened, method) for method in METHODS}

    if role == "agent":
        with pytest.raises(ControllerError, match="not for this use"):
            served(home, look)
        assert "not for this use (extended key usage) [handshake]" in caplog.text
    else:
        assert served(home, look) == {grpc.StatusCode.PERMISSION_DENIED}
        assert "has the role controller, not operator or viewer [wrong_role]" in caplog.text


@pytest.mark.parametrize(
    ("case", "told", "logged"),
    [
        ("expired", "our certificate is expired [expired]", "certificate is expired"),
        ("other_ca", "does not know the CA of our certificate [wrong_ca]", "of another CA"),
        ("missing", "", "it shows no certificate [missing]"),
        ("revoked", "is revoked", "is revoked [revoked]"),
    ],
)
def test_who_is_not_known_hears_why_and_the_log_says_it(
    own_home: Home,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    case: str,
    told: str,
    logged: str,
) -> None:
    config = own_home.client("eve", OPERATOR, days=-1 if case == "expired" else 365)
    if case == "other_ca":
        stranger = Home(tmp_path / "stranger")
        config = stranger.client("eve", OPERATOR, ca=own_home.authority.cert)
    if case == "revoked":
        own_home.authority.revoke("eve")

    def look(server: ControllerServer) -> str:
        if case == "missing":
            ca = grpc.ssl_channel_credentials(own_home.authority.cert.read_bytes())
            with grpc.secure_channel(server.outside, ca) as opened:
                return str(code_of(opened, METHODS[0]))
        try:
            with channel(server, config) as opened:
                ControllerClient(opened).boards()
        except ControllerError as error:
            return str(error)
        return "let in"

    answer = served(own_home, look)
    assert (told in answer) if told else answer == "StatusCode.UNAVAILABLE"
    assert logged in caplog.text


def test_a_controller_that_is_not_the_farms_is_not_spoken_to(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    config = home.client("ada", OPERATOR)

    def look(server: ControllerServer) -> None:
        with channel(server, config):
            pytest.fail("spoke to a stranger")

    with pytest.raises(ControllerError, match=r"its certificate is of another CA \[wrong_ca\]"):
        served(other, look)


def test_an_operator_of_another_machine_drains_a_board_and_it_outlives_a_restart(
    home: Home,
) -> None:
    ada = home.client("ada", OPERATOR)

    def drain(server: ControllerServer) -> None:
        with channel(server, ada) as opened:
            client = ControllerClient(opened)
            assert client.drain_board("toy", "new fan").standing == "drained"
            assert [status.standing for status in client.watch_board("toy")] == ["drained"]
            with pytest.raises(UsageError, match="no board 'toys'; there are: toy"):
                client.drain_board("toys", "")

    def resume(server: ControllerServer) -> list[BoardEvent]:
        with channel(server, ada) as opened:
            client = ControllerClient(opened)
            (status,) = client.boards()
            assert (status.standing, status.standing_reason) == ("drained", "new fan")
            assert client.resume_board("toy", "", False).standing == "working"
            return client.board_events("toy")

    served(home, drain)
    events = served(home, resume)
    assert [(event.event, event.actor) for event in events] == [
        ("resumed", "ada"),
        ("drained", "ada"),
    ]


@contextlib.contextmanager
def opened_gate(home: Home, server: ControllerServer) -> Iterator[Outside]:
    """Open a second gate to the same controller; the test can see its inner socket."""
    gate = Outside(home.config.tls_dir, server.address, "127.0.0.1:0")
    try:
        gate.start()
        yield gate
    finally:
        gate.close()


def test_the_socket_of_the_home_is_its_owners_alone(home: Home) -> None:
    async def play() -> None:
        async with home.serving() as server:
            with grpc.insecure_channel(server.address) as opened:
                status = await asyncio.to_thread(
                    ControllerClient(opened).drain_board, "toy", "by hand"
                )
                assert status.standing == "drained"
                client = ControllerClient(opened)
                await asyncio.to_thread(client.resume_board, "toy", "", False)
                events = await asyncio.to_thread(client.board_events, "toy")
                assert {event.actor for event in events[:2]} == {unix_user(os.getuid())}
            with opened_gate(home, server) as gate:
                for path in (home.config.home / "tls", gate.inner.parent):
                    assert stat.S_IMODE(path.stat().st_mode) == 0o700

    asyncio.run(play())


def test_whoever_passes_the_gate_by_is_refused(home: Home) -> None:
    """The inner socket only answers the gate, although the owner's other processes can open it."""

    async def play() -> grpc.StatusCode:
        async with home.serving() as server:
            with opened_gate(home, server) as gate:
                # The relay binds its socket to a name, as the gate does, but to one of its own.
                relay = Relay(gate.inner, gate.inner.parent / "stranger")
                with relay, grpc.insecure_channel(f"127.0.0.1:{relay.port}") as opened:
                    return await asyncio.to_thread(code_of, opened, METHODS[0])

    assert asyncio.run(play()) is grpc.StatusCode.UNAUTHENTICATED


class Relay:
    """Copies bytes between a port and a Unix socket; its own end of the socket has a given name."""

    def __init__(self, inner: Path, name: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._inner, self._name = inner, name
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run)]

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            outer, _ = self._listener.accept()
            inner = socket.socket(socket.AF_UNIX)
            inner.bind(str(self._name))
            inner.connect(str(self._inner))
            self._ends += [outer, inner]
            back = threading.Thread(target=pump, args=(inner, outer))
            self._threads.append(back)
            back.start()
            pump(outer, inner)

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def test_listening_for_others_needs_certificates(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path, local_agent=False)
    for address in ("0.0.0.0:0", "127.0.0.1:0"):
        with pytest.raises(UsageError, match="latfarm certs init"):
            asyncio.run(ControllerServer.open(config, listen=address))
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        asyncio.run(ControllerServer.open(Home(tmp_path / "other").config, listen="nowhere"))
