"""Whatever a board answers becomes a bounded value or a typed error, and the store takes it.

The messages are made from their descriptors, so that a new field is covered without a change here.
`make fuzz-trust` does the same with 100,000 damaged answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_controller.agents import bounds, call_errors, results, wire
from latfarm_controller.agents.spooled import answer_from_spool, spooled_from_pb
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import AgentError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.spool_keeper import is_kept
from latfarm_controller.store.base import BoardEvent
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Outcome, Settings
from latfarm_protos.v1 import agent_pb2 as pb

from benchmarks.fuzzing import messages
from benchmarks.fuzzing.mutants import REALS, TEXTS

SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"]
GRAPH = messages.network()
SOUND = messages.sound_board()
BOARD = wire.board_from_pb(SOUND)
NUMBERS = itertools.count()

texts = st.one_of(
    st.sampled_from(TEXTS),
    st.text(max_size=8),
    st.builds(lambda text, times: text * times, st.text(max_size=3), st.integers(1, 3000)),
)
SCALARS: Mapping[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.one_of(st.sampled_from(REALS), st.floats()),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}
CONVERSIONS: Mapping[str, Callable[[Any], object]] = {
    "DescribeResponse": wire.board_from_pb,
    "Lease": wire.lease_from_pb,
    "RestartResponse": wire.restarted_from_pb,
    "Stage": wire.stage_from_pb,
    "Platform": wire.platform_from_pb,
    "Runtime": wire.runtime_from_pb,
    "Settings": results.settings_from_pb,
    "Session": results.session_from_pb,
    "Layer": results.layer_from_pb,
    "Refusal": lambda message: str(call_errors.refusal_as_error(message, "192.0.2.7:7440")),
}
"""The conversions of messages and of their parts, but for `Result`, which needs its request."""
UNUSED = {"ReleaseLeaseResponse", "BlobState", "AcknowledgeResponse"}
"""Answers of which the controller keeps nothing: they only steer the call that they end."""


def of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Any single value of a field."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return st.deferred(lambda: message(getattr(pb, field.message_type.name)))
    return SCALARS[field.type]


def message(kind: Any) -> st.SearchStrategy[Any]:
    """Any message of a kind."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in kind.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fields[field.name] = st.dictionaries(texts, texts, max_size=3)
        elif field.is_repeated:
            fields[field.name] = st.lists(of(field), max_size=3)
        else:
            fields[field.name] = of(field)
    chosen = st.fixed_dictionaries({}, optional=fields)
    return chosen.map(lambda values: kind(**_one_of_a_kind(kind, values)))


def _one_of_a_kind(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values with one field of each oneof."""
    for group in kind.DESCRIPTOR.oneofs:
        for name in [field.name for field in group.fields if field.name in values][1:]:
            del values[name]
    return values


@st.composite
def damaged(draw: st.DrawFn, sound: Any) -> Any:
    """A sound message with some fields of any other one, so that it fails late and not at once."""
    kind = type(sound)
    names = [field.name for field in kind.DESCRIPTOR.fields]
    taken = draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
    other, made = draw(message(kind)), kind()
    made.CopyFrom(sound)
    for name in names:
        (made if name in taken else other).ClearField(name)
    made.MergeFrom(other)
    return kind.FromString(made.SerializeToString())


def said(convert: Callable[[Any], object], sent: Any) -> object:
    """What a message says, or the text of the typed error."""
    try:
        return convert(sent)
    except AgentError as error:
        return str(error)


def question(energy_ms: float, *, profile: bool) -> BoardRequest:
    platform = BOARD.platforms[0].name
    settings = Settings(energy_ms=energy_ms)
    repeat = next(NUMBERS)
    asked = MeasurementRequest(GRAPH, platform, "kernel", settings, profile=profile, repeat=repeat)
    return BoardRequest.of(asked)


def test_every_answer_of_the_service_has_a_conversion() -> None:
    answers = {method.output_type.name for method in SERVICE.methods}
    assert answers == {
        *("DescribeResponse", "Lease", "MeasureEvent", "ListResultsResponse", "FromBoard"),
        "RestartResponse",
        *UNUSED,
    }
    assert {field.name for field in pb.MeasureEvent.DESCRIPTOR.fields} == {"stage", "result"}
    parts = {field.message_type.name for field in pb.FromBoard.DESCRIPTOR.fields}
    assert parts == {"Result", "Refusal", "Lease", "OrderStage"}
    assert {field.name for field in pb.OrderStage.DESCRIPTOR.fields} == {"request_id", "stage"}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_any_message_becomes_a_bounded_value_or_a_typed_error(name: str) -> None:
    @given(message(getattr(pb, name)))
    @settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    def check(sent: Any) -> None:
        value = said(CONVERSIONS[name], sent)
        if name != "Lease":  # its numbers only go back to its board
            assert not [*messages.flaws(value, name)]

    check()


@given(damaged(SOUND))
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_description_becomes_a_bounded_board_or_a_typed_error(sent: Any) -> None:
    assert not [*messages.flaws(said(wire.board_from_pb, sent), "board")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with DuckDBStore(tmp_path_factory.mktemp("answers") / "store") as opened:
        yield opened


def test_any_result_becomes_a_measurement_that_the_store_takes(store: DuckDBStore) -> None:
    @given(st.data(), st.sampled_from([0.0, 1000.0]), st.booleans())
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    def check(data: st.DataObject, energy_ms: float, profile: bool) -> None:
        request = question(energy_ms, profile=profile)
        sent = data.draw(damaged(messages.sound_result(request, SOUND)))
        found = results.measurement_from_pb(sent, request, BOARD, 1e9)
        assert not [*messages.flaws(found, "measurement")]
        assert (found.board_id, found.platform) == (BOARD.board_id, request.platform)
        campaign = request.request_id
        store.add_measurements(campaign, [(found, GRAPH)])
        assert store.campaign_measurements(campaign) == {request.request_id: found}

    check()


def test_any_spooled_result_is_a_bounded_answer_or_none() -> None:
    @given(st.data(), st.booleans())
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    def check(data: st.DataObject, profile: bool) -> None:
        request = question(0.0, profile=profile)
        sent = data.draw(damaged(messages.sound_result(request, SOUND)))
        spooled = spooled_from_pb(sent)
        is_kept(spooled, BOARD, {request.platform}, Standing.WORKING)
        found = answer_from_spool(spooled.payload, request, BOARD, 1e9)
        assert not [*messages.flaws(found, "measurement")]
        if found is not None:
            assert found.outcome is not Outcome.INFRASTRUCTURE_ERROR
            assert (found.board_id, found.request_id) == (BOARD.board_id, request.request_id)

    check()


def test_2000_damaged_answers_break_nothing() -> None:
    report = messages.run(2000, 1)
    assert report.violations == []
    assert report.outcomes.total() == 2000
    kinds = set(report.outcomes)
    assert {"result: ok", "result: RESULT_FOREIGN", "result: RESULT_IMPOSSIBLE"} <= kinds
    assert {"describe: ok", "describe: BadAnswerError"} <= kinds


def test_a_text_of_a_board_in_an_event_is_taken_by_the_store(store: DuckDBStore) -> None:
    for text in TEXTS:
        found = bounds.text(text)
        store.add_board_event(BoardEvent("toy", "noticed", found, "b", "farm", 1.0))
    assert len(store.board_events()) == len(TEXTS)
