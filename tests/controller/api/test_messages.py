"""Messages of the controller's API: what goes over the wire comes back equal."""

from __future__ import annotations

import pytest
from latfarm_controller import json_fields
from latfarm_controller.api import messages
from latfarm_controller.app.summaries import (
    BoardSummary,
    CampaignFigures,
    CampaignSummary,
    PlatformSummary,
)
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import BoardEvent

BOARDS = [
    BoardSummary(),
    BoardSummary(
        board_id="b1",
        name="pixel4",
        address="192.0.2.7:50051",
        state="idle",
        detail="warm",
        platforms=("p", "q"),
        hardware={"cpu": "8 cores"},
        standing="drained",
        standing_reason="new battery",
        standing_since_s=1.5,
        under_way=2,
    ),
]
PLATFORMS = [
    PlatformSummary(),
    PlatformSummary(
        name="p",
        runtime="onnxruntime",
        model_format="onnx",
        boards=("a", "b"),
        available=True,
        missing="nothing",
        bundle="0001",
        fingerprint="f",
    ),
]
CAMPAIGN = CampaignSummary(
    campaign_id="kernels-1",
    name="mine",
    kind="kernels",
    platform="p",
    config={"count": 3},
    state="failed",
    stage="kernels",
    stage_done=1,
    stage_total=3,
    measurements=4,
    failures=1,
    board_ms=5.5,
    wall_ms=6.5,
    started_at_s=7.5,
    finished_at_s=8.5,
    outcome={"kernels": 2},
    error="no board",
    waiting_for="a board",
    unattended=True,
    remaining_ms=9.5,
    boards={"ready": 2, "away": 1},
    measurements_per_s=1.5,
    queue=7,
)
FIGURES = CampaignFigures(9.5, {"ready": 2, "away": 1}, 1.5, 7)
EVENT = BoardEvent("pixel4", "drained", "new battery", "b1", "ada", 1.5, {"latency_ms": 2.5})


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_comes_back_equal(board: BoardSummary) -> None:
    assert messages.board_from_pb(messages.board_to_pb(board)) == board


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platform_comes_back_equal(platform: PlatformSummary) -> None:
    assert messages.platform_from_pb(messages.platform_to_pb(platform)) == platform


def test_a_campaign_comes_back_equal_with_its_estimate() -> None:
    assert messages.campaign_from_pb(messages.campaign_to_pb(CAMPAIGN, FIGURES)) == CAMPAIGN


def test_an_event_comes_back_equal() -> None:
    assert messages.event_from_pb(messages.event_to_pb(EVENT)) == EVENT


def test_the_json_of_summaries_has_the_fields_of_their_messages() -> None:
    for summary, message in (
        (BOARDS[1], messages.board_to_pb(BOARDS[1])),
        (PLATFORMS[1], messages.platform_to_pb(PLATFORMS[1])),
    ):
        assert list(summary.to_json()) == [field.name for field in message.DESCRIPTOR.fields]


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(UsageError, match="graph_json is not valid JSON"):
        json_fields.graph_from_json(b"{")
    with pytest.raises(UsageError, match="config_json is not valid JSON"):
        json_fields.config_from_json("{")
    with pytest.raises(UsageError, match="config_json is not valid JSON"):
        json_fields.config_from_json("[" * 100_000)
    with pytest.raises(UsageError, match="must be a JSON object"):
        json_fields.config_from_json("[]")
    assert json_fields.config_from_json("") == {}
