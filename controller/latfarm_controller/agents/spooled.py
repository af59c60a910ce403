"""Finished results that a board keeps in its spool, as a list of them shows them.

A result on the wire does not tell the graph that was measured. So it stays as it came until the
request that it answers is known again.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement, Outcome
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.results import measurement_from_pb
from latfarm_controller.agents.wire import Request

MOST_SPOOLED = 10_000
"""Most results that a board may list; an agent keeps no more."""
LONGEST_ID = 128
"""Longest id of a request in characters, as agents allow them."""


@dataclass(frozen=True, slots=True)
class SpooledResult:
    """A finished result of a board, and what can be told of it without its request.

    `payload` is the whole message. The names are as the board gave them: compare them with known
    ones, and show none of them to people.
    """

    request_id: str
    platform: str
    board_id: str
    fingerprint: str
    outcome: str
    protocol_version: int
    payload: bytes

    @property
    def answers(self) -> bool:
        """Whether it answers its request: it is a latency or a failure of the model itself."""
        current = self.protocol_version == PROTOCOL_VERSION
        named = 0 < len(self.request_id) <= LONGEST_ID
        return current and named and self.outcome in (Outcome.OK, Outcome.MODEL_ERROR)


def spooled_from_pb(result: pb.Result) -> SpooledResult:
    """A result of a board's list."""
    return SpooledResult(
        result.request_id,
        result.platform,
        result.board_id,
        result.fingerprint,
        result.outcome,
        result.protocol_version,
        result.SerializeToString(),
    )


def answer_from_spool(
    payload: bytes, request: Request, board: BoardInfo, received_at_s: float
) -> Measurement | None:
    """The answer that a spooled result gives to a request; None if it gives none.

    Args:
        payload: the message, as `SpooledResult` keeps it.
        request: the question; a result under another fingerprint or of another board is no answer.
        board: the board that gave the result, with the fingerprints that count now.
        received_at_s: when the board gave it, in Unix time.
    """
    try:
        result = pb.Result.FromString(payload)
    except DecodeError:
        return None
    found = measurement_from_pb(result, request, board, received_at_s)
    return None if found.outcome is Outcome.INFRASTRUCTURE_ERROR else found
