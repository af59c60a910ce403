"""Refuse calls of a gRPC server whose client the gate has refused.

A refused call ends with PERMISSION_DENIED if the client is known but lacks the role, and with
UNAUTHENTICATED if the client is unknown or its certificate is revoked.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import grpc

from latfarm_protos.trust.identity import WRONG_ROLE, Refusal
from latfarm_protos.trust.message_fields import Unreadable, careful

ERROR_KEY = "latfarm-error"
"""The key of the trailing metadata that names an error."""
REFUSED = "REFUSED"
"""The error of a refused call."""

Check = Callable[[str], Optional[Refusal]]
"""Gets the peer of a call, as gRPC names it; returns why the call is refused, or None."""


def status_of(refusal: Refusal) -> grpc.StatusCode:
    """The gRPC status with which a refused call ends."""
    if refusal.reason == WRONG_ROLE:
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.UNAUTHENTICATED


class CallGuard(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Checks each call of a synchronous server before its handler, and decodes its messages.

    Messages are decoded here because gRPC (1.85) never frees a call whose message it could not
    decode itself, about 14 KB each (found by `make fuzz-ports`). Their fields are counted before,
    so that a message cannot become a hundred times as large in memory (`message_fields.py`).

    Args:
        check: gets peer and method; returns why the call is refused, or None.
        malformed: makes the error that a stream of requests raises for bytes that are no message,
            or have too many fields. A call with one request ends with INVALID_ARGUMENT instead, and
            with the error's `code` in its trailing metadata, if the error has one.
    """

    def __init__(
        self,
        check: Callable[[str, str], Refusal | None],
        malformed: Callable[[str], Exception] = ValueError,
    ) -> None:
        self._check = check
        self._malformed = malformed

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The handler of a method, with the check before it."""
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
    inside = behaviour_of(handler)
    plain = handler.request_deserializer
    read = (lambda data: data) if plain is None else careful(plain)

    def messages(received: Iterator[bytes]) -> Iterator[Any]:
        for data in received:
            message = read(data)
            if isinstance(message, Unreadable):
                raise malformed(message.of_request)
            yield message

    def asked(received: Any, context: Any) -> Any:
        _refuse(context, check)
        if handler.request_streaming:
            return messages(received)
        message = read(received)
        if isinstance(message, Unreadable):
            code = getattr(malformed(message.of_request), "code", "")
            if code:
                context.set_trailing_metadata(((ERROR_KEY, code),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, message.of_request)
        return message

    def answer(request: Any, context: Any) -> Any:
        return inside(asked(request, context), context)

    def stream(request: Any, context: Any) -> Iterator[Any]:
        yield from inside(asked(request, context), context)

    return handler_like(handler, stream if handler.response_streaming else answer)


def behaviour_of(handler: Any) -> Any:
    """The function of a handler, whether requests and responses are streams or not."""
    shapes = (
        handler.unary_unary,
        handler.unary_stream,
        handler.stream_unary,
        handler.stream_stream,
    )
    return next(shape for shape in shapes if shape is not None)


def handler_like(handler: Any, behaviour: Any) -> Any:
    """A handler with another function, which gets the bytes of its requests."""
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = makers[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(behaviour, None, handler.response_serializer)
