"""Error codes of results, by whose fault they tell of: agents answer with them, both sides count.

Whoever counts begins each at 0: a rate shows nothing of a series that is first seen at its height.
"""

from __future__ import annotations

from typing import Mapping

OK = "ok"
MODEL_ERROR = "model_error"
INFRASTRUCTURE_ERROR = "infrastructure_error"
OUTCOMES = (OK, MODEL_ERROR, INFRASTRUCTURE_ERROR)

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
"""The model's own fault: another try gives the same."""

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
"""Not the model's fault: the board's, the agent's, or that of what was asked."""

CODES: Mapping[str, frozenset[str]] = {
    OK: frozenset({""}),
    MODEL_ERROR: MODEL_ERRORS,
    INFRASTRUCTURE_ERROR: INFRASTRUCTURE_ERRORS,
}
"""By outcome."""


def outcome_of(code: str) -> str:
    """The outcome that an error code tells of; a code that is not known is nobody's model's."""
    return MODEL_ERROR if code in MODEL_ERRORS else INFRASTRUCTURE_ERROR
