"""Call the controller instead of listening, for a board that nobody can call.

The agent keeps one control connection to the controller's gate, and makes another connection
whenever the controller asks for one. `latfarm_protos.trust.dialling` tells what both sides say. The
bytes of these connections go to the agent's gRPC server, which listens on a Unix socket in a folder
that only its user can read. Both sides prove themselves by certificates, as with a board that
listens.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import selectors
import shutil
import socket
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from latfarm_protos.trust import dialling
from latfarm_protos.trust.connection import Phase, TlsConnection
from latfarm_protos.trust.contexts import Files, TlsFileError, client_context, refusal_of
from latfarm_protos.trust.gate import LOOK_S, Admission
from latfarm_protos.trust.identity import CONTROLLER, HANDSHAKE, Identity, Refusal, judge
from latfarm_protos.trust.identity import identity_of as identity_in
from latfarm_protos.trust.revoked import Revoked, RevokedError

from latfarm_agent.errors import AgentUsageError

STEP_S = 10.0
"""Longest time to connect, and of each step of the handshake, in seconds."""
FIRST_PAUSE_S = 0.5
"""Pause before the controller is called again, in seconds; each pause is twice the one before."""
LONGEST_PAUSE_S = 8.0
"""Longest pause before a controller that cannot be reached is called again, in seconds."""
REFUSED_PAUSE_S = 30.0
"""Pause before a controller that has refused this board is called again, in seconds."""
MOST_CONNECTIONS = 16
"""Most connections that the controller may ask for at once, beside the control connection."""

logger = logging.getLogger(__name__)


class DialRefusedError(Exception):
    """The controller refuses this board, or we refuse the controller; says why."""


@dataclass(frozen=True)
class DialTarget:
    """The controller to call: its host and port, and the name in its certificate."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        """The host and the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Dialler:
    """Keeps this board connected with its controller, between `start` and `close`.

    Args:
        target: the controller.
        files: certificate, key and CA of this board, and the list of revoked certificates.
        on_refused: called with the reason of each refusal of a controller by us.
        dice: spreads the pauses, so that boards do not call all at once.

    Raises:
        AgentUsageError: the files cannot be used.
    """

    def __init__(
        self,
        target: DialTarget,
        files: Files,
        on_refused: Callable[[str], None] = lambda _reason: None,
        dice: random.Random | None = None,
    ) -> None:
        self._target = target
        self._files = files
        self._on_refused = on_refused
        self._dice = dice or random.SystemRandom()
        try:
            client_context(files)
            self._revoked = Revoked(files.revoked)
        except (TlsFileError, RevokedError) as error:
            raise AgentUsageError(str(error)) from error
        # A new short folder, since paths of Unix sockets must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="latfarm-"))
        self.inner = self._folder / "grpc"
        """The path of the Unix socket on which the server must listen."""
        self._instance = secrets.token_hex(8)
        self._board_id = ""
        self._lock = threading.Lock()
        self._open: set[ssl.SSLSocket] = set()
        self._threads: set[threading.Thread] = set()
        self._admissions: dict[str, Admission] = {}
        self._numbers = 0
        self._ending = threading.Event()
        self._told = ""
        self._tries = 0
        self._thread = threading.Thread(target=self._run, name="dialler", daemon=True)

    def start(self, board_id: str) -> None:
        """Begin to call the controller; the server must already listen on `inner`."""
        self._board_id = board_id
        self._thread.start()

    def close(self) -> None:
        """End all connections; calling it again does nothing."""
        self._ending.set()
        with self._lock:
            for outer in self._open:
                with contextlib.suppress(OSError):
                    # The thread of the connection sees its end and closes it.
                    socket.socket.shutdown(outer, socket.SHUT_RDWR)
            threads = list(self._threads)
        if self._thread.ident is not None:
            threads.append(self._thread)
        for thread in threads:
            thread.join(STEP_S)
        shutil.rmtree(str(self._folder), ignore_errors=True)

    def admission(self, peer: str) -> Admission | None:
        """The controller behind a peer as gRPC names it; None if it did not come through here."""
        return self._admissions.get(peer[len("unix:") :] if peer.startswith("unix:") else peer)

    # The methods below run in the threads of this object.

    def _run(self) -> None:
        while not self._ending.is_set():
            longest_s = LONGEST_PAUSE_S
            try:
                self._keep_control()
            except DialRefusedError as error:
                longest_s = REFUSED_PAUSE_S
                self._tries = max(self._tries, 6)  # a refusal does not end by itself soon
                self._tell(f"no connection with {self._target}: {error}")
            except (OSError, TlsFileError, dialling.DialMessageError) as error:
                self._tell(f"no connection with {self._target}: {_reason(error)}")
            pause_s = min(longest_s, FIRST_PAUSE_S * 2.0 ** min(self._tries, 10))
            self._tries += 1
            self._ending.wait(pause_s * self._dice.uniform(0.5, 1.0))

    def _tell(self, text: str) -> None:
        """Log why there is no connection, once for each reason."""
        if text != self._told and not self._ending.is_set():
            self._told = text
            logger.warning("%s", text)

    def _connect(self) -> tuple[ssl.SSLSocket, Identity]:
        """A connection to a controller that has proven itself.

        Raises:
            OSError: it cannot be reached, or the handshake failed.
            TlsFileError: our files cannot be used.
            DialRefusedError: it is not a controller that we trust.
        """
        context = client_context(self._files, (dialling.PROTOCOL,))  # with the files as of now
        plain = socket.create_connection((self._target.host, self._target.port), STEP_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            outer = context.wrap_socket(plain, server_hostname=self._target.name)
        except BaseException:
            plain.close()
            raise
        try:
            identity = identity_in(outer.getpeercert() or {}, outer.getpeercert(True) or b"")
            self._check(identity, outer.selected_alpn_protocol())
        except BaseException:
            outer.close()
            raise
        return outer, identity

    def _check(self, identity: Identity, protocol: str | None = dialling.PROTOCOL) -> None:
        """Refuse whoever is no controller of this farm, or takes no boards.

        Raises:
            DialRefusedError: says why.
        """
        refusal = judge(identity, (CONTROLLER,), self._revoked.fingerprints())
        if refusal is None and protocol != dialling.PROTOCOL:
            text = "it takes no boards that dial in; is it an older controller?"
            refusal = Refusal(HANDSHAKE, text)
        if refusal is not None:
            self._on_refused(refusal.reason)
            raise DialRefusedError(refusal.text)

    @contextlib.contextmanager
    def _noted(self, outer: ssl.SSLSocket) -> Iterator[None]:
        """Let `close` end this connection while the block runs, which closes it in any case.

        Raises:
            ConnectionError: `close` was called before.
        """
        with self._lock:
            self._open.add(outer)
        try:
            if self._ending.is_set():
                raise ConnectionError("the agent is shutting down")
            yield
        finally:
            with self._lock:
                self._open.discard(outer)
            outer.close()

    def _keep_control(self) -> None:
        """Be connected until the connection ends.

        Raises:
            OSError: there is no connection, or it broke or fell silent.
            DialRefusedError: the controller refuses this board, or we refuse it.
            DialMessageError: it says what no controller says.
        """
        outer, identity = self._connect()
        with self._noted(outer):
            hello = {"version": dialling.VERSION, "board_id": self._board_id}
            outer.sendall(dialling.packed(dialling.CONTROL, **hello, instance=self._instance))
            outer.settimeout(dialling.SILENT_S)
            with outer.makefile("rb") as lines:
                while True:
                    line = lines.readline(dialling.MOST_BYTES + 1)
                    if not line:
                        raise ConnectionError("the controller ended the connection")
                    self._obey(dialling.unpacked(line), outer, identity)

    def _obey(self, message: Any, outer: ssl.SSLSocket, identity: Identity) -> None:
        kind = message["kind"]
        if kind == dialling.WELCOME:
            self._tries, self._told = 0, ""
            logger.info("connected with %s, which is %s", self._target, identity)
        elif kind == dialling.PING:
            self._check(identity)
            outer.sendall(dialling.packed(dialling.PONG))
        elif kind == dialling.OPEN:
            self._make(dialling.text_of(message, "key"))
        elif kind == dialling.REFUSED:
            raise DialRefusedError(dialling.text_of(message, "reason", most=2000))

    def _make(self, key: str) -> None:
        """Make a connection in a thread of its own."""
        with self._lock:
            if len(self._threads) >= MOST_CONNECTIONS:
                logger.warning("the controller asks for too many connections")
                return
            thread = threading.Thread(target=self._lend, args=(key,), name="dialled", daemon=True)
            self._threads.add(thread)
        thread.start()

    def _lend(self, key: str) -> None:
        try:
            outer, identity = self._connect()
            with self._noted(outer):
                data = dialling.packed(dialling.DATA, version=dialling.VERSION, key=key)
                outer.sendall(data)
                self._serve(outer, identity)
        except (OSError, TlsFileError, DialRefusedError) as error:
            logger.warning("a connection for %s was lost: %s", self._target, _reason(error))
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _serve(self, outer: ssl.SSLSocket, identity: Identity) -> None:
        """Carry bytes between a connection and the gRPC server until one of them ends."""
        outer.setblocking(False)
        connection = TlsConnection(outer, str(self._target), self._target.host, 0.0)
        connection.phase, connection.deadline_s = Phase.OPEN, None
        with self._lock:
            self._numbers += 1
            name = str(self._folder / str(self._numbers))
            self._admissions[name] = Admission(identity)
        try:
            connection.enter(self.inner, name)
            with selectors.DefaultSelector() as selector:
                self._carry(connection, identity, selector)
        finally:
            connection.close()
            self._admissions.pop(name, None)
            with contextlib.suppress(OSError):
                Path(name).unlink()

    def _carry(
        self, connection: TlsConnection, identity: Identity, selector: selectors.BaseSelector
    ) -> None:
        looked_s = time.monotonic()
        while not self._ending.is_set():
            connection.carry()
            if connection.phase is not Phase.OPEN:
                return
            for end, wanted in connection.wanted():
                known = selector.get_map().get(end)
                if known is None and wanted:
                    selector.register(end, wanted)
                elif known is not None and not wanted:
                    selector.unregister(end)
                elif known is not None and known.events != wanted:
                    selector.modify(end, wanted)
            selector.select(0.0 if connection.more else LOOK_S)
            if time.monotonic() >= looked_s + LOOK_S:
                looked_s = time.monotonic()
                self._check(identity)


def _reason(error: Exception) -> str:
    """What went wrong, for the log."""
    if isinstance(error, ssl.SSLError):
        return refusal_of(error).text
    if isinstance(error, socket.timeout):
        return "it does not answer"
    return str(getattr(error, "strerror", None) or error)
