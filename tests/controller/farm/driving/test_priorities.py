"""Which requests of a campaign are more urgent than those of other campaigns."""

from __future__ import annotations

from dataclasses import replace

from latfarm_controller.farm.driving.priorities import priority_of
from latfarm_controller.farm.scheduling.messages import (
    CALIBRATION_PRIORITY,
    CAMPAIGN_PRIORITY,
    QUERY_PRIORITY,
)

from tests.controller.farm.conftest import Lab


def test_the_calibration_of_a_predictor_comes_before_campaigns_and_after_queries(lab: Lab) -> None:
    kernel = lab.request(0)
    network = replace(kernel, purpose="network")
    for kind, request, priority, expected in (
        ("characterize", network, CAMPAIGN_PRIORITY, CALIBRATION_PRIORITY),
        ("characterize", kernel, CAMPAIGN_PRIORITY, CAMPAIGN_PRIORITY),
        ("networks", network, CAMPAIGN_PRIORITY, CAMPAIGN_PRIORITY),
        ("query", network, QUERY_PRIORITY, QUERY_PRIORITY),
    ):
        assert priority_of(request, kind, priority) == expected
    assert CAMPAIGN_PRIORITY < CALIBRATION_PRIORITY < QUERY_PRIORITY
