"""Read elements of ASN.1 in DER, as certificates consist of them (ITU-T X.690, chapter 8)."""

from __future__ import annotations

from typing import Iterator, Tuple

SEQUENCE, VERSION, UTC_TIME, GENERALISED_TIME = 0x30, 0xA0, 0x17, 0x18
"""Tags of elements of a certificate (RFC 5280, section 4.1)."""

Element = Tuple[int, bytes, bytes]
"""Tag of an element, its content, and the bytes behind it."""


def element(data: bytes) -> Element:
    """The first element of some bytes.

    Raises:
        ValueError: the bytes end too early.
    """
    if len(data) < 2:
        raise ValueError("the certificate ends too early")
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("the certificate ends too early")
    return tag, data[start : start + length], data[start + length :]


def inside(data: bytes) -> bytes:
    """The content of the sequence with which some bytes begin.

    Raises:
        ValueError: they begin with another element, or end too early.
    """
    tag, content, _ = element(data)
    if tag != SEQUENCE:
        raise ValueError(f"tag {tag:#x} where a sequence belongs")
    return content


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element of some bytes.

    Raises:
        ValueError: the bytes end too early.
    """
    while data:
        tag, content, data = element(data)
        yield tag, content
