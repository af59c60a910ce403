"""Reads the requests of all calls of an asynchronous gRPC server, and refuses what is too much.

A message of 64 MiB may take gigabytes once it is read (`latfarm_protos.trust.message_fields`), and
reading it would keep the event loop from everything else. So each request is read here: large ones
in a thread, where their fields are counted before. gRPC gets the bytes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from latfarm_protos.trust.calls import behaviour_of, handler_like
from latfarm_protos.trust.message_fields import SMALL_BYTES, Unreadable, careful

from latfarm_controller.api import error_codes
from latfarm_controller.errors import UsageError


class CarefulRequests(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends each call with a `UsageError` whose request is no message or has too many fields."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The handler of a method, which gets the bytes of its requests from gRPC."""
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        return _careful(handler, careful(handler.request_deserializer))


async def _read(data: bytes, read: Callable[[bytes], Any]) -> Any:
    """The message of some bytes.

    Raises:
        UsageError: the bytes are no message, or it has too many fields.
    """
    large = len(data) > SMALL_BYTES
    message = await asyncio.to_thread(read, data) if large else read(data)
    if isinstance(message, Unreadable):
        raise UsageError(message.of_request)
    return message


def _careful(handler: Any, read: Callable[[bytes], Any]) -> Any:
    """A handler that reads requests with `read` and hands them to another handler."""
    inside = behaviour_of(handler)

    async def messages(received: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in received:
            yield await _read(data, read)  # the method is told what stops its stream

    async def asked(received: Any, context: Any) -> Any:
        if handler.request_streaming:
            return messages(received)
        try:
            return await _read(received, read)
        except UsageError as error:
            await error_codes.abort(context, error)

    async def answer(received: Any, context: Any) -> Any:
        return await inside(await asked(received, context), context)

    async def stream(received: Any, context: Any) -> AsyncIterator[Any]:
        async with aclosing(inside(await asked(received, context), context)) as told:
            async for message in told:
                yield message

    return handler_like(handler, stream if handler.response_streaming else answer)
