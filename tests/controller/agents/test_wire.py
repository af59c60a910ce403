from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller.agents import wire
from latfarm_controller.agents.board import (
    BoardInfo,
    Lease,
    MeasuringStage,
    PlatformInfo,
    RuntimeInfo,
)
from latfarm_controller.agents.statistics import SessionSamples
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import UsageError
from latfarm_controller.farm.boards.links import Question
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Outcome, ProfiledLayer, Settings
from latfarm_protos.v1 import agent_pb2 as pb

KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
REQUEST = MeasurementRequest(GRAPH, "p", "kernel")

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
count = st.integers(0, 2**32 - 1)
real = st.floats(allow_nan=False)
texts = st.dictionaries(text, text, max_size=3)
all_settings = st.builds(
    Settings, text, count, count, real, count, count, real, count, real, real, real, real
)
platforms = st.builds(PlatformInfo, text, text, text, texts, text, st.booleans())
runtimes = st.builds(
    RuntimeInfo, text, st.booleans(), text, text, st.lists(platforms, max_size=2).map(tuple)
)
boards = st.builds(
    BoardInfo,
    text,
    text,
    text,
    texts,
    texts,
    st.lists(runtimes, max_size=2).map(tuple),
    text,
    count,
    text,
)
sessions = st.builds(
    SessionSamples,
    real,
    real,
    real,
    st.lists(real, max_size=5).map(tuple),
    count,
    st.lists(real, max_size=3).map(tuple),
)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@given(all_settings)
def test_settings(settings: Settings) -> None:
    assert wire.settings_from_pb(over_the_wire(wire.settings_as_pb(settings))) == settings


@given(boards)
def test_boards(board: BoardInfo) -> None:
    assert wire.board_from_pb(over_the_wire(wire.board_as_pb(board))) == board


@given(sessions)
def test_sessions(session: SessionSamples) -> None:
    assert wire.session_from_pb(over_the_wire(wire.session_as_pb(session))) == session


@given(st.builds(MeasuringStage, text, count, real))
def test_stages(stage: MeasuringStage) -> None:
    assert wire.stage_from_pb(over_the_wire(wire.stage_as_pb(stage))) == stage


@given(st.builds(ProfiledLayer, text, text, real, text))
def test_layers(layer: ProfiledLayer) -> None:
    assert wire.layer_from_pb(over_the_wire(wire.layer_as_pb(layer))) == layer


def test_leases() -> None:
    assert wire.lease_from_pb(pb.Lease(token=2**63, ttl_ms=5)) == Lease(2**63, 5)


@pytest.mark.parametrize("settings", [Settings(sessions=-1), Settings(max_runs=2**32)])
def test_settings_beyond_the_wire(settings: Settings) -> None:
    with pytest.raises(UsageError, match="no board can take"):
        wire.settings_as_pb(settings)


def test_every_field_of_our_settings_is_on_the_wire() -> None:
    fields = {field.name for field in pb.Settings.DESCRIPTOR.fields}
    assert fields == set(Settings.__dataclass_fields__)


def test_a_request() -> None:
    message = wire.request_as_pb(Question.of(REQUEST), 7, "ab")
    assert message.request_id == REQUEST.request_id
    assert (message.token, message.platform, message.blob_sha256) == (7, "p", "ab")
    assert wire.settings_from_pb(message.settings) == REQUEST.settings


def result(**changes: Any) -> pb.Result:
    fields: dict[str, Any] = {
        "request_id": REQUEST.request_id,
        "outcome": "ok",
        "sessions": [
            pb.Session(load_ms=5, first_run_ms=9, runs_ms=[1.0, 1.0], rejected_runs=1),
            pb.Session(load_ms=7, first_run_ms=11, runs_ms=[1.01, 1.01]),
        ],
        "settings": pb.Settings(tier="survey", sessions=2),
        "conditions": {"governor": "unknown"},
        "board_id": "b",
        "fingerprint": "f",
        "protocol_version": 1,
        "measured_at_s": 1e9,
        "board_ms": 50,
        "memory_bytes": 2**40,
    }
    return pb.Result(**(fields | changes))


def test_a_good_result() -> None:
    measurement = wire.measurement_from_pb(result(), Question.of(REQUEST))
    assert measurement.ok
    assert measurement.latency_ms == pytest.approx(1.005)
    assert measurement.session_ms == (1.0, 1.01)
    assert (measurement.runs, measurement.rejected_runs) == (4, 1)
    assert (measurement.load_ms, measurement.first_run_ms) == (6, 10)
    assert measurement.compile_ms is None
    assert measurement.cold_ms is None
    assert measurement.p99_ms is None
    assert not measurement.unstable
    assert measurement.settings.sessions == 2
    assert measurement.conditions == {"governor": "unknown", "mean_ms": "1.005"}
    assert measurement.memory_bytes == 2**40
    assert measurement.graph_hash == hash_of(GRAPH)
    assert (measurement.platform, measurement.purpose) == ("p", "kernel")


def test_a_failed_result_keeps_its_code() -> None:
    failed = result(
        outcome="model_error", error_code="MODEL_TIMEOUT", error_message="60 s", sessions=[]
    )
    measurement = wire.measurement_from_pb(failed, Question.of(REQUEST))
    assert measurement.outcome is Outcome.MODEL_ERROR
    assert (measurement.error_code, measurement.error_message) == ("MODEL_TIMEOUT", "60 s")
    assert measurement.latency_ms is None
    assert not measurement.ok


def test_without_settings_the_requested_ones_stand() -> None:
    bare = result()
    bare.ClearField("settings")
    assert wire.measurement_from_pb(bare, Question.of(REQUEST)).settings == REQUEST.settings


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"outcome": "splendid"}, "RESULT_UNKNOWN"),
        ({"request_id": "other"}, "RESULT_MISMATCH"),
        ({"sessions": []}, "RESULT_EMPTY"),
        ({"sessions": [pb.Session(load_ms=1)]}, "RESULT_EMPTY"),
        ({"sessions": [pb.Session(runs_ms=[1.0, float("inf")])]}, "RESULT_IMPOSSIBLE"),
        ({"sessions": [pb.Session(runs_ms=[-1.0])]}, "RESULT_IMPOSSIBLE"),
        ({"sessions": [pb.Session(runs_ms=[1.0], load_ms=float("nan"))]}, "RESULT_IMPOSSIBLE"),
    ],
)
def test_nonsense_is_the_boards_failure(changes: dict[str, Any], code: str) -> None:
    measurement = wire.measurement_from_pb(result(**changes), Question.of(REQUEST))
    assert measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert measurement.error_code == code
    assert measurement.latency_ms is None
    assert measurement.error_message


def test_a_profile_may_come_without_runs() -> None:
    layers = [pb.Layer(name="l", op="Relu", latency_ms=1.0)]
    profiled = result(sessions=[], layers=layers)
    request = MeasurementRequest(GRAPH, "p", "kernel", profile=True)
    profiled.request_id = request.request_id
    measurement = wire.measurement_from_pb(profiled, Question.of(request))
    assert measurement.outcome is Outcome.OK
    assert measurement.layers == (ProfiledLayer("l", "Relu", 1.0),)
    assert not measurement.ok


ENERGY_REQUEST = MeasurementRequest(GRAPH, "p", "kernel", Settings(energy_ms=1000.0))
ENERGY = pb.Energy(
    energy_mj=2.5,
    gross_mj=4.0,
    spread_mj=0.1,
    idle_mw=900.0,
    idle_spread_mw=5.0,
    source="rapl:package-0",
    runs=400,
    span_ms=1001.0,
)


def energy_result(**changes: Any) -> pb.Result:
    return result(request_id=ENERGY_REQUEST.request_id, **changes)


def test_an_energy_comes_with_its_latency() -> None:
    told = wire.measurement_from_pb(
        over_the_wire(energy_result(energy=ENERGY, conditions={"energy": "ok"})),
        Question.of(ENERGY_REQUEST),
    )
    assert told.ok
    assert told.latency_ms == pytest.approx(1.005)
    assert (told.energy_mj, told.energy_gross_mj, told.energy_spread_mj) == (2.5, 4.0, 0.1)
    assert (told.idle_mw, told.energy_source) == (900.0, "rapl:package-0")
    assert told.energy_story == ""


def test_a_board_that_has_no_rail_says_why() -> None:
    why = "ENERGY_UNAVAILABLE: this board has no power rail"
    told = wire.measurement_from_pb(
        energy_result(conditions={"energy": why}), Question.of(ENERGY_REQUEST)
    )
    assert told.ok
    assert told.energy_mj is None
    assert told.energy_story == why


def test_an_agent_that_knows_no_energies_is_an_old_one() -> None:
    """It leaves the field unread, and answers as it always did."""
    told = wire.measurement_from_pb(energy_result(), Question.of(ENERGY_REQUEST))
    assert told.ok
    assert "newer" in told.energy_story
    plain = wire.measurement_from_pb(result(), Question.of(REQUEST))
    assert plain.energy_story == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"energy_mj": 0.0},
        {"energy_mj": -1.0},
        {"energy_mj": float("nan")},
        {"gross_mj": float("inf")},
        {"spread_mj": -0.1},
        {"idle_mw": float("nan")},
        {"source": ""},
    ],
)
def test_an_impossible_energy_is_none_and_spoils_no_latency(changes: dict[str, Any]) -> None:
    energy = pb.Energy()
    energy.CopyFrom(ENERGY)
    for name, value in changes.items():
        setattr(energy, name, value)
    told = wire.measurement_from_pb(energy_result(energy=energy), Question.of(ENERGY_REQUEST))
    assert told.ok
    assert told.energy_mj is None
    assert "impossible" in told.energy_story


def test_a_failure_has_no_energy() -> None:
    failed = energy_result(outcome="model_error", error_code="MODEL_CRASHED", energy=ENERGY)
    told = wire.measurement_from_pb(failed, Question.of(ENERGY_REQUEST))
    assert not told.ok
    assert told.energy_mj is None
