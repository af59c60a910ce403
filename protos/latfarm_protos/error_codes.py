"""Error codes of results, by the outcome that they belong to.

Agents answer with these codes, and both sides count results by code. A counter starts every code
at 0, because a monitoring system cannot compute the rate of a series from its first value alone.
"""

from __future__ import annotations

from typing import Mapping

OK = "ok"
MODEL_ERROR = "model_error"
INFRASTRUCTURE_ERROR = "infrastructure_error"
OUTCOMES = (OK, MODEL_ERROR, INFRASTRUCTURE_ERROR)
"""All outcomes of a request."""

MODEL_ERRORS = frozenset(
    {
        "MODEL_INVALID",
        "MODEL_UNSUPPORTED",
        "MODEL_FAILED",
        "MODEL_CRASHED",
        "MODEL_TIMEOUT",
        "OUT_OF_MEMORY",
        "LIMIT_EXCEEDED",
        "PROFILE_UNAVAILABLE",
    }
)
"""Codes of faults of the model: another try gives the same."""

INFRASTRUCTURE_ERRORS = frozenset(
    {
        "AGENT_FAULT",
        "AGENT_STOPPED",
        "BLOB_MISSING",
        "CANCELLED",
        "DEVICE_FAILED",
        "DEVICE_LOST",
        "DISK_FULL",
        "ENERGY_UNAVAILABLE",
        "INTERNAL",
        "LEASE_LOST",
        "NOT_READY",
        "QUARANTINED",
        "RUNTIME_MISSING",
        "SETTINGS_INVALID",
        "THROTTLED",
        "WORKER_FAILED",
    }
)
"""Codes of faults of the board, of the agent or of the request."""

CODES: Mapping[str, frozenset[str]] = {
    OK: frozenset({""}),
    MODEL_ERROR: MODEL_ERRORS,
    INFRASTRUCTURE_ERROR: INFRASTRUCTURE_ERRORS,
}
"""The codes that belong to each outcome."""


def outcome_of(code: str) -> str:
    """The outcome of an error code; an unknown code counts as an infrastructure error."""
    return MODEL_ERROR if code in MODEL_ERRORS else INFRASTRUCTURE_ERROR
