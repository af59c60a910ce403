"""The gate before a gRPC server: it ends TLS and checks the certificate of each client.

gRPC's own TLS does not say why it refused a client, knows no revocation and cannot close a
connection. So the server listens on a Unix socket in a folder that only its user can read, and the
thread of the gate listens on the network port. It does the handshake with Python's `ssl`, logs why
it refuses a client, and moves the bytes of the others. No byte of a client without a certificate of
the CA reaches the HTTP/2 server.

The server can ask who is connected: the gate's end of each inner connection has a name, which gRPC
shows as the peer, and `admission(peer)` returns the certificate behind it. A client whose
certificate is of the CA but revoked, or has a role that is not allowed here, may connect, so that
the server answers UNAUTHENTICATED or PERMISSION_DENIED; it is disconnected after a short time.

A gate may also take boards that dial in (`dialling.py`). They name another protocol in the
handshake, and their bytes go to another Unix socket (`dialled`).

A client that was not let in yet, because it says nothing for example, keeps nobody out: where there
are too many of them, the oldest one makes room for a new client (`crowd.py`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Collection, Protocol

from latfarm_protos.trust.connection import Phase, TlsConnection
from latfarm_protos.trust.contexts import HTTP, Files, ServerContexts
from latfarm_protos.trust.crowd import Caller, CrowdLimits, place_for
from latfarm_protos.trust.dialling import PROTOCOL
from latfarm_protos.trust.identity import (
    GONE,
    MISSING,
    REVOKED,
    TOO_MANY,
    Identity,
    Refusal,
    judge,
)
from latfarm_protos.trust.revoked import Revoked

LOOK_S = 2.0
"""How often the certificates of connected clients are judged again, in seconds."""
TELL_S = 1.0
"""At most one refusal per reason and address is logged in this time, in seconds; the next line in
the log counts the others."""
MOST_TOLD = 1000
"""The largest number of reasons and addresses for which the time of the last line is kept."""
ACCEPT_PAUSE_S = 0.5
"""How long no connection is accepted after the process ran out of descriptors, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GateLimits:
    """Limits of a gate.

    Attributes:
        crowd: the largest numbers of connections at once.
        handshake_s: longest time of a handshake, in seconds.
    """

    crowd: CrowdLimits = field(default_factory=CrowdLimits)
    handshake_s: float = 10.0


@dataclass(frozen=True)
class Admission:
    """The client of a connection; if there is a refusal, all its calls must be refused.

    `dials`: it is a board that dials in.
    """

    identity: Identity
    refusal: Refusal | None = None
    dials: bool = False


class Gate:
    """Listens for TLS connections in front of a server on a Unix socket.

    Call `listen`, then `start` once, then `close` once.

    Args:
        files: certificate, key, CA and the list of revoked certificates.
        allowed: roles that may connect.
        on_refused: called with the reason of each refusal, in the thread of the gate.
        limits: see `GateLimits`.
        dialling: roles that may dial in; empty: nobody may.

    Raises:
        TlsFileError: the files cannot be used.
        RevokedError: the list of revoked certificates cannot be used.
    """

    def __init__(
        self,
        files: Files,
        allowed: Collection[str],
        on_refused: Callable[[str], None] | None = None,
        limits: GateLimits | None = None,
        dialling: Collection[str] = (),
    ) -> None:
        self._contexts = ServerContexts(files, (*HTTP, PROTOCOL) if dialling else HTTP)
        self._revoked = Revoked(files.revoked)
        self._allowed = {False: frozenset(allowed), True: frozenset(dialling)}  # by: dials in
        self._on_refused = on_refused or (lambda _reason: None)
        self._limits = limits or GateLimits()
        # A new short folder, since paths of Unix sockets must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="latfarm-"))
        self.inner = self._folder / "grpc"
        """The path of the Unix socket on which the server must listen."""
        self.dialled = self._folder / "boards"
        """The path of the Unix socket to which boards that dial in are connected."""
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._accept_after_s = 0.0
        self._connections: dict[int, TlsConnection] = {}
        self._admissions: dict[str, Admission] = {}
        self._numbers = 0
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        self._looked_s = 0.0
        self._waker, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._ending = False

    def listen(self, host: str, port: int) -> int:
        """Open the port without accepting connections yet; returns its number.

        Raises:
            OSError: the port cannot be opened.
        """
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        return int(listener.getsockname()[1])

    def start(self) -> None:
        """Accept connections; the server must already listen on `inner`."""
        assert self._listener is not None
        self._waker.setblocking(False)
        self._selector.register(self._waker, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._thread.start()

    def close(self) -> None:
        """Close all connections and the port; calling it again does nothing."""
        if self._ending:
            return
        self._ending = True
        self._wake.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for connection in list(self._connections.values()):
            self._drop(connection)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        self._waker.close()
        self._wake.close()
        shutil.rmtree(str(self._folder), ignore_errors=True)

    def admission(self, peer: str) -> Admission | None:
        """The client behind a peer as gRPC names it; None if it did not come through this gate."""
        return self._admissions.get(peer[len("unix:") :] if peer.startswith("unix:") else peer)

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    # All methods below run in the thread of the gate.

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._waker:
                    continue
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._advance(key.data)
            for connection in [c for c in self._connections.values() if c.more]:
                self._advance(connection)
            self._look_around(time.monotonic())

    def _timeout_s(self) -> float | None:
        now_s = time.monotonic()
        if any(c.more for c in self._connections.values()):
            return 0.0
        times = [c.deadline_s for c in self._connections.values() if c.deadline_s is not None]
        if self._connections:
            times.append(self._looked_s + LOOK_S)
        if self._accept_after_s:
            times.append(self._accept_after_s)
        return max(0.0, min(times) - now_s) if times else None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            plain, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # No descriptor or memory is left: the connection stays in the queue for a moment.
                self._selector.unregister(self._listener)
                self._accept_after_s = time.monotonic() + ACCEPT_PAUSE_S
                logger.warning("cannot take connections for now: %s", error)
            return
        where = f"{address[0]}:{address[1]}"
        if not self._make_room(str(address[0]), where):
            plain.close()
            return
        try:
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            outer = self._contexts.current().wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # the client has left already
            plain.close()
            return
        deadline_s = time.monotonic() + self._limits.handshake_s
        connection = TlsConnection(outer, where, str(address[0]), deadline_s)
        self._connections[id(connection)] = connection
        self._selector.register(outer, selectors.EVENT_READ, connection)

    def _make_room(self, host: str, where: str) -> bool:
        """Whether one more connection of this address is let in; a silent one may go for it."""
        known = list(self._connections.values())  # in the order in which they came
        callers = [Caller(connection.host, connection.admitted) for connection in known]
        place = place_for(host, callers, self._limits.crowd)
        if place.dropped is not None:
            oldest = known[place.dropped]
            text = f"{place.why}: the oldest one, which was not let in yet, made room"
            self._refuse(oldest.where, Refusal(TOO_MANY, text))
            self._drop(oldest)
        elif not place.free:
            self._refuse(where, Refusal(TOO_MANY, place.why))
        return place.free

    def _advance(self, connection: TlsConnection) -> None:
        if self._connections.get(id(connection)) is not connection:
            return  # it was closed after the event came
        try:
            if connection.phase is Phase.HANDSHAKE:
                self._shake_hands(connection)
            if connection.phase is Phase.OPEN:
                connection.carry()
            elif connection.phase is Phase.LINGER:
                connection.discard()
        except OSError as error:
            logger.debug("%s: %s", connection.where, error)
            connection.phase = Phase.OVER
        self._watch(connection)

    def _shake_hands(self, connection: TlsConnection) -> None:
        refusal = connection.shake_hands()
        if refusal is not None:
            self._refuse(connection.where, refusal)
        elif connection.phase is Phase.OPEN:
            self._admit(connection)

    def _admit(self, connection: TlsConnection) -> None:
        identity = connection.identity()
        dials = connection.outer.selected_alpn_protocol() == PROTOCOL
        refusal = judge(identity, self._allowed[dials], self._revoked.fingerprints())
        self._numbers += 1
        name = str(self._folder / f"{self._numbers}")
        # Noted before the server can see the connection, and ask who it is.
        self._admissions[name] = Admission(identity, refusal, dials)
        try:
            connection.enter(self.dialled if dials else self.inner, name)
        except OSError:
            connection.name = name  # so that what was noted goes with the connection
            raise
        if refusal is not None:
            self._refuse(connection.where, refusal)
            connection.guard(time.monotonic() + self._limits.handshake_s)
        else:
            connection.admitted = True
            logger.info("%s is %s, %s", connection.where, identity, identity.role)

    def _watch(self, connection: TlsConnection) -> None:
        """Register the events for which the connection waits, or drop it if it is over."""
        if connection.phase is Phase.OVER:
            self._drop(connection)
            return
        for end, wanted in connection.wanted():
            try:
                known: Any = self._selector.get_key(end)
            except KeyError:
                known = None
            if not wanted:
                if known is not None:
                    self._selector.unregister(end)
            elif known is None:
                self._selector.register(end, wanted, connection)
            elif known.events != wanted:
                self._selector.modify(end, wanted, connection)

    def _drop(self, connection: TlsConnection) -> None:
        for end, _ in connection.wanted():
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
        connection.close()
        connection.more = False
        self._connections.pop(id(connection), None)
        self._admissions.pop(connection.name, None)
        if connection.name:
            with contextlib.suppress(OSError):
                Path(connection.name).unlink()

    def _look_around(self, now_s: float) -> None:
        """Close connections that are overdue, or whose certificate is worth nothing any more."""
        if self._accept_after_s and now_s >= self._accept_after_s:
            assert self._listener is not None
            self._accept_after_s = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        for connection in list(self._connections.values()):
            if connection.deadline_s is not None and now_s >= connection.deadline_s:
                refusal = connection.overdue()
                if refusal is not None:
                    self._refuse(connection.where, refusal)
                self._drop(connection)
        if now_s < self._looked_s + LOOK_S or not self._connections:
            return
        self._looked_s = now_s
        revoked = self._revoked.fingerprints()
        for connection in list(self._connections.values()):
            admission = self._admissions.get(connection.name)
            if admission is None or admission.refusal is not None:
                continue
            refusal = judge(admission.identity, self._allowed[admission.dials], revoked)
            if refusal is not None:
                was = "was revoked" if refusal.reason == REVOKED else "has expired"
                text = f"the certificate of {admission.identity} {was}: cut off"
                self._refuse(connection.where, Refusal(refusal.reason, text))
                self._drop(connection)

    def _refuse(self, where: str, refusal: Refusal) -> None:
        """Count a refusal, and log at most one per second for each host and reason."""
        self._on_refused(refusal.reason)
        now_s = time.monotonic()
        key = (where.rpartition(":")[0], refusal.reason)
        told_s, silent = self._told.get(key, (float("-inf"), 0))
        if now_s - told_s < TELL_S:
            self._told[key] = (told_s, silent + 1)
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[key] = (now_s, 0)
        more = f" (and {silent} more like it)" if silent else ""
        # A client that left by itself was not refused: that is no warning.
        level = logging.INFO if refusal.reason == GONE else logging.WARNING
        logger.log(level, "refused %s: %s [%s]%s", where, refusal.text, refusal.reason, more)


class Doorkeeper(Protocol):
    """Knows who is behind each connection of a server."""

    def admission(self, peer: str) -> Admission | None:
        """The client behind a peer as gRPC names it; None if it did not come through this door."""


def peer_refusal(gate: Doorkeeper | None, peer: str) -> tuple[Admission | None, Refusal | None]:
    """The client of a call, and why the call is refused; without a gate, no call is refused."""
    if gate is None:
        return None, None
    admission = gate.admission(peer)
    if admission is None:
        return None, Refusal(MISSING, "this connection did not come through the gate")
    return admission, admission.refusal
