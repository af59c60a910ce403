"""What a failed call means: one catalogue of gRPC status codes -> our errors."""

from __future__ import annotations

from typing import Any

import grpc

from latfarm_controller.agents.board import DISK_FULL
from latfarm_controller.errors import (
    AgentError,
    AgentLostError,
    CertificateError,
    DiskFullError,
    LeaseError,
)

ERROR_KEY = "latfarm-error"
"""Trailing metadata by which an agent names its error; absent when the transport failed."""

_Code = grpc.StatusCode
_LEASE_NAMES = frozenset({"LEASE", "LEASE_HELD", "LEASE_LOST"})


def agents_name(error: Any) -> str:
    """How the agent names the error; empty when it did not get to answer."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY:
            return value if isinstance(value, str) else value.decode(errors="replace")
    return ""


def cut(error: Any) -> bool:
    """Whether the connection broke or the board went silent: the same call may succeed later.

    Args:
        error: `grpc.aio.AioRpcError` of the call.
    """
    code, name = error.code(), agents_name(error)
    if code == _Code.INTERNAL:  # a reset stream looks like this from here
        return not name and "RST_STREAM" in (error.details() or "")
    if code == _Code.UNAVAILABLE:
        return name in ("", "STOPPING")
    return code in (_Code.DEADLINE_EXCEEDED, _Code.CANCELLED)


def as_error(error: Any, address: str, method: str) -> AgentError:
    """The error to raise for a call that failed for good.

    Args:
        error: `grpc.aio.AioRpcError` of the call.
        address: of the board.
        method: that was called.
    """
    code, details, name = error.code(), error.details() or "", agents_name(error)
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
