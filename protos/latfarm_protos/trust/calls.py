"""What a server does with the gate's word: refuse a call, or let it pass.

One status for each kind of refusal: UNAUTHENTICATED for whoever we do not know, or know to be
revoked, PERMISSION_DENIED for whoever we know but do not let do this.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import grpc
from google.protobuf.message import DecodeError

from latfarm_protos.trust.identity import WRONG_ROLE, Refusal

ERROR_KEY = "latfarm-error"
"""Trailing metadata that names an error."""
REFUSED = "REFUSED"
NO_MESSAGE = "this is no message of this method"

Check = Callable[[str], Optional[Refusal]]
"""Why a call of a peer, as gRPC names it, is refused; None: it is not."""


def status_of(refusal: Refusal) -> grpc.StatusCode:
    """The status by which a refused call ends."""
    if refusal.reason == WRONG_ROLE:
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.UNAUTHENTICATED


class CallGuard(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Asks before each call of a synchronous server, and reads its messages.

    Messages are read here because gRPC never frees a call whose message it could not read itself:
    some 14 KB each, in 1.85 (found by `make fuzz-ports`).

    Args:
        check: gets peer and method; why the call is refused, or None.
        malformed: makes the error that a stream of requests raises at a message that is none.
    """

    def __init__(
        self,
        check: Callable[[str, str], Refusal | None],
        malformed: Callable[[str], Exception] = ValueError,
    ) -> None:
        self._check = check
        self._malformed = malformed

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The handler of a method, with the question before it."""
        handler, method = continuation(details), details.method
        if handler is None:
            return None
        return _guarded(handler, lambda peer: self._check(peer, method), self._malformed)


def _refuse(context: Any, check: Check) -> None:
    refusal = check(context.peer())
    if refusal is not None:
        context.set_trailing_metadata(((ERROR_KEY, REFUSED),))
        context.abort(status_of(refusal), refusal.text)


def _guarded(handler: Any, check: Check, malformed: Callable[[str], Exception]) -> Any:
    inside = _behaviour(handler)
    read = handler.request_deserializer or (lambda data: data)

    def messages(received: Iterator[bytes]) -> Iterator[Any]:
        for data in received:
            try:
                message = read(data)
            except DecodeError:
                raise malformed(NO_MESSAGE) from None
            yield message

    def asked(received: Any, context: Any) -> Any:
        _refuse(context, check)
        if handler.request_streaming:
            return messages(received)
        try:
            return read(received)
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_MESSAGE)

    def answer(request: Any, context: Any) -> Any:
        return inside(asked(request, context), context)

    def stream(request: Any, context: Any) -> Iterator[Any]:
        yield from inside(asked(request, context), context)

    return _like(handler, stream if handler.response_streaming else answer)


def _behaviour(handler: Any) -> Any:
    """What a handler calls, whatever its shape."""
    shapes = (
        handler.unary_unary,
        handler.unary_stream,
        handler.stream_unary,
        handler.stream_stream,
    )
    return next(shape for shape in shapes if shape is not None)


def _like(handler: Any, behaviour: Any) -> Any:
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = makers[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(behaviour, None, handler.response_serializer)
