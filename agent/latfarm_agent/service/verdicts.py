"""Results that the agent makes, what it adds to others, and what results say about the board."""

from __future__ import annotations

import time

from latfarm_protos.error_codes import INFRASTRUCTURE_ERROR

from latfarm_agent import PROTOCOL_VERSION
from latfarm_agent.bench.records import BenchRequest, BenchResult, OfferedPlatform
from latfarm_agent.service.offer import BoardOffer
from latfarm_agent.session.messages import Verdict

HOT_CODES = ("THROTTLED", "NOT_READY")
"""Error codes after which the board rests."""

HARMLESS_CODES = (
    "OUT_OF_MEMORY",
    "PROFILE_UNAVAILABLE",
    "RUNTIME_MISSING",
    "SETTINGS_INVALID",
    "CANCELLED",
)
"""Infrastructure errors that come from the request, and say nothing about the board."""


def failure(request: BenchRequest, offer: BoardOffer, code: str, message: str) -> BenchResult:
    """The result of a measurement that the agent ended, or never began."""
    result = BenchResult(
        outcome=INFRASTRUCTURE_ERROR,
        error_code=code,
        error_message=message,
        settings=request.settings,
    )
    fill_in(result, request, offer, 0.0)
    return result


def fill_in(result: BenchResult, request: BenchRequest, offer: BoardOffer, busy_s: float) -> None:
    """Set what the agent itself knows, and what the bench left empty.

    Args:
        result: to be changed.
        request: what was asked.
        offer: what the board offers.
        busy_s: how long the measurement had the board, in seconds.
    """
    board, _ = offer.seen
    result.request_id = request.request_id
    result.platform = request.platform
    result.protocol_version = PROTOCOL_VERSION
    result.board_id = result.board_id or board.board_id
    platform = offer.platform(request.platform)
    if platform is not None:
        result.fingerprint = result.fingerprint or platform.fingerprint
    result.measured_at_s = result.measured_at_s or time.time()
    result.board_ms = result.board_ms or busy_s * 1000


def judge(result: BenchResult, platform: OfferedPlatform | None, *, cancelled: bool) -> Verdict:
    """What a result says about the board; `platform`: the platform that was measured."""
    if cancelled or result.error_code in HARMLESS_CODES:
        return Verdict.VOID
    if result.outcome != INFRASTRUCTURE_ERROR:
        return Verdict.GOOD
    if result.error_code in HOT_CODES:
        # A board whose heat is simulated needs no rest.
        return Verdict.HOT if platform is not None and platform.real_time else Verdict.VOID
    return Verdict.FAULTY
