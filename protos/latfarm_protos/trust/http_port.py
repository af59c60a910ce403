"""A small HTTP port, for metrics and health: a few pages, over mutual TLS beyond loopback.

Who reads shows a certificate of the farm's authority with one of the allowed roles, which is not
revoked. Certificates are read again when their files change.
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
MAX_CONNECTIONS = 8
PATIENCE_S = 10.0
TEXT = "text/plain; charset=utf-8"

logger = logging.getLogger(__name__)


class Page(NamedTuple):
    """An answer."""

    body: bytes
    kind: str = TEXT
    status: int = 200


Pages = Mapping[str, Callable[[], Page]]
"""By path; made when asked for, in a thread of the port's own."""
OnRefused = Callable[[str], None]


class _Handler(BaseHTTPRequestHandler):
    """Answers the port's pages, to GET and HEAD alone."""

    timeout = PATIENCE_S
    server: _HttpServer
    server_version = "latfarm"
    sys_version = ""

    def do_GET(self) -> None:
        """A page, or that there is none."""
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
        """To our log, at the level that nobody sees unasked."""
        logger.debug("%s %s", self.address_string(), format % args)


class _HttpServer(ThreadingHTTPServer):
    """Each connection has a thread, of which there are few; each peer has little time."""

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
        """Without the look-up of our own name that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread, or hang up where there are enough."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self._refuse(client_address, Refusal(TOO_MANY, "there are too many connections"))
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In its thread: shake hands first, where that is asked for."""
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
        """A peer that left in the middle is no fault of ours."""
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
    """Serves pages from its making to `close`.

    Args:
        host: to listen on.
        port: 0: any free one.
        pages: what is served.
        files: certificates; None: plain HTTP, for loopback.
        on_refused: told the reason of each refusal.

    Raises:
        OSError: the port cannot be had.
        OverflowError: it is no port.
        TlsFileError: the certificates cannot be used.
        RevokedError: the list of the revoked cannot be used.
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
        """The port that it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
