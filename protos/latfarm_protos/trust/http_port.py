"""A small HTTP server for metrics and health, with mutual TLS if it listens beyond loopback.

A reader needs a certificate of the farm's CA with one of the allowed roles, which is not revoked.
Certificates are read again when their files change.

A connection without a complete request keeps nobody out: where there are too many of them, the
oldest one makes room for a new client (`crowd.py`).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Mapping, NamedTuple

from latfarm_protos.trust.contexts import Files, ServerContexts, refusal_of
from latfarm_protos.trust.crowd import Caller, CrowdLimits, Place, place_for
from latfarm_protos.trust.identity import (
    CONTROLLER,
    OPERATOR,
    TIMEOUT,
    TOO_MANY,
    VIEWER,
    Identity,
    Refusal,
    identity_of,
    judge,
)
from latfarm_protos.trust.revoked import Revoked

READERS = (CONTROLLER, OPERATOR, VIEWER)
"""Roles that may read the pages."""
LIMITS = CrowdLimits(connections=16, unfinished=16, per_address=16, unfinished_per_address=8)
"""The largest numbers of connections at once. Each has a thread; a Prometheus needs one of them."""
PATIENCE_S = 10.0
"""How long the server waits for a client, in seconds."""
TEXT = "text/plain; charset=utf-8"

logger = logging.getLogger(__name__)


class Page(NamedTuple):
    """The content of an answer, its content type and its HTTP status."""

    body: bytes
    kind: str = TEXT
    status: int = 200


Pages = Mapping[str, Callable[[], Page]]
"""Functions that make pages, by path; they are called in a thread of the server."""
OnRefused = Callable[[str], None]
"""Gets the reason of each refusal."""
OnReader = Callable[[Identity], None]
"""Gets who a reader is by its certificate, each time that it is let in."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD requests with the pages of the server."""

    timeout = PATIENCE_S
    server: _HttpServer
    server_version = "latfarm"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, or with 404 and the list of pages."""
        self.server.crowd.finish(self.client_address)
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            known = " ".join(self.server.pages)
            page = Page(f"no such page; there are: {known}\n".encode(), status=404)
        else:
            page = make()
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request at the debug level."""
        logger.debug("%s %s", self.address_string(), format % args)


class _Visit:
    """An open connection; it is finished when its request is complete."""

    def __init__(self, host: str, plain: socket.socket) -> None:
        self.host = host
        self.socket = plain
        self.finished = False


class _Crowd:
    """The open connections of the server by the addresses of their clients. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visits: dict[Any, _Visit] = {}

    def enter(self, client: Any, plain: socket.socket) -> tuple[Place, str]:
        """Take a connection in if there is a place for it, and cut off an older one if it must.

        Returns:
            What was decided, and the host of the client that was cut off; empty for none.
        """
        with self._lock:
            known = list(self._visits)
            visits = [self._visits[one] for one in known]
            callers = [Caller(visit.host, visit.finished) for visit in visits]
            place = place_for(client[0], callers, LIMITS)
            if place.free:
                self._visits[client] = _Visit(client[0], plain)
            if place.dropped is None:
                return place, ""
            oldest = self._visits.pop(known[place.dropped])
            # The thread of this connection sees that it has ended, and closes it.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(oldest.socket, socket.SHUT_RDWR)
            return place, oldest.host

    def knows(self, client: Any, now: socket.socket | None = None) -> bool:
        """Whether a connection was not cut off; `now` is the socket that has replaced its first."""
        with self._lock:
            visit = self._visits.get(client)
            if visit is not None and now is not None:
                visit.socket = now
            return visit is not None

    def finish(self, client: Any) -> None:
        """Note that the request of a connection is complete."""
        with self._lock:
            if client in self._visits:
                self._visits[client].finished = True

    def leave(self, client: Any) -> None:
        """Forget a connection; this must happen before it is closed."""
        with self._lock:
            self._visits.pop(client, None)


class _HttpServer(ThreadingHTTPServer):
    """A server with a thread for each connection, few connections and short timeouts."""

    daemon_threads = True
    request_queue_size = 128
    """Number of connections that wait for `accept`; the five of the base class are soon taken."""

    def __init__(self, host: str, port: int, pages: Pages, files: Files | None) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.pages = pages
        self._contexts = None if files is None else ServerContexts(files)
        self._revoked = None if files is None else Revoked(files.revoked)
        self.on_refused: OnRefused = lambda _reason: None
        self.on_reader: OnReader = lambda _identity: None
        self.crowd = _Crowd()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket without the DNS look-up of our own name that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        place, gone = self.crowd.enter(client_address, request)
        if place.why:
            self._refuse(gone or client_address[0], Refusal(TOO_MANY, place.why))
        if place.free:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread, after the TLS handshake if there are certificates."""
        try:
            request.settimeout(PATIENCE_S)
            request, refusal = self._let_in(request, client_address)
            if refusal is None:
                self.finish_request(request, client_address)
            elif self.crowd.knows(client_address):  # it was not cut off for another client
                self._refuse(client_address[0], refusal)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.crowd.leave(client_address)
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a client left in the middle; it is not an error of the server."""
        del request
        logger.info("%s left", client_address[0], exc_info=True)

    def _let_in(
        self, request: socket.socket, client_address: Any
    ) -> tuple[socket.socket, Refusal | None]:
        """The socket of the client after its handshake, and why it is refused, if it is."""
        if self._contexts is None or self._revoked is None:
            return request, None
        context = self._contexts.current()
        context.set_alpn_protocols(["http/1.1"])
        try:
            wrapped = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:  # the client has left already
            return request, refusal_of(error)
        try:
            if not self.crowd.knows(client_address, wrapped):
                return wrapped, Refusal(TOO_MANY, "another client came")
            wrapped.do_handshake()
        except (OSError, ValueError) as error:
            slow = isinstance(error, TimeoutError) or "timed out" in str(error)
            late = Refusal(TIMEOUT, "its handshake took too long")
            return wrapped, late if slow else refusal_of(error)
        der = wrapped.getpeercert(binary_form=True) or b""
        identity = identity_of(wrapped.getpeercert() or {}, der)
        refusal = judge(identity, READERS, self._revoked.fingerprints())
        if refusal is None and identity is not None:
            self.on_reader(identity)
        return wrapped, refusal

    def _refuse(self, client_address: Any, refusal: Refusal) -> None:
        self.on_refused(refusal.reason)
        logger.warning("metrics: refused %s: %s", client_address[0], refusal.text)


class HttpPort:
    """Serves pages from its construction until `close`.

    Args:
        host: address to listen on.
        port: number of the port; 0 for any free one.
        pages: that are served.
        files: certificates; None for plain HTTP, on loopback.
        on_refused: called with the reason of each refusal.
        on_reader: called with the identity of each reader that is let in with a certificate.

    Raises:
        OSError: the port cannot be opened.
        OverflowError: the number is not that of a port.
        TlsFileError: the certificates cannot be used.
        RevokedError: the list of revoked certificates cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Pages,
        files: Files | None = None,
        on_refused: OnRefused = lambda _reason: None,
        on_reader: OnReader = lambda _identity: None,
    ) -> None:
        self.scheme = "http" if files is None else "https"
        self._server = _HttpServer(host, port, pages, files)
        self._server.on_refused, self._server.on_reader = on_refused, on_reader
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The number of the port on which it listens."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop answering and close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
