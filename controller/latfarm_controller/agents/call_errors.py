"""Which error of the controller a failed gRPC call becomes, by its status code."""

from __future__ import annotations

from typing import Any

import grpc
from latfarm_protos.trust.message_fields import Unreadable

from latfarm_controller.agents import bounds
from latfarm_controller.agents.board import DISK_FULL
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    BadAnswerError,
    CertificateError,
    DiskFullError,
    LeaseError,
)

ERROR_KEY = "latfarm-error"
"""Key of the trailing metadata in which an agent names its error.

It is absent if the connection failed before the agent could answer.
"""

_TOO_LARGE = "Received message larger than max"
"""What gRPC says in the details of a call whose answer is over our limit."""
_Code = grpc.StatusCode
_LEASE_NAMES = frozenset({"LEASE", "LEASE_HELD", "LEASE_LOST"})

_MOMENTARY = frozenset({"STOPPING", "UPLOAD_SUPERSEDED"})
"""Names of errors after which the same order may be accepted by the same board soon."""

_ENDED_STREAM = ("RST_STREAM", "Internal error from Core")
"""What gRPC says of a stream that was reset, and of one that ended while the client wrote to it."""


def agents_name(error: Any) -> str:
    """The agent's name for the error; empty if the agent could not answer."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY:
            text = value if isinstance(value, str) else value.decode(errors="replace")
            return bounds.text(text, bounds.NAME_LETTERS)
    return ""


def details_of(error: Any) -> str:
    """What the board says about an error, in one printable line of bounded length."""
    return bounds.text(error.details() or "")


def cut(error: Any) -> bool:
    """Whether the connection broke or the board fell silent, so that a later call may succeed.

    Args:
        error: the `grpc.aio.AioRpcError` of the call.
    """
    code, name = error.code(), agents_name(error)
    if code == _Code.INTERNAL:
        return not name and any(words in (error.details() or "") for words in _ENDED_STREAM)
    if code == _Code.UNAVAILABLE:
        return name in ("", "STOPPING")
    return code in (_Code.DEADLINE_EXCEEDED, _Code.CANCELLED)


def refusal_as_error(refusal: Any, address: str) -> AgentError:
    """The error to raise for an order that a board refused on its stream.

    Args:
        refusal: the `Refusal` of the board.
        address: the address of the board.
    """
    code = bounds.text(refusal.error_code, bounds.NAME_LETTERS)
    details = bounds.text(refusal.error_message)
    if code in _LEASE_NAMES:
        return LeaseError(f"{address}: {details}")
    if code in _MOMENTARY:
        return AgentLostError(f"{address}: the board could not take the order: {details}")
    kind = DiskFullError if code == DISK_FULL else AgentError
    return kind(f"{address}: Work failed ({code or 'UNKNOWN'}): {details}")


def readable(answer: Any, address: str, method: str) -> Any:
    """The answer of a board to a call, or an event of it.

    Args:
        answer: what was read.
        address: the address of the board.
        method: the name of the call.

    Raises:
        BadAnswerError: its bytes are no message, or have too many fields.
    """
    if isinstance(answer, Unreadable):
        raise BadAnswerError(f"{address}: an answer to {method} {answer.why}")
    return answer


def as_error(error: Any, address: str, method: str) -> AgentError:
    """The error to raise for a call that failed and is not made again.

    Args:
        error: the `grpc.aio.AioRpcError` of the call.
        address: the address of the board.
        method: the name of the call.
    """
    code, details, name = error.code(), details_of(error), agents_name(error)
    if code == _Code.RESOURCE_EXHAUSTED and not name and _TOO_LARGE in details:
        return BadAnswerError(f"{address}: the answer to {method} is too large: {details}")
    if code == _Code.DEADLINE_EXCEEDED:
        return AgentLostError(
            f"{address}: no answer to {method} in time: does an agent run there, "
            "and do the certificates match?"
        )
    if cut(error):
        return AgentLostError(f"{address}: the board went away during {method}: {details}")
    if (
        name in _LEASE_NAMES
        or code == _Code.FAILED_PRECONDITION
        or (code == _Code.RESOURCE_EXHAUSTED and method == "AcquireLease" and not name)
    ):
        return LeaseError(f"{address}: {details}")
    if code in (_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED):
        return CertificateError(f"{address}: refused us: {details}")
    kind = DiskFullError if name == DISK_FULL else AgentError
    return kind(f"{address}: {method} failed ({name or code.name}): {details}")
