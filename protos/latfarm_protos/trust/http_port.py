"""A small HTTP server for metrics and health, with mutual TLS if it listens beyond loopback.

A reader needs a certificate of the farm's CA with one of the allowed roles, which is not revoked.
Certificates are read again when their files change.
"""

from __future__ import annotations

import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Mapping, NamedTuple

from latfarm_protos.trust.contexts import Files, ServerContexts, refusal_of
from latfarm_protos.trust.identity import (
    CONTROLLER,
    OPERATOR,
    TIMEOUT,
    TOO_MANY,
    VIEWER,
    Refusal,
    identity_of,
    judge,
)
from latfarm_protos.trust.revoked import Revoked

READERS = (CONTROLLER, OPERATOR, VIEWER)
"""Roles that may read the pages."""
MAX_CONNECTIONS = 8
"""The largest number of connections at once."""
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


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD requests with the pages of the server."""

    timeout = PATIENCE_S
    server: _HttpServer
    server_version = "latfarm"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, or with 404 and the list of pages."""
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


class _HttpServer(ThreadingHTTPServer):
    """A server with a thread for each connection, few connections and short timeouts."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, pages: Pages, files: Files | None, on_refused: OnRefused
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.pages = pages
        self._contexts = None if files is None else ServerContexts(files)
        self._revoked = None if files is None else Revoked(files.revoked)
        self._on_refused = on_refused
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket without the DNS look-up of our own name that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self._refuse(client_address, Refusal(TOO_MANY, "there are too many connections"))
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread, after the TLS handshake if there are certificates."""
        try:
            request.settimeout(PATIENCE_S)
            try:
                request, refusal = self._let_in(request)
            except (OSError, ValueError) as error:
                slow = isinstance(error, TimeoutError) or "timed out" in str(error)
                refusal = refusal_of(error)
                if slow:
                    refusal = Refusal(TIMEOUT, "its handshake took too long")
            if refusal is None:
                super().process_request_thread(request, client_address)
            else:
                self._refuse(client_address, refusal)
                self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a client left in the middle; it is not an error of the server."""
        del request
        logger.info("%s left", client_address[0], exc_info=True)

    def _let_in(self, request: socket.socket) -> tuple[socket.socket, Refusal | None]:
        if self._contexts is None or self._revoked is None:
            return request, None
        context = self._contexts.current()
        context.set_alpn_protocols(["http/1.1"])
        wrapped = context.wrap_socket(request, server_side=True)
        der = wrapped.getpeercert(binary_form=True) or b""
        identity = identity_of(wrapped.getpeercert() or {}, der)
        return wrapped, judge(identity, READERS, self._revoked.fingerprints())

    def _refuse(self, client_address: Any, refusal: Refusal) -> None:
        self._on_refused(refusal.reason)
        logger.warning("metrics: refused %s: %s", client_address[0], refusal.text)


class HttpPort:
    """Serves pages from its construction until `close`.

    Args:
        host: address to listen on.
        port: number of the port; 0 for any free one.
        pages: that are served.
        files: certificates; None for plain HTTP, on loopback.
        on_refused: called with the reason of each refusal.

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
    ) -> None:
        self.scheme = "http" if files is None else "https"
        self._server = _HttpServer(host, port, pages, files, on_refused)
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
