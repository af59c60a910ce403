"""Carries out attacks on a port: opens connections, sends what `frames` makes, reads answers."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
from latfarm_protos.trust.contexts import Files, client_context

from benchmarks.fuzzing.frames import attack

ANSWER_S = 5.0
"""Longest time that a connection may take to open, in seconds."""
LISTEN_S = 0.1
"""How long answers are waited for, in seconds."""
BATCH = 16
"""Connections that are open at the same time."""


@dataclass
class Port:
    """A port under attack, and what was found about it.

    Attributes:
        name: what it is, for people.
        host: its address.
        port: its number.
        process: the process that serves it.
        service: full name of the gRPC service behind it.
        methods: names of methods of that service.
        works: makes a real call; it raises an error if the call fails.
        files: a certificate that the port accepts; None for a port without TLS.
        grown_bytes: how much the memory of the process grew during the attack.
        sent: number of pieces that were sent, by the kind of attack.
        answers: number of connections, by the kind of attack and of answer.
    """

    name: str
    host: str
    port: int
    process: psutil.Process
    service: str
    methods: tuple[str, ...]
    works: Callable[[], None]
    files: Files | None = None
    grown_bytes: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)


def connect(port: Port, *, inside: bool) -> socket.socket:
    """Open a connection.

    Args:
        port: the port.
        inside: whether to show a certificate that the port accepts, where it asks for one.
    """
    plain = socket.create_connection((port.host, port.port), timeout=ANSWER_S)
    if not inside or port.files is None:
        return plain
    context = client_context(port.files)
    context.check_hostname = False
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def bombard(port: Port, kind: str, count: int, dice: random.Random, *, inside: bool) -> None:
    """Send `count` pieces of one kind of attack over several connections, and note the answers."""
    name = f"{kind}{'' if port.files is None else ' inside' if inside else ' outside'}"
    left = count
    while left > 0:
        held: list[socket.socket] = []
        for _ in range(BATCH):
            frames = attack(kind, dice, port.service, port.methods)
            with contextlib.suppress(OSError):
                end = connect(port, inside=inside)
                held.append(end)
                for data in frames:
                    end.sendall(data)
                    port.sent[name] += 1
                    left -= 1
            if left <= 0:
                break
        port.answers.update(f"{name}: {told}" for told in answers_of(held, LISTEN_S))
        for end in held:
            with contextlib.suppress(OSError):
                end.close()


def answers_of(ends: list[socket.socket], wait_s: float) -> list[str]:
    """What came back on each connection: nothing, a TLS alert, HTTP/2, or something else."""
    received = dict.fromkeys(range(len(ends)), b"")
    left = dict(enumerate(ends))
    for end in ends:
        end.setblocking(False)
    deadline_s = time.monotonic() + wait_s
    while left and time.monotonic() < deadline_s:
        select.select(list(left.values()), [], [], max(0.0, deadline_s - time.monotonic()))
        for number, end in list(left.items()):
            try:
                data = end.recv(1 << 16)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except (OSError, ValueError):
                data = b""
            received[number] += data
            if not data or len(received[number]) > 1 << 16:
                del left[number]
    return [_kind_of(end, received[number]) for number, end in enumerate(ends)]


def _kind_of(end: socket.socket, received: bytes) -> str:
    if not received:
        return "nothing"
    if not isinstance(end, ssl.SSLSocket) and received[:1] == b"\x15":
        return "alert"
    return "HTTP/2" if received[3:4] in (b"\x04", b"\x07") else "other"
