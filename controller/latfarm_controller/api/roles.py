"""Which role may call which method of the controller's API.

The role is in the caller's certificate (`urn:latfarm:role:viewer`). A viewer may read; an operator
may also act. A caller through the Unix socket of the home is its owner, and counts as an operator.
Nobody may call a method that the table does not list.
"""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_protos.trust.identity import OPERATOR, VIEWER, WRONG_ROLE, Refusal

SERVICE = "latfarm_protos.v1.ControllerService"
"""Full name of the service."""
METHODS: Mapping[str, str] = {
    "ListBoards": VIEWER,
    "ListPlatforms": VIEWER,
    "ListBoardEvents": VIEWER,
    "WatchBoard": VIEWER,
    "Predict": VIEWER,
    "EstimateMany": VIEWER,  # it asks no board
    "Report": VIEWER,
    "ListCampaigns": VIEWER,
    "GetCampaign": VIEWER,
    "WatchCampaign": VIEWER,
    "ListResults": VIEWER,
    "GetGraph": VIEWER,
    "DrainBoard": OPERATOR,
    "QuarantineBoard": OPERATOR,
    "ResumeBoard": OPERATOR,
    "PowerBoard": OPERATOR,
    "ReserveBoard": OPERATOR,
    "ReleaseBoard": OPERATOR,
    "Query": OPERATOR,  # it may have to measure
    "QueryMany": OPERATOR,
    "StartCampaign": OPERATOR,
    "ResumeCampaign": OPERATOR,
    "CancelCampaign": OPERATOR,
    "RemoveCampaign": OPERATOR,
    "PauseCampaign": OPERATOR,
}
"""The role that each method needs at least."""
ALLOWED = (VIEWER, OPERATOR)
"""Roles that may call the API at all."""
_MAY: Mapping[str, frozenset[str]] = {
    VIEWER: frozenset({VIEWER}),
    OPERATOR: frozenset({VIEWER, OPERATOR}),
}


def refusal(role: str, method: str) -> Refusal | None:
    """Why a role may not call a method; None if it may.

    Args:
        role: the role in the caller's certificate.
        method: full name of the method as gRPC gives it, `/package.Service/Method`.
    """
    service, _, name = method.lstrip("/").partition("/")
    needed = METHODS.get(name) if service == SERVICE else None
    if needed is None:
        return Refusal(WRONG_ROLE, f"nobody may call {method}")
    if needed in _MAY.get(role, frozenset()):
        return None
    return Refusal(
        WRONG_ROLE, f"{name} needs the role {needed}, but your certificate has the role {role}"
    )
