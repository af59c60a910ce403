"""Who may call what on the controller's API: a line for each method, and none by default.

The role stands in the caller's certificate (`urn:latfarm:role:viewer`). A viewer reads; an operator
does all that a viewer does, and acts. Whoever comes through the Unix socket of the home is its
owner, and an operator.
"""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_protos.trust.identity import OPERATOR, VIEWER, WRONG_ROLE, Refusal

SERVICE = "latfarm_protos.v1.ControllerService"
METHODS: Mapping[str, str] = {
    "ListBoards": VIEWER,
    "ListPlatforms": VIEWER,
    "ListBoardEvents": VIEWER,
    "WatchBoard": VIEWER,
    "Predict": VIEWER,
    "Report": VIEWER,
    "ListCampaigns": VIEWER,
    "GetCampaign": VIEWER,
    "WatchCampaign": VIEWER,
    "ListResults": VIEWER,
    "DrainBoard": OPERATOR,
    "QuarantineBoard": OPERATOR,
    "ResumeBoard": OPERATOR,
    "Query": OPERATOR,  # it may have to measure
    "StartCampaign": OPERATOR,
    "ResumeCampaign": OPERATOR,
    "CancelCampaign": OPERATOR,
}
"""The least role that each method takes."""
ALLOWED = (VIEWER, OPERATOR)
"""Roles that the API lets in at all."""
_MAY: Mapping[str, frozenset[str]] = {
    VIEWER: frozenset({VIEWER}),
    OPERATOR: frozenset({VIEWER, OPERATOR}),
}


def refusal(role: str, method: str) -> Refusal | None:
    """Why a role may not call a method; None: it may.

    Args:
        role: of the caller's certificate.
        method: full name as gRPC gives it, `/package.Service/Method`.
    """
    service, _, name = method.lstrip("/").partition("/")
    needed = METHODS.get(name) if service == SERVICE else None
    if needed is None:
        return Refusal(WRONG_ROLE, f"nobody may call {method}")
    if needed in _MAY.get(role, frozenset()):
        return None
    return Refusal(WRONG_ROLE, f"{name} needs the role {needed}, your certificate's is {role}")
