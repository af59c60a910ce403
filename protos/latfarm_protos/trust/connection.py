"""One connection at the gate: a handshake, then bytes carried both ways until either side ends."""

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
CHUNK_BYTES = 64 << 10
LINGER_S = 1.0
TURN = 8
"""Chunks that a connection moves before others get their turn."""
REFUSED_BYTES = 64 << 10
"""What may be heard of somebody who is only told why they are refused."""
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Phase(Enum):
    """Where a connection stands."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    LINGER = "linger"  # refused: our alert must arrive before the connection ends
    OVER = "over"


class TlsConnection:
    """Bytes between a TLS socket and the server's Unix socket, both non-blocking.

    Args:
        outer: the client's socket, before its handshake.
        where: `host:port` of the client, for people.
        host: its address.
        deadline_s: when the handshake must be done.
    """

    def __init__(self, outer: ssl.SSLSocket, where: str, host: str, deadline_s: float) -> None:
        self.outer = outer
        self.inner: socket.socket | None = None
        self.where = where
        self.host = host
        self.deadline_s: float | None = deadline_s
        self.phase = Phase.HANDSHAKE
        self.name = ""
        self._fingerprint = ""
        self._outer_wants = READ
        self._up = bytearray()  # towards the server
        self._down = bytearray()
        self._read_blocked_by_write = False
        self._write_blocked_by_read = False
        self._outer_ended = False
        self._inner_ended = False
        self._left_bytes: int | None = None
        self.more = False
        """Whether its turn ended before its work: no event may tell of what `ssl` holds."""

    def shake_hands(self) -> Refusal | None:
        """Go on with the handshake; the refusal if it failed."""
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
        """Of the certificate that the client showed."""
        certificate = self.outer.getpeercert() or {}
        return identity_of(certificate, self.outer.getpeercert(binary_form=True) or b"")

    def enter(self, server: Path, name: str, fingerprint: str) -> None:
        """Connect to the server under a name of our own.

        Raises:
            OSError: it does not listen, or has too many waiting.
        """
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.inner, self.name, self._fingerprint = inner, name, fingerprint
        inner.setblocking(False)
        inner.bind(name)
        inner.connect(str(server))

    def guard(self, deadline_s: float) -> None:
        """This client is only told why it is refused: little is heard, and not for long."""
        self.deadline_s = deadline_s
        self._left_bytes = REFUSED_BYTES

    def overdue(self) -> Refusal | None:
        """The refusal of a client whose time is up; None where that was told before."""
        if self.phase is not Phase.HANDSHAKE:
            return None
        return Refusal(TIMEOUT, "its handshake took too long")

    def carry(self) -> None:
        """Move what can be moved without waiting."""
        for _ in range(TURN):
            # All four, not only until the first that moved something.
            ways = (self._read_outer, self._write_inner, self._read_inner, self._write_outer)
            self.more = any([move() for move in ways])
            if not self.more:
                break
        if self._left_bytes is not None and self._left_bytes < 0:
            self.phase = Phase.OVER
        if (self._outer_ended and not self._up) or (self._inner_ended and not self._down):
            self.phase = Phase.OVER

    def discard(self) -> None:
        """Read what a refused client still sends, until it ends."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):
                if not socket.socket.recv(self.outer, CHUNK_BYTES):
                    self.phase = Phase.OVER
                    return

    def wanted(self) -> list[tuple[socket.socket, int]]:
        """Each end, and the events that it waits for; 0: none."""
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
        """End both sides."""
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
        except OSError:  # cut, or no TLS any more
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
