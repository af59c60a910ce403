"""How urgent the requests of a campaign are."""

from __future__ import annotations

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kinds import TRAINED
from latfarm_controller.campaigns.networks.campaign import PURPOSE as CALIBRATION
from latfarm_controller.farm.scheduling.messages import CALIBRATION_PRIORITY


def priority_of(request: MeasurementRequest, kind: str, priority: int) -> int:
    """The priority of a request of a campaign.

    Args:
        request: what is to be measured.
        kind: of the campaign. Those that train a predictor wait for their calibration networks.
        priority: of the campaign.
    """
    calibrates = kind in TRAINED and request.purpose == CALIBRATION
    return max(priority, CALIBRATION_PRIORITY) if calibrates else priority
