"""Results as the agent tells them: its own failures, what it adds, what they say of the board."""

from __future__ import annotations

import time

from latfarm_protos.error_codes import INFRASTRUCTURE_ERROR

from latfarm_agent import PROTOCOL_VERSION
from latfarm_agent.bench.records import BenchRequest, BenchResult, OfferedPlatform
from latfarm_agent.service.offer import BoardOffer
from latfarm_agent.session.messages import Verdict

HOT_CODES = ("THROTTLED", "NOT_READY")
# Infrastructure errors that come from what was asked rather than from a sick board.
HARMLESS_CODES = (
    "OUT_OF_MEMORY",
    "PROFILE_UNAVAILABLE",
    "RUNTIME_MISSING",
    "SETTINGS_INVALID",
    "CANCELLED",
)


def failure(request: BenchRequest, offer: BoardOffer, code: str, message: str) -> BenchResult:
    """The result of a measurement that the agent itself ended, or never began."""
    result = BenchResult(
        outcome=INFRASTRUCTURE_ERROR,
        error_code=code,
        error_message=message,
        settings=request.settings,
    )
    fill_in(result, request, offer, 0.0)
    return result


def fill_in(result: BenchResult, request: BenchRequest, offer: BoardOffer, busy_s: float) -> None:
    """Say what is the agent's to say, and what a bench left open."""
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
    """What a result says about the board; `platform`: that it was measured on."""
    if cancelled or result.error_code in HARMLESS_CODES:
        return Verdict.VOID
    if result.outcome != INFRASTRUCTURE_ERROR:
        return Verdict.GOOD
    if result.error_code in HOT_CODES:
        # Simulated heat needs no real rest.
        return Verdict.HOT if platform is not None and platform.real_time else Verdict.VOID
    return Verdict.FAULTY
