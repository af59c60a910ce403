"""Malformed frames and messages at the agent's and the controller's ports, plain and behind TLS.

For each of four ports (agent and controller; in the clear, and behind the gate) and each kind of
attack: raw bytes, HTTP/2 with damaged frames, gRPC with garbage for messages, unknown methods, huge
headers, clients that go silent in the middle. Afterwards the process must be alive and not larger
than its bound, nobody without a certificate may have got an answer, and a real call must work.

    python -m benchmarks.fuzz_ports --frames 100000 --write benchmarks/fuzz_ports.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
from latfarm_controller.agents.authority import Authority
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.cli.shell.connect import ControllerClient
from latfarm_predictors.graph.hash import hash_of
from latfarm_protos.trust.contexts import Files, client_context

PROFILE = {
    "platform": "toy",
    "peak_macs_per_ms": 2e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "noise": 0.01,
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A client's first words (RFC 9113, section 3.4) with an empty SETTINGS frame."""
GROWTH_BYTES = 96 << 20
"""What a process may grow by; gRPC's arenas and the allocator's slack among it."""
LATE_GROWTH_BYTES = 32 << 20
"""What it may grow by in the second half of the attack."""
ANSWER_S = 5.0
LISTEN_S = 0.1
BATCH = 16
"""Connections held at once."""
AGENT_METHODS = ("Describe", "AcquireLease", "RenewLease", "GetBlob", "UploadBlob", "Measure",
                 "Profile", "ListResults", "Acknowledge", "ReleaseLease")  # fmt: skip
CONTROLLER_METHODS = ("ListBoards", "Predict", "Query", "StartCampaign", "GetCampaign",
                      "DrainBoard", "ListResults", "WatchBoard")  # fmt: skip


@dataclass
class Port:
    """A port under attack. `files`: a certificate that the gate lets in, for attacks from inside.

    `works` makes a real call, and raises where it fails.
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


# What is sent


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame (RFC 9113, section 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream & 0xFFFFFFFF) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header as a literal without indexing (RFC 7541, section 6.2.2); short names alone."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    if size < 127:
        return bytes([size])
    rest, found = size - 127, [127]
    while rest >= 128:
        found.append(rest % 128 + 128)
        rest //= 128
    return bytes([*found, rest])


def request(path: bytes, message: bytes, stream: int, extra: bytes = b"") -> bytes:
    """A gRPC request: headers, one message, the end."""
    headers = b"".join(
        literal(*pair)
        for pair in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"fuzz"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    data = b"\x00" + struct.pack(">I", len(message)) + message
    sent = frame(1, 4, stream, headers + extra)
    for start in range(0, len(data), 16384):
        last = start + 16384 >= len(data)
        sent += frame(0, int(last), stream, data[start : start + 16384])
    return sent


def damaged_frame(dice: random.Random) -> bytes:
    """A frame whose kind, flags, stream, length or content does not fit."""
    payload = dice.randbytes(dice.choice((0, 1, 4, 5, 8, 9, 64, 300, 17000)))
    sent = bytearray(
        frame(dice.randrange(14), dice.randrange(256), dice.randrange(1 << 32), payload)
    )
    if dice.random() < 0.3:
        sent[dice.randrange(len(sent))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.2:
        sent[0:3] = dice.randbytes(3)
    return bytes(sent)


def attack(kind: str, dice: random.Random, port: Port) -> list[bytes]:
    """The frames of one connection."""
    service = f"/{port.service}/".encode()
    stream = iter(range(1, 1 << 20, 2))
    if kind == "raw":
        return [dice.randbytes(dice.randrange(1, 400)) for _ in range(4)]
    if kind == "frames":
        return [PREFACE, *(damaged_frame(dice) for _ in range(12))]
    if kind == "messages":
        made = []
        for _ in range(12):
            path = service + dice.choice(port.methods).encode()
            size = dice.choice((0, 1, 7, 60, 900))
            made.append(request(path, dice.randbytes(size), next(stream)))
        return [PREFACE, *made]
    if kind == "methods":
        made = []
        for _ in range(12):
            text = dice.choice((b"/", b"//", service, service + b"Nothing", b"x" * 300,
                                b"/grpc.health.v1.Health/Watches", dice.randbytes(20)))  # fmt: skip
            made.append(request(text, b"", next(stream)))
        return [PREFACE, *made]
    if kind == "headers":
        big = literal(b"x-fuzz", b"y" * dice.choice((100, 9000, 15000)))
        many = b"".join(literal(b"x-%d" % n, dice.randbytes(8)) for n in range(100))
        path = service + dice.choice(port.methods).encode()
        return [PREFACE, request(path, b"", 1, big), request(path, b"", 3, many), *(
            frame(9, 0, 5, dice.randbytes(2000)) for _ in range(4)
        )]  # fmt: skip
    assert kind == "halves", kind  # cut in the middle of something, then silence
    whole = PREFACE + request(service + port.methods[0].encode(), b"", 1)
    return [whole[: dice.randrange(1, len(whole))]]


INSIDE = ("frames", "messages", "methods", "headers", "halves")
OUTSIDE = ("raw", "frames", "halves")
"""What somebody without a certificate can send; the same bytes without TLS around them."""


# How it is sent


def connect(port: Port, *, inside: bool) -> socket.socket:
    """A connection; inside the gate with a certificate that it lets in."""
    plain = socket.create_connection((port.host, port.port), timeout=ANSWER_S)
    if not inside or port.files is None:
        return plain
    context = client_context(port.files)
    context.check_hostname = False
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def bombard(port: Port, kind: str, count: int, dice: random.Random, *, inside: bool) -> None:
    """Send `count` frames of a kind, a few connections at a time; note what was answered."""
    name = f"{kind}{'' if port.files is None else ' inside' if inside else ' outside'}"
    left = count
    while left > 0:
        held: list[socket.socket] = []
        for _ in range(BATCH):
            frames = attack(kind, dice, port)
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
    """What came back on each: nothing, an alert of TLS, or HTTP/2."""
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


def check(port: Port, before_bytes: int) -> None:
    """Alive, bounded, and working; and nobody without a certificate heard HTTP/2.

    Raises:
        AssertionError: it is not.
    """
    assert port.process.is_running(), f"{port.name} is gone"
    assert port.process.status() != psutil.STATUS_ZOMBIE, f"{port.name} died"
    port.grown_bytes = port.process.memory_info().rss - before_bytes
    assert port.grown_bytes < GROWTH_BYTES, f"{port.name} grew by {port.grown_bytes} bytes"
    inside = [name for name in port.answers if "outside" in name and "HTTP/2" in name]
    assert not inside, f"{port.name} let somebody in: {inside}"
    port.works()


# Who is attacked


@contextmanager
def started(
    command: list[str], folder: Path, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, ended with the block."""
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, start_new_session=True,
            env={**os.environ, "LATFARM_HOME": str(folder), "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(find: Callable[[], str], process: subprocess.Popen[str], what: str) -> str:
    """Ask until something is found."""
    deadline_s = time.monotonic() + 60
    while True:
        found = find()
        if found:
            return found
        assert process.poll() is None, f"{what} ended"
        assert time.monotonic() < deadline_s, f"{what} was not ready"
        select.select([], [], [], 0.05)


@contextmanager
def agent(folder: Path, tls: ControllerTlsFiles | None, files: Files | None) -> Iterator[Port]:
    """A simulated board; with `tls` behind its gate."""
    folder.mkdir()
    profile = folder / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    port_file = folder / "port"
    command = [sys.executable, "-m", "latfarm_agent.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--simulate", str(profile), "--name", "toy", "--state-dir", str(folder / "state")]
    command += ["--port-file", str(port_file)]
    if files is not None:
        shown = folder.parent / "tls" / "issued"
        command += ["--tls-cert", str(shown / "toy.crt"), "--tls-key", str(shown / "toy.key")]
        command += ["--tls-ca", str(files.ca)]
    with started(command, folder) as process:
        address = wait_for(lambda: _text(port_file), process, "the agent")
        host, _, port = address.rpartition(":")

        def works() -> None:
            asyncio.run(_measure(address, tls))

        yield Port(
            "agent" if tls is None else "agent behind TLS", host, int(port),
            psutil.Process(process.pid), "latfarm_protos.v1.AgentService", AGENT_METHODS, works,
            files,
        )  # fmt: skip


async def _measure(address: str, tls: ControllerTlsFiles | None) -> None:
    """Lease, upload, measure: as a campaign does."""
    import hashlib

    from latfarm_controller.farm.boards.links import GraphName, Question
    from latfarm_predictors.graph.builder import GraphBuilder
    from latfarm_predictors.measurement import Settings

    b = GraphBuilder("probe")
    graph = b.build([b.relu(b.conv(b.input((1, 3, 16, 16)), 8, 3))])
    data = graph.dumps().encode()
    sha256 = hashlib.sha256(data).hexdigest()
    quick = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=5, max_ms=5.0)
    async with AgentClient(address, "fuzz", tls) as client:
        platform = (await client.describe()).platforms[0].name
        await client.acquire(30_000)
        await client.upload(sha256, data)
        question = Question(
            f"r{time.monotonic_ns()}", platform, "query", quick, False, GraphName(hash_of(graph))
        )
        answer = await client.measure(question, sha256)
        await client.release()
    assert answer.ok, answer


def _text(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text.strip() if text.endswith("\n") else ""


@contextmanager
def controller(folder: Path) -> Iterator[Port]:
    """`latfarm serve --listen`."""
    from latfarm_controller.cli.shell.connect import remote_channel
    from latfarm_controller.config import ControllerConfig

    shown = folder / "tls" / "issued"
    files = Files(shown / "ada.crt", shown / "ada.key", folder / "tls" / "ca.crt")
    command = [sys.executable, "-m", "latfarm_controller.cli.main", "serve"]
    command += ["--listen", "127.0.0.1:0"]
    log = folder / "log"
    log.unlink(missing_ok=True)
    with started(command, folder, LATFARM_LOCAL_AGENT="false") as process:
        mark = "latfarm serves other machines on "

        def find() -> str:
            text = log.read_text() if log.exists() else ""
            return text.partition(mark)[2].partition("\n")[0].strip() if mark in text else ""

        address = wait_for(find, process, "the controller")
        host, _, port = address.rpartition(":")
        config = ControllerConfig(
            home=folder, controller=address, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca
        )

        def works() -> None:
            with remote_channel(config) as opened:
                ControllerClient(opened).campaigns()

        yield Port(
            "controller behind TLS", host, int(port), psutil.Process(process.pid),
            "latfarm_protos.v1.ControllerService", CONTROLLER_METHODS, works, files,
        )  # fmt: skip


def play(port: Port, frames: int, seed: int) -> dict[str, Any]:
    """All attacks on one port; what came of them.

    Raises:
        AssertionError: it broke.
    """
    dice = random.Random(seed)
    port.works()
    for kind in INSIDE:  # what the first of each kind allocates is not growth
        bombard(port, kind, 30, dice, inside=True)
    before_bytes = port.process.memory_info().rss
    kinds = [(kind, True) for kind in INSIDE]
    if port.files is None:
        kinds.append(("raw", True))
    else:
        kinds += [(kind, False) for kind in OUTSIDE]
    began_s = time.monotonic()
    halves = []
    for _ in range(2):
        for kind, inside in kinds:
            bombard(port, kind, -(-frames // (2 * len(kinds))), dice, inside=inside)
        halves.append(port.process.memory_info().rss)
    check(port, before_bytes)
    # The first half fills gRPC's pools and the allocator's arena of each thread.
    late_bytes = halves[1] - halves[0]
    assert late_bytes < LATE_GROWTH_BYTES, f"{port.name} goes on growing: {late_bytes} bytes"
    return {
        "port": port.name,
        "frames": sum(port.sent.values()),
        "sent": dict(sorted(port.sent.items())),
        "answers": dict(sorted(port.answers.items())),
        "memory_before_bytes": before_bytes,
        "memory_growth_bytes": port.grown_bytes,
        "memory_growth_second_half_bytes": late_bytes,
        "seconds": round(time.monotonic() - began_s, 1),
        "works_afterwards": True,
    }


def run(frames: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Attack all ports with `frames` frames together."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    authority = Authority(folder / "tls")
    authority.init()
    authority.issue("toy", "agent", ["127.0.0.1"])
    authority.issue("ada", "operator")
    ours = ControllerTlsFiles(
        authority.cert, folder / "tls/controller.crt", folder / "tls/controller.key"
    )
    share = -(-frames // 3)
    found = []
    with agent(folder / "plain", None, None) as port:
        found.append(play(port, share, seed))
    with agent(folder / "proven", ours, ours.files) as port:
        found.append(play(port, share, seed + 1))
    with controller(folder) as port:
        found.append(play(port, share, seed + 2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="latfarm-fuzz-") as folder:
        found = run(arguments.frames, arguments.seed, Path(folder))
    result = {
        "frames": sum(part["frames"] for part in found),
        "seed": arguments.seed,
        "python": sys.version.split()[0],
        "grpc": grpc.__version__,
        "openssl": ssl.OPENSSL_VERSION,
        "ports": found,
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        arguments.write.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
