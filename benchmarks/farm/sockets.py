"""Counts the bytes that TCP connections have carried, as the kernel's socket diagnostics tell.

The request and its answer are those of sock_diag(7) with INET_DIAG_INFO; `ss -ti` shows the same
figures. Bytes are those of the payload: headers of TCP and IP are not counted.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection

_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_ESTABLISHED = 1 << 1
"""Bit of the state ESTABLISHED in the request's set of states."""
_INET_DIAG_INFO = 2
"""The attribute that holds `struct tcp_info`."""
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
"""`struct inet_diag_req_v2`: family, protocol, wanted attributes, states; the rest matches all."""
_MESSAGE_BYTES = 72
"""Size of `struct inet_diag_msg`, behind which the attributes begin."""
_PORTS = struct.Struct("!HH")
_BYTES_AT = 120
"""Where `tcp_info` has tcpi_bytes_acked, and behind it tcpi_bytes_received."""
_RECEIVE_BYTES = 1 << 18


def carried_bytes(ports: Collection[int]) -> int | None:
    """Bytes that the open connections of these local ports sent and received so far.

    Args:
        ports: local ports; only their own ends of connections count.

    Returns:
        The sum over all connections, or None if the kernel does not tell it.
    """
    try:
        # gRPC listens with sockets of IPv6 that take connections of IPv4 too.
        families = (socket.AF_INET, socket.AF_INET6)
        return sum(_carried(family, frozenset(ports)) for family in families)
    except (OSError, struct.error):
        return None


def _carried(family: int, ports: frozenset[int]) -> int:
    total = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.bind((0, 0))
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ESTABLISHED)
        size = _HEADER.size + len(body)
        link.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0) + body)
        while True:
            data = link.recv(_RECEIVE_BYTES)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _NLMSG_DONE:
                    return total
                if kind == _NLMSG_ERROR:
                    raise OSError("the kernel refuses to list sockets")
                total += _of_connection(data[_HEADER.size : length], ports)
                data = data[_aligned(length) :]


def _of_connection(message: bytes, ports: frozenset[int]) -> int:
    """Bytes of the connection that a message describes; 0 for other ports."""
    local, _ = _PORTS.unpack_from(message, 4)
    if local not in ports:
        return 0
    at = _MESSAGE_BYTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_INFO and length >= 4 + _BYTES_AT + 16:
            acked, received = struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT)
            return int(acked + received)
        at += max(4, _aligned(length))
    return 0


def _aligned(length: int) -> int:
    return (length + 3) & ~3
