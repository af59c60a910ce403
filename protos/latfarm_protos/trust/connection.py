"""One connection at the gate: a TLS handshake, then bytes both ways until either side ends."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from enum import Enum
from pathlib import Path

from latfarm_protos.trust.contexts import refusal_of
from latfarm_protos.trust.identity import TIMEOUT, Identity, Refusal, identity_of

BUFFER_BYTES = 256 << 10
"""The largest number of bytes that wait in one direction of a connection."""
CHUNK_BYTES = 64 << 10
"""The largest number of bytes that are read or written at once."""
LINGER_S = 1.0
"""How long a refused connection stays open, so that our TLS alert arrives, in seconds."""
TURN = 8
"""Number of chunks that a connection moves before other connections get their turn."""
REFUSED_BYTES = 64 << 10
"""The largest number of bytes that are read from a client whose calls are all refused."""
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Phase(Enum):
    """The state of a connection."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    LINGER = "linger"  # refused; it stays open until our alert has arrived
    OVER = "over"


class TlsConnection:
    """Moves bytes between the TLS socket of a client and the Unix socket of the server.

    Both sockets are non-blocking.

    Args:
        outer: the client's socket, before its handshake.
        where: `host:port` of the client, for the log.
        host: address of the client.
        deadline_s: time (`time.monotonic`) by which the handshake must be done.
    """

    def __init__(self, outer: ssl.SSLSocket, where: str, host: str, deadline_s: float) -> None:
        self.outer = outer
        self.inner: socket.socket | None = None
        self.where = where
        self.host = host
        self.deadline_s: float | None = deadline_s
        self.phase = Phase.HANDSHAKE
        self.name = ""
        self.admitted = False
        """Whether the gate has let the client in; others make room for new clients."""
        self._outer_wants = READ
        self._up = bytearray()  # towards the server
        self._down = bytearray()
        self._read_blocked_by_write = False
        self._write_blocked_by_read = False
        self._outer_ended = False
        self._inner_ended = False
        self._left_bytes: int | None = None
        self.more = False
        """Whether its turn ended before all bytes were moved.

        No event of the selector may come for bytes that `ssl` has already read.
        """

    def shake_hands(self) -> Refusal | None:
        """Continue the handshake; returns the refusal if it failed."""
        try:
            self.outer.do_handshake()
        except ssl.SSLWantReadError:
            self._outer_wants = READ
        except ssl.SSLWantWriteError:
            self._outer_wants = WRITE
        except (OSError, ValueError) as error:
            self._linger()
            return refusal_of(error)
        else:
            self.phase, self.deadline_s = Phase.OPEN, None
        return None

    def identity(self) -> Identity:
        """The identity in the certificate that the client showed."""
        certificate = self.outer.getpeercert() or {}
        return identity_of(certificate, self.outer.getpeercert(binary_form=True) or b"")

    def enter(self, server: Path, name: str) -> None:
        """Connect to the server.

        Args:
            server: Unix socket of the server.
            name: Unix socket of our end, which gRPC shows as the peer.

        Raises:
            OSError: the server does not listen, or has too many waiting connections.
        """
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.inner, self.name = inner, name
        inner.setblocking(False)
        inner.bind(name)
        inner.connect(str(server))

    def guard(self, deadline_s: float) -> None:
        """Limit the time and the bytes of a client whose calls are all refused."""
        self.deadline_s = deadline_s
        self._left_bytes = REFUSED_BYTES

    def overdue(self) -> Refusal | None:
        """The refusal of a client whose time is up; None if it was refused before."""
        if self.phase is not Phase.HANDSHAKE:
            return None
        return Refusal(TIMEOUT, "its handshake took too long")

    def carry(self) -> None:
        """Move what can be moved without waiting."""
        for _ in range(TURN):
            # All four are called, also after one that moved something.
            ways = (self._read_outer, self._write_inner, self._read_inner, self._write_outer)
            self.more = any([move() for move in ways])
            if not self.more:
                break
        if self._left_bytes is not None and self._left_bytes < 0:
            self.phase = Phase.OVER
        if (self._outer_ended and not self._up) or (self._inner_ended and not self._down):
            self.phase = Phase.OVER

    def discard(self) -> None:
        """Read and ignore what a refused client still sends, until it closes the connection."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):
                if not socket.socket.recv(self.outer, CHUNK_BYTES):
                    self.phase = Phase.OVER
                    return

    def wanted(self) -> list[tuple[socket.socket, int]]:
        """Each socket and the events for which it waits; 0 for none."""
        if self.phase is Phase.HANDSHAKE:
            return [(self.outer, self._outer_wants)]
        if self.phase is Phase.LINGER:
            return [(self.outer, READ)]
        outer = inner = 0
        if not self._outer_ended and len(self._up) < BUFFER_BYTES:
            outer |= WRITE if self._read_blocked_by_write else READ
        if self._down:
            outer |= READ if self._write_blocked_by_read else WRITE
        if not self._inner_ended and len(self._down) < BUFFER_BYTES:
            inner |= READ
        if self._up:
            inner |= WRITE
        ends: list[tuple[socket.socket, int]] = [(self.outer, outer)]
        return [*ends, (self.inner, inner)] if self.inner is not None else ends

    def close(self) -> None:
        """Close both sockets."""
        for end in (self.outer, self.inner):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()

    def _linger(self) -> None:
        self.phase, self.deadline_s = Phase.LINGER, time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.outer, socket.SHUT_WR)

    def _read_outer(self) -> bool:
        if self._outer_ended or len(self._up) >= BUFFER_BYTES:
            return False
        self._read_blocked_by_write = False
        try:
            data = self.outer.recv(CHUNK_BYTES)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self._read_blocked_by_write = True
            return False
        except OSError:  # the connection was cut, or the bytes are no longer TLS
            data = b""
        if not data:
            self._outer_ended = True
            return False
        self._up += data
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
        return True

    def _write_inner(self) -> bool:
        assert self.inner is not None
        if not self._up:
            return False
        try:
            sent = self.inner.send(memoryview(self._up)[:CHUNK_BYTES])
        except BlockingIOError:
            return False
        except OSError:
            self._outer_ended = self._inner_ended = True
            self._up.clear()
            return False
        del self._up[:sent]
        return sent > 0

    def _read_inner(self) -> bool:
        assert self.inner is not None
        if self._inner_ended or len(self._down) >= BUFFER_BYTES:
            return False
        try:
            data = self.inner.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._inner_ended = not data
        self._down += data
        return bool(data)

    def _write_outer(self) -> bool:
        if not self._down:
            return False
        self._write_blocked_by_read = False
        try:
            sent = self.outer.send(bytes(self._down[:CHUNK_BYTES]))
        except ssl.SSLWantWriteError:
            return False
        except ssl.SSLWantReadError:
            self._write_blocked_by_read = True
            return False
        except OSError:
            self._outer_ended = self._inner_ended = True
            self._down.clear()
            return False
        del self._down[:sent]
        return sent > 0
