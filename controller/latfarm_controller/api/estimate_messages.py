"""Messages of the call `EstimateMany`, made and read back. Networks are not read here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latfarm_predictors.errors import PredictorsError
from latfarm_protos.v1 import controller_pb2 as pb

from latfarm_controller.api import query_messages
from latfarm_controller.app.estimating import AskedEstimate, EstimateEnd
from latfarm_controller.app.question import Found, GraphNeeded, Question
from latfarm_controller.bulk.predictions import DEFAULT_COVERAGE, PredictedLatency
from latfarm_controller.errors import ControllerError


def asked_to_pb(asked: AskedEstimate, question: Question, *, with_graph: bool) -> Any:
    """The message of a candidate.

    Args:
        asked: the candidate.
        question: its question.
        with_graph: whether to send the network itself, beside its hashes.
    """
    return pb.EstimateRequest(
        place=asked.place,
        question=query_messages.question_to_pb(question, with_graph=with_graph),
        no_predict=not asked.predict,
        coverage=asked.coverage,
    )


def asked_from_pb(message: Any) -> AskedEstimate:
    """The candidate of a message, with its network as it was sent.

    An error stands in the place of its question if that is malformed.
    """
    question: Question | Exception
    try:
        question = query_messages.question_from_pb(message.question, unread=True)
    except (ControllerError, PredictorsError) as error:
        question = error
    coverage = message.coverage or DEFAULT_COVERAGE
    sent = message.question.graph_json
    return AskedEstimate(message.place, question, not message.no_predict, coverage, sent)


def ends_to_pb(ends: Sequence[tuple[int, EstimateEnd]]) -> Any:
    """The message of the ends of some candidates."""
    return pb.EstimateEvent(ends=[_end_to_pb(place, end) for place, end in ends])


def _end_to_pb(place: int, end: EstimateEnd) -> Any:
    if isinstance(end, Found):
        return pb.EstimateEnd(place=place, measured=query_messages.found_to_pb(end))
    if isinstance(end, PredictedLatency):
        return pb.EstimateEnd(place=place, predicted=_predicted_to_pb(end))
    if isinstance(end, GraphNeeded):
        return pb.EstimateEnd(place=place, graph_needed=True)
    return pb.EstimateEnd(place=place, error=query_messages.error_to_pb(end))


def _predicted_to_pb(told: PredictedLatency) -> Any:
    low_ms, high_ms = told.interval_ms
    return pb.Prediction(
        latency_ms=told.latency_ms,
        low_ms=low_ms,
        high_ms=high_ms,
        coverage=told.coverage,
        calibrated=told.calibrated,
        unsupported=told.unsupported,
        unsupported_ms=told.unsupported_ms,
        bundle=told.bundle,
        method=told.method,
    )


def end_from_pb(message: Any) -> EstimateEnd:
    """How a candidate ended, from its message."""
    kind = message.WhichOneof("end")
    if kind == "measured":
        return query_messages.found_from_pb(message.measured)
    if kind == "graph_needed":
        return GraphNeeded()
    if kind != "predicted":
        return query_messages.error_from_pb(message.error)
    told = message.predicted
    return PredictedLatency(
        told.latency_ms,
        (told.low_ms, told.high_ms),
        told.coverage,
        told.calibrated,
        tuple(told.unsupported),
        told.unsupported_ms,
        told.bundle,
        told.method,
    )
