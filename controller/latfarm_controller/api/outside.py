"""The API for other machines: a gate that ends TLS, and a front that forwards calls.

The service itself is asynchronous, and gRPC's asynchronous server ends its main loop when the path
of a request is not UTF-8. One such call by anybody with a certificate would stop the controller
(found by `make fuzz-ports`). So calls from other machines reach a synchronous server first. It only
knows the methods of `roles.METHODS`, checks the caller's role, checks that each request is a valid
message without too many fields, and forwards the call through the home's own socket with the
caller's name as metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from latfarm_protos.trust.calls import CallGuard
from latfarm_protos.trust.contexts import Files, TlsFileError
from latfarm_protos.trust.crowd import CrowdLimits
from latfarm_protos.trust.gate import Gate, GateLimits, peer_refusal
from latfarm_protos.trust.identity import AGENT, Refusal
from latfarm_protos.trust.message_fields import Unreadable, careful
from latfarm_protos.trust.revoked import RevokedError
from latfarm_protos.v1 import controller_pb2 as pb

from latfarm_controller.api import roles
from latfarm_controller.api.error_codes import ERROR_KEY
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.api.service import ACTOR_KEY
from latfarm_controller.errors import UsageError

Reader = Callable[[bytes], Any]
"""Reads the bytes of a request; returns the message, or an `Unreadable`."""
MAX_CALLS = 64
"""Most calls at the same time, those that watch campaigns included. gRPC ends each further call
with RESOURCE_EXHAUSTED."""
OPTIONS = (
    *MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
"""Options of the server for other machines; its limits are stricter than those of the socket."""

LIMITS = GateLimits(CrowdLimits(connections=4096, per_address=2048))
"""Limits of the gate. A board that dials in has two connections or more, and many boards may share
one address behind a NAT. Connections that were not let in yet are limited as everywhere."""

LONGEST_S = 1e7
"""Seconds. A longer deadline counts as no deadline, which gRPC reports as infinity."""

logger = logging.getLogger(__name__)


class Outside:
    """Serves other machines until `close`.

    Args:
        folder: the folder of `controller.crt`, `controller.key`, `ca.crt` and `revoked.json`.
        service: address of the service's own socket.
        listen: `host:port` to listen on; port 0: any free port.

    Raises:
        UsageError: the certificates or the port cannot be used.
    """

    def __init__(self, folder: Path, service: str, listen: str) -> None:
        host, port = split_listen(listen)
        self._gate = _open_gate(folder)
        self._pool = futures.ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="outside")
        self._channel = grpc.insecure_channel(service, options=MESSAGE_OPTIONS)
        self._server = grpc.server(
            self._pool,
            handlers=(_handlers(self._channel, self._name),),
            interceptors=(CallGuard(self.refusal),),
            options=OPTIONS,
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        try:
            port = self._gate.listen(host, port)
            self._server.add_insecure_port(f"unix:{self.inner}")
        except (OSError, RuntimeError) as error:
            self.close()
            why = getattr(error, "strerror", "") or error
            raise UsageError(
                f"the controller cannot listen on {listen}: {why}; give another --listen"
            ) from error
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def inner(self) -> Path:
        """The socket behind the gate."""
        return self._gate.inner

    @property
    def gate(self) -> Gate:
        """The gate, which also takes boards that dial in."""
        return self._gate

    def start(self) -> None:
        """Start to accept calls."""
        self._server.start()
        self._gate.start()

    def stop(self) -> None:
        """End all calls; boards that have dialled in stay connected. This blocks for a moment."""
        self._server.stop(None).wait()

    def close(self) -> None:
        """End all calls and release the port. This blocks for a moment."""
        self._gate.close()
        self._server.stop(None).wait()
        self._channel.close()
        self._pool.shutdown()

    def refusal(self, peer: str, method: str) -> Refusal | None:
        """Why a call is refused; None if it is not. Each refusal is logged."""
        admission, refusal = peer_refusal(self._gate, peer)
        if admission is not None and refusal is None:
            refusal = roles.refusal(admission.identity.role, method)
        if refusal is not None:
            who = "somebody" if admission is None else admission.identity
            logger.warning(
                "%s of %s was refused: %s [%s]", method[:100], who, refusal.text, refusal.reason
            )
        return refusal

    def _name(self, peer: str) -> str:
        admission = self._gate.admission(peer)
        return admission.identity.name if admission is not None else "nobody"


def _open_gate(folder: Path) -> Gate:
    files = Files(folder / "controller.crt", folder / "controller.key", folder / "ca.crt")
    try:
        return Gate(files, roles.ALLOWED, limits=LIMITS, dialling=(AGENT,))
    except (TlsFileError, RevokedError) as error:
        raise UsageError(
            f"--listen needs certificates, but {error}; make them with `latfarm certs init`"
        ) from error


def split_listen(listen: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as its two parts.

    Raises:
        UsageError: the text has another form.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {listen!r} is not HOST:PORT; give for example 0.0.0.0:7450")
    return host.strip("[]"), int(port)


def _handlers(channel: grpc.Channel, name_of: Callable[[str], str]) -> Any:
    """A handler for each method that `roles.METHODS` lists; it forwards messages as bytes."""
    described = pb.DESCRIPTOR.services_by_name["ControllerService"]
    made = {}
    for method in described.methods:
        if method.name not in roles.METHODS:
            continue
        path = f"/{described.full_name}/{method.name}"
        read = careful(GetMessageClass(method.input_type).FromString)
        if method.client_streaming:
            made[method.name] = grpc.stream_stream_rpc_method_handler(
                _both_ways(channel.stream_stream(path), read, name_of)
            )
        elif method.server_streaming:
            made[method.name] = grpc.unary_stream_rpc_method_handler(
                _stream(channel.unary_stream(path), read, name_of)
            )
        else:
            made[method.name] = grpc.unary_unary_rpc_method_handler(
                _answer(channel.unary_unary(path), read, name_of)
            )
    return grpc.method_handlers_generic_handler(described.full_name, made)


def _answer(call: Any, read: Reader, name_of: Callable[[str], str]) -> Any:
    def answer(request: bytes, context: grpc.ServicerContext) -> Any:
        _check(request, read, context)
        actor = ((ACTOR_KEY, name_of(context.peer()).encode()),)
        under_way = call.future(request, metadata=actor, timeout=_left_s(context))
        context.add_callback(under_way.cancel)
        try:
            return under_way.result()
        except grpc.RpcError as error:
            _hand_on(error, context)
        except grpc.FutureCancelledError:
            context.abort(grpc.StatusCode.CANCELLED, "the caller cancelled the call")

    return answer


def _stream(call: Any, read: Reader, name_of: Callable[[str], str]) -> Any:
    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
        _check(request, read, context)
        yield from _handed_on(call, request, context, name_of)

    return stream


def _both_ways(call: Any, read: Reader, name_of: Callable[[str], str]) -> Any:
    def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        bad: list[Unreadable] = []

        def sound() -> Iterator[bytes]:
            # gRPC takes these one by one, as fast as the service reads them.
            for request in requests:
                message = read(request)
                if isinstance(message, Unreadable):
                    bad.append(message)
                    return
                yield request

        yield from _handed_on(call, sound(), context, name_of)
        if bad:
            _refuse(bad[0], context)

    return stream


def _handed_on(
    call: Any, asked: Any, context: grpc.ServicerContext, name_of: Callable[[str], str]
) -> Iterator[Any]:
    """The messages with which the service answers what is asked; a caller that leaves ends that."""
    actor = ((ACTOR_KEY, name_of(context.peer()).encode()),)
    under_way = call(asked, metadata=actor, timeout=_left_s(context))
    context.add_callback(under_way.cancel)
    try:
        yield from under_way
    except grpc.RpcError as error:
        _hand_on(error, context)


def _left_s(context: grpc.ServicerContext) -> float | None:
    """Seconds until the caller's deadline; None if there is none."""
    left_s = context.time_remaining()
    return left_s if left_s is not None and left_s < LONGEST_S else None


def _check(request: bytes, read: Reader, context: grpc.ServicerContext) -> None:
    """End the call if its request is not a valid message, or has too many fields."""
    message = read(request)
    if isinstance(message, Unreadable):
        _refuse(message, context)


def _refuse(unreadable: Unreadable, context: grpc.ServicerContext) -> None:
    """End the call because a request cannot be read."""
    context.set_trailing_metadata(((ERROR_KEY, UsageError.__name__),))
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, unreadable.of_request)


def _hand_on(error: grpc.RpcError, context: grpc.ServicerContext) -> None:
    """End the call with the same error with which the service ended it."""
    names = [pair for pair in error.trailing_metadata() or () if pair[0] == ERROR_KEY]
    context.set_trailing_metadata(tuple(names))
    context.abort(error.code(), error.details())
