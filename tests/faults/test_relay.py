"""Relays pass bytes on, cut at the chosen moment, and are silent when told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.faults.relay import LinkRelay, RelayThread

GIVE_UP_S = 60.0
"""Longest wait for bytes, in seconds."""

QUIET_S = 0.2
"""How long nothing may come through a silent link, in seconds."""


class Echo:
    """A server that answers `n` bytes with `2 n` bytes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(opened,), daemon=True).start()

    @staticmethod
    def _answer(opened: socket.socket) -> None:
        with opened:
            try:
                while data := opened.recv(4096):
                    opened.sendall(data * 2)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def relays() -> Iterator[RelayThread]:
    with RelayThread() as made:
        yield made


@pytest.fixture
def link(relays: RelayThread, echo: Echo) -> LinkRelay:
    made = relays.relay()
    made.target = echo.address
    return made


def opened(link: LinkRelay) -> socket.socket:
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=GIVE_UP_S)


def asked(client: socket.socket, data: bytes) -> bytes:
    """The answer to some bytes; shorter than twice as many if the link is cut before."""
    found = b""
    try:
        client.sendall(data)
        while len(found) < 2 * len(data) and (more := client.recv(4096)):
            found += more
    except OSError:
        pass
    return found


def test_bytes_are_passed_on_in_both_directions(link: LinkRelay) -> None:
    with opened(link) as one, opened(link) as two:
        assert asked(one, b"one") == b"oneone"
        assert asked(two, b"two") == b"twotwo"
        assert asked(one, b"more") == b"moremore"


@pytest.mark.parametrize(
    ("moment", "heard"), [("request", b""), ("answer", b""), ("during", b"net")]
)
def test_a_link_is_cut_at_its_moment_and_refused_until_it_heals(
    relays: RelayThread, link: LinkRelay, moment: str, heard: bytes
) -> None:
    with opened(link) as client:
        relays.call(lambda: link.arm(moment))
        assert asked(client, b"net") in (heard, b"")  # a reset may overtake the last bytes
    with opened(link) as client:
        assert asked(client, b"net") == b""
    relays.call(lambda: link.refuse(refused=False))
    with opened(link) as client:
        assert asked(client, b"net") == b"netnet"


def test_a_silent_link_stays_open_and_loses_nothing(relays: RelayThread, link: LinkRelay) -> None:
    with opened(link) as client:
        assert asked(client, b"a") == b"aa"
        relays.call(lambda: link.silence(silent=True))
        client.sendall(b"b")
        client.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            client.recv(1)
        relays.call(lambda: link.silence(silent=False))
        client.settimeout(GIVE_UP_S)
        assert client.recv(2) in (b"bb", b"b")


def test_a_board_that_does_not_listen_is_a_link_that_closes(relays: RelayThread) -> None:
    link = relays.relay()
    with opened(link) as client:
        assert asked(client, b"a") == b""
