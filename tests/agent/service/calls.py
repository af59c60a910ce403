"""Calls of the agent's service that are expected to fail, and what their streams give."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

import grpc
import pytest
from latfarm_agent.service.servicer import ERROR_KEY
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    pass


Code = grpc.StatusCode
WAIT_S = 60


class Failure:
    """The status, details and error code of a failed call."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.status = error.code()
        self.details = error.details()
        trailing = {key: value for key, value in error.trailing_metadata() or ()}
        self.code = trailing.get(ERROR_KEY)


def until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def fails(call: Any, *args: Any, **named: Any) -> Failure:
    with pytest.raises(grpc.RpcError) as caught:
        drain(call(*args, **named))
    return Failure(caught.value)


def drain(answer: Any) -> None:
    """Read all events of a stream; a plain reply has none."""
    if hasattr(answer, "cancel"):
        list(answer)


def result_of(events: Any) -> pb.Result:
    *stages, last = list(events)
    assert all(event.HasField("stage") for event in stages)
    result: pb.Result = last.result
    return result


def first_stage(events: Any) -> str:
    return str(next(events).stage.name)
