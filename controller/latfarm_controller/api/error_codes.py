"""The errors of the controller on the wire: their gRPC status, and how a client rebuilds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any

import grpc
from latfarm_predictors.errors import PredictorsError

from latfarm_controller import errors

ERROR_KEY = "latfarm-error"
"""Trailing metadata with the name of the error's class, so that a client raises the same class."""
LONGEST_ERROR = 3000
"""Longest error text in characters: the text travels in a header, where gRPC allows 8 KiB."""

STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (errors.UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.StoreBusyError, grpc.StatusCode.UNAVAILABLE),
    (errors.AgentLostError, grpc.StatusCode.UNAVAILABLE),
    (errors.LeaseError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.ControllerError, grpc.StatusCode.ABORTED),
    (PredictorsError, grpc.StatusCode.INVALID_ARGUMENT),
    (OSError, grpc.StatusCode.INTERNAL),
)
"""Status code of each class of errors. The first class that an error belongs to decides."""
KINDS = tuple(kind for kind, _ in STATUS)
"""All classes of errors that a client is told about. Any other error is a bug of the controller."""


async def abort(context: Any, error: Exception) -> None:
    """End a call with the status, the text and the class name of an error.

    Args:
        context: the call's `grpc.aio.ServicerContext`.
        error: an error of one of the classes in `KINDS`; any other is raised again.
    """
    code = next((code for kind, code in STATUS if isinstance(error, kind)), None)
    if code is None:
        raise error
    name, text = told(error)
    await context.abort(code, text, ((ERROR_KEY, name),))


def streams(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a gRPC method of one that returns the messages of its answer as they come.

    A caller that breaks the call off ends at once what was done for it. An error of one of the
    classes in `KINDS` ends the call as `abort` does.

    Args:
        method: takes the servicer, the request or the requests, and the call's context.
    """

    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(self, request, context)) as messages:
                async for message in messages:
                    yield message
        except KINDS as error:
            await abort(context, error)

    return call


def told(error: Exception) -> tuple[str, str]:
    """The name of the class and the text with which a client rebuilds an error (`rebuilt`)."""
    name = "UsageError" if isinstance(error, PredictorsError) else "ControllerError"
    if isinstance(error, errors.ControllerError):
        name = type(error).__name__
    text = str(error) or type(error).__name__
    if len(text) > LONGEST_ERROR:
        text = f"{text[:LONGEST_ERROR]}..."
    return name, text


def rebuilt(name: str, text: str) -> errors.ControllerError | None:
    """The error of a class of ours, by its name; None if there is no such class."""
    known = {cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type)}
    kind = known.get(name)
    if kind is not None and issubclass(kind, errors.ControllerError):
        return kind(text)
    return None


def error_of(rpc_error: grpc.RpcError) -> Exception:
    """Rebuild the error that the service raised, on the client's side."""
    names = dict(rpc_error.trailing_metadata() or ())
    found = rebuilt(str(names.get(ERROR_KEY, "")), rpc_error.details())
    if found is not None:
        return found
    if rpc_error.code() is grpc.StatusCode.UNAVAILABLE:
        return errors.ControllerError(
            "the controller went away during the call; run the command again to continue"
        )
    return errors.ControllerError(str(rpc_error.details()))
