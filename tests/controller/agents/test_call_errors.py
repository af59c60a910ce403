"""Which failures of a call mean that the connection broke, so that the call may be made again."""

from __future__ import annotations

import grpc
import pytest
from latfarm_controller.agents.call_errors import ERROR_KEY, cut


def failure(code: grpc.StatusCode, details: str, name: str = "") -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*([(ERROR_KEY, name)] if name else []))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=details)


@pytest.mark.parametrize(
    ("code", "details", "name", "expected"),
    [
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", "", True),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", "", True),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", "DISK_FULL", False),
        (grpc.StatusCode.INTERNAL, "a defect of the agent", "", False),
        (grpc.StatusCode.UNAVAILABLE, "connection reset", "", True),
        (grpc.StatusCode.UNAVAILABLE, "it stops", "STOPPING", True),
        (grpc.StatusCode.UNAVAILABLE, "it is busy", "BUSY", False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", "", True),
        (grpc.StatusCode.INVALID_ARGUMENT, "another sha256", "", False),
    ],
)
def test_what_counts_as_a_broken_connection(
    code: grpc.StatusCode, details: str, name: str, expected: bool
) -> None:
    assert cut(failure(code, details, name)) is expected
