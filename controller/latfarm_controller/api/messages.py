"""Messages of the controller's service, made from the controller's own types and read back.

Each `..._to_pb` function has a `..._from_pb` function that returns an equal object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from latfarm_predictors.measurement import Measurement
from latfarm_protos.v1 import controller_pb2 as pb

from latfarm_controller.app.summaries import (
    BoardSummary,
    CampaignFigures,
    CampaignSummary,
    PlatformSummary,
)
from latfarm_controller.store.base import BoardEvent, CampaignRecord

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message in bytes. A question carries one network, a campaign carries many."""
MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
"""Options of gRPC that the server and its clients use alike."""


def board_to_pb(board: BoardSummary) -> pb.BoardStatus:
    """The message of a board."""
    return pb.BoardStatus(
        board_id=board.board_id,
        name=board.name,
        address=board.address,
        state=board.state,
        detail=board.detail,
        platforms=board.platforms,
        hardware=dict(board.hardware),
        standing=board.standing,
        standing_reason=board.standing_reason,
        standing_since_s=board.standing_since_s,
        under_way=board.under_way,
        protection=dict(board.protection),
        tags=board.tags,
        location=board.location,
        owner=board.owner,
        note=board.note,
        access=board.access,
        maintenance=board.maintenance,
    )


def board_from_pb(message: pb.BoardStatus) -> BoardSummary:
    """The board of a message."""
    return BoardSummary(
        board_id=message.board_id,
        name=message.name,
        address=message.address,
        state=message.state,
        detail=message.detail,
        platforms=tuple(message.platforms),
        hardware=dict(message.hardware),
        standing=message.standing,
        standing_reason=message.standing_reason,
        standing_since_s=message.standing_since_s,
        under_way=message.under_way,
        protection=dict(message.protection),
        tags=tuple(message.tags),
        location=message.location,
        owner=message.owner,
        note=message.note,
        access=message.access,
        maintenance=tuple(message.maintenance),
    )


def platform_to_pb(platform: PlatformSummary) -> pb.PlatformStatus:
    """The message of a platform."""
    return pb.PlatformStatus(
        name=platform.name,
        runtime=platform.runtime,
        model_format=platform.model_format,
        boards=platform.boards,
        available=platform.available,
        missing=platform.missing,
        bundle=platform.bundle,
        fingerprint=platform.fingerprint,
    )


def platform_from_pb(message: pb.PlatformStatus) -> PlatformSummary:
    """The platform of a message."""
    return PlatformSummary(
        name=message.name,
        runtime=message.runtime,
        model_format=message.model_format,
        boards=tuple(message.boards),
        available=message.available,
        missing=message.missing,
        bundle=message.bundle,
        fingerprint=message.fingerprint,
    )


def event_to_pb(event: BoardEvent) -> pb.BoardEvent:
    """The message of something that was decided about a board."""
    return pb.BoardEvent(
        name=event.board,
        board_id=event.board_id,
        event=event.event,
        reason=event.reason,
        actor=event.actor,
        at_s=event.at_s,
        details_json=json.dumps(dict(event.details)),
    )


def event_from_pb(message: pb.BoardEvent) -> BoardEvent:
    """The board's event of a message."""
    return BoardEvent(
        board=message.name,
        board_id=message.board_id,
        event=message.event,
        reason=message.reason,
        actor=message.actor,
        at_s=message.at_s,
        details=json.loads(message.details_json or "{}"),
    )


def campaign_to_pb(record: CampaignRecord, figures: CampaignFigures | None = None) -> pb.Campaign:
    """The message of a campaign.

    Args:
        record: the campaign.
        figures: how it goes now; None where nobody watches it.
    """
    figures = figures or CampaignFigures()
    return pb.Campaign(
        campaign_id=record.campaign_id,
        name=record.name,
        kind=record.kind,
        platform=record.platform,
        config_json=json.dumps(record.config),
        state=record.state,
        stage=record.stage,
        stage_done=record.stage_done,
        stage_total=record.stage_total,
        measurements=record.measurements,
        failures=record.failures,
        board_ms=record.board_ms,
        wall_ms=record.wall_ms,
        remaining_ms=figures.remaining_ms,
        started_at_s=record.started_at_s,
        finished_at_s=record.finished_at_s,
        outcome_json=json.dumps(record.outcome, default=str),
        error=record.error,
        waiting_for=record.waiting_for,
        unattended=record.unattended,
        boards=dict(figures.boards),
        measurements_per_s=figures.measurements_per_s,
        queue=figures.queue,
    )


def campaign_from_pb(message: pb.Campaign) -> CampaignSummary:
    """The campaign of a message."""
    return CampaignSummary(
        campaign_id=message.campaign_id,
        name=message.name,
        kind=message.kind,
        platform=message.platform,
        config=json.loads(message.config_json or "{}"),
        state=message.state,
        stage=message.stage,
        stage_done=message.stage_done,
        stage_total=message.stage_total,
        measurements=message.measurements,
        failures=message.failures,
        board_ms=message.board_ms,
        wall_ms=message.wall_ms,
        remaining_ms=message.remaining_ms,
        started_at_s=message.started_at_s,
        finished_at_s=message.finished_at_s,
        outcome=json.loads(message.outcome_json or "{}"),
        error=message.error,
        waiting_for=message.waiting_for,
        unattended=message.unattended,
        boards=dict(message.boards),
        measurements_per_s=message.measurements_per_s,
        queue=message.queue,
    )


def measurement_to_pb(
    measurement: Measurement, details: Mapping[str, Any] | None = None
) -> pb.Measurement:
    """The message of a measurement, with what the store knows of it besides, if that is given."""
    told = "" if details is None else json.dumps(dict(details))
    return pb.Measurement(json=json.dumps(measurement.to_json()), details_json=told)


def details_from_pb(message: pb.Measurement) -> dict[str, Any]:
    """What the store knows besides of the measurement in a message; empty where it tells none."""
    found: dict[str, Any] = json.loads(message.details_json or "{}")
    return found


def measurement_from_pb(message: pb.Measurement) -> Measurement:
    """The measurement of a message."""
    return Measurement.from_json(json.loads(message.json))
