from __future__ import annotations

from typing import Any

import pytest
from latfarm_controller.agents import bounds, results
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer, Settings
from latfarm_protos.v1 import agent_pb2 as pb

KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
REQUEST = MeasurementRequest(GRAPH, "p", "kernel")
BOARD = BoardInfo(
    "b",
    "toy",
    runtimes=(
        RuntimeInfo("r", True, platforms=(PlatformInfo("p", "onnx", "fp32", fingerprint="f"),)),
    ),
)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def measured(result: pb.Result, request: MeasurementRequest = REQUEST) -> Measurement:
    return results.measurement_from_pb(over_the_wire(result), BoardRequest.of(request), BOARD, 5e9)


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
        "device_memory_bytes": 2**33,
    }
    return pb.Result(**(fields | changes))


def test_a_good_result() -> None:
    measurement = measured(result(), REQUEST)
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
    assert (measurement.memory_bytes, measurement.device_memory_bytes) == (2**40, 2**33)
    assert measurement.graph_hash == hash_of(GRAPH)
    assert (measurement.platform, measurement.purpose) == ("p", "kernel")


def test_a_failed_result_keeps_its_code() -> None:
    failed = result(
        outcome="model_error", error_code="MODEL_TIMEOUT", error_message="60 s", sessions=[]
    )
    measurement = measured(failed, REQUEST)
    assert measurement.outcome is Outcome.MODEL_ERROR
    assert (measurement.error_code, measurement.error_message) == ("MODEL_TIMEOUT", "60 s")
    assert measurement.latency_ms is None
    assert not measurement.ok


def test_without_settings_the_requested_ones_stand() -> None:
    bare = result()
    bare.ClearField("settings")
    assert measured(bare, REQUEST).settings == REQUEST.settings


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
        ({"sessions": [pb.Session(runs_ms=[1e300])]}, "RESULT_IMPOSSIBLE"),
        ({"sessions": [pb.Session(runs_ms=[5e-324])]}, "RESULT_IMPOSSIBLE"),
        ({"sessions": [pb.Session(runs_ms=[1.0], slowdown=[1.0, 1.0])]}, "RESULT_IMPOSSIBLE"),
        ({"layers": [pb.Layer(name="l", latency_ms=float("nan"))]}, "RESULT_IMPOSSIBLE"),
        ({"layers": [pb.Layer(name="l", latency_ms=-1.0)]}, "RESULT_IMPOSSIBLE"),
        ({"protocol_version": 2**32 - 1}, "RESULT_IMPOSSIBLE"),
        ({"memory_bytes": 2**64 - 1}, "RESULT_IMPOSSIBLE"),
        ({"device_memory_bytes": 2**64 - 1}, "RESULT_IMPOSSIBLE"),
        ({"measured_at_s": float("inf")}, "RESULT_IMPOSSIBLE"),
        ({"measured_at_s": 1e18}, "RESULT_IMPOSSIBLE"),
        ({"board_ms": float("nan")}, "RESULT_IMPOSSIBLE"),
        ({"error_code": "\x1b[2J"}, "RESULT_IMPOSSIBLE"),
        ({"settings": pb.Settings(max_ms=float("nan"))}, "RESULT_IMPOSSIBLE"),
        ({"conditions": {"a\nb": "c"}}, "RESULT_IMPOSSIBLE"),
        ({"board_id": "other"}, "RESULT_FOREIGN"),
        ({"platform": "other"}, "RESULT_FOREIGN"),
        ({"fingerprint": "other"}, "RESULT_FOREIGN"),
    ],
)
def test_nonsense_is_the_boards_failure(changes: dict[str, Any], code: str) -> None:
    measurement = measured(result(**changes), REQUEST)
    assert measurement.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert measurement.error_code == code
    assert measurement.latency_ms is None
    assert measurement.error_message
    assert (measurement.board_id, measurement.layers, measurement.session_ms) == ("b", (), ())


def test_the_error_of_a_board_is_printable_and_bounded() -> None:
    """It may have 30 MB, line breaks and escape sequences; the gist is at its beginning."""
    text = "compiler\n\tfailed\x1b]0;owned\x07 " + "x" * 2**20
    failed = measured(result(outcome="model_error", error_code="MODEL_INVALID", error_message=text))
    assert failed.error_message.startswith("compiler / failed\\x1b]0;owned\\x07 xxx")
    assert failed.error_message.endswith("x" + bounds.CUT)
    assert len(failed.error_message.encode()) <= bounds.TEXT_BYTES


def test_the_time_of_a_measurement_is_that_of_the_controller() -> None:
    future = measured(result(measured_at_s=9e9))
    assert (future.ok, future.measured_at_s, future.received_at_s) == (True, 9e9, 5e9)
    assert future.told_at_s == 5e9


def test_a_board_cannot_report_what_the_controller_computes() -> None:
    conditions = {"slowdown": "banana", "uncorrected_ms": "0", "mean_ms": "-1", "governor": "x"}
    told = measured(result(conditions=conditions))
    assert told.conditions == {"governor": "x", "mean_ms": "1.005"}


def test_an_older_agent_may_leave_its_names_empty() -> None:
    told = measured(result(board_id="", platform="", fingerprint=""))
    assert (told.ok, told.board_id, told.platform, told.fingerprint) == (True, "b", "p", "f")


def test_a_platform_that_is_offered_no_more_gives_failures_only() -> None:
    gone = BoardInfo("b", "toy")
    request = BoardRequest.of(REQUEST)
    assert results.measurement_from_pb(result(), request, gone).error_code == "RESULT_FOREIGN"
    failed = result(outcome="infrastructure_error", error_code="RUNTIME_MISSING", sessions=[])
    assert results.measurement_from_pb(failed, request, gone).error_code == "RUNTIME_MISSING"


def test_a_profile_may_come_without_runs() -> None:
    layers = [pb.Layer(name="l", op="Relu", latency_ms=1.0)]
    profiled = result(sessions=[], layers=layers)
    request = MeasurementRequest(GRAPH, "p", "kernel", profile=True)
    profiled.request_id = request.request_id
    measurement = measured(profiled, request)
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
    told = measured(
        over_the_wire(energy_result(energy=ENERGY, conditions={"energy": "ok"})), ENERGY_REQUEST
    )
    assert told.ok
    assert told.latency_ms == pytest.approx(1.005)
    assert (told.energy_mj, told.energy_gross_mj, told.energy_spread_mj) == (2.5, 4.0, 0.1)
    assert (told.idle_mw, told.energy_source) == (900.0, "rapl:package-0")
    assert told.energy_story == ""


def test_a_board_that_has_no_rail_says_why() -> None:
    why = "ENERGY_UNAVAILABLE: this board has no power rail"
    told = measured(energy_result(conditions={"energy": why}), ENERGY_REQUEST)
    assert told.ok
    assert told.energy_mj is None
    assert told.energy_story == why


def test_an_agent_that_knows_no_energies_is_an_old_one() -> None:
    """It leaves the field unread, and answers as it always did."""
    told = measured(energy_result(), ENERGY_REQUEST)
    assert told.ok
    assert "newer" in told.energy_story
    plain = measured(result(), REQUEST)
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
    told = measured(energy_result(energy=energy), ENERGY_REQUEST)
    assert told.ok
    assert told.energy_mj is None
    assert "impossible" in told.energy_story


def test_a_failure_has_no_energy() -> None:
    failed = energy_result(outcome="model_error", error_code="MODEL_CRASHED", energy=ENERGY)
    told = measured(failed, ENERGY_REQUEST)
    assert not told.ok
    assert told.energy_mj is None
