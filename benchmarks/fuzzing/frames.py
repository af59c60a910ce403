"""What attacks on a port send: raw bytes, damaged HTTP/2 frames, and gRPC calls with garbage."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 client (RFC 9113, section 3.4), with an empty SETTINGS frame."""
INSIDE = ("frames", "messages", "methods", "headers", "halves")
"""Kinds of attacks by a client that the port accepts."""
OUTSIDE = ("raw", "frames", "halves")
"""Kinds of attacks by a client without a certificate: the same bytes, but without TLS."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame (RFC 9113, section 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream & 0xFFFFFFFF) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as a literal without indexing (RFC 7541, section 6.2.2)."""
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
    """A gRPC request on one stream: headers, and one message that ends the stream."""
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
    """An HTTP/2 frame whose kind, flags, stream, length or content is wrong."""
    payload = dice.randbytes(dice.choice((0, 1, 4, 5, 8, 9, 64, 300, 17000)))
    sent = bytearray(
        frame(dice.randrange(14), dice.randrange(256), dice.randrange(1 << 32), payload)
    )
    if dice.random() < 0.3:
        sent[dice.randrange(len(sent))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.2:
        sent[0:3] = dice.randbytes(3)
    return bytes(sent)


def attack(
    kind: str, dice: random.Random, service_name: str, methods: Sequence[str]
) -> list[bytes]:
    """The bytes that one connection sends, in pieces.

    Args:
        kind: one of `INSIDE` or `OUTSIDE`.
        dice: source of chance.
        service_name: full name of the gRPC service behind the port.
        methods: names of its methods.
    """
    service = f"/{service_name}/".encode()
    stream = iter(range(1, 1 << 20, 2))
    if kind == "raw":
        return [dice.randbytes(dice.randrange(1, 400)) for _ in range(4)]
    if kind == "frames":
        return [PREFACE, *(damaged_frame(dice) for _ in range(12))]
    if kind == "messages":
        made = []
        for _ in range(12):
            path = service + dice.choice(methods).encode()
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
        path = service + dice.choice(methods).encode()
        return [PREFACE, request(path, b"", 1, big), request(path, b"", 3, many), *(
            frame(9, 0, 5, dice.randbytes(2000)) for _ in range(4)
        )]  # fmt: skip
    assert kind == "halves", kind  # cut somewhere, then silent
    whole = PREFACE + request(service + methods[0].encode(), b"", 1)
    return [whole[: dice.randrange(1, len(whole))]]
