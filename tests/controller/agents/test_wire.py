from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller.agents import bounds, results, wire
from latfarm_controller.agents.board import (
    BoardInfo,
    Lease,
    MeasuringStage,
    PlatformInfo,
    RuntimeInfo,
)
from latfarm_controller.agents.statistics import SessionSamples
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import BadAnswerError, UsageError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.measurement import ProfiledLayer, Settings
from latfarm_protos.v1 import agent_pb2 as pb

KIND = TensorType("float32", (1, 8))
GRAPH = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": KIND, "y": KIND})
REQUEST = MeasurementRequest(GRAPH, "p", "kernel")

text = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf", "Co", "Cn", "Zl", "Zp"]), max_size=12
)
text = text.filter(str.isprintable)
name = text.filter(bool)
count = st.integers(0, 2**31 - 1)
real = st.floats(0, 1e10)
texts = st.dictionaries(name, text, max_size=3)
all_settings = st.builds(
    Settings, text, count, count, real, count, count, real, count, real, real, real, real
)
platform_name = name.filter(lambda n: not n.startswith(".") and not {"/", "\\"}.intersection(n))
platforms = st.builds(PlatformInfo, platform_name, text, text, texts, text, st.booleans())
runtimes = st.builds(
    RuntimeInfo, name, st.booleans(), text, text, st.lists(platforms, max_size=2).map(tuple)
)
boards = st.builds(
    BoardInfo,
    name,
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
    st.lists(st.floats(1e-9, 1e10), max_size=5).map(tuple),
    count,
    st.lists(real, max_size=3).map(tuple),
)


def platform_as_pb(platform: PlatformInfo) -> pb.Platform:
    return pb.Platform(**asdict(platform))


def runtime_as_pb(runtime: RuntimeInfo) -> pb.Runtime:
    return pb.Runtime(
        name=runtime.name,
        available=runtime.available,
        version=runtime.version,
        missing=runtime.missing,
        platforms=[platform_as_pb(platform) for platform in runtime.platforms],
    )


def board_as_pb(board: BoardInfo) -> pb.DescribeResponse:
    return pb.DescribeResponse(
        board=pb.Board(
            board_id=board.board_id,
            name=board.name,
            boot_id=board.boot_id,
            hardware=dict(board.hardware),
            conditions=dict(board.conditions),
        ),
        runtimes=[runtime_as_pb(runtime) for runtime in board.runtimes],
        agent_version=board.agent_version,
        protocol_version=board.protocol_version,
        state=board.state,
    )


def stage_as_pb(stage: MeasuringStage) -> pb.Stage:
    return pb.Stage(name=stage.name, session=stage.session, elapsed_ms=stage.elapsed_ms)


def session_as_pb(session: SessionSamples) -> pb.Session:
    return pb.Session(**asdict(session))


def layer_as_pb(layer: ProfiledLayer) -> pb.Layer:
    return pb.Layer(name=layer.name, op=layer.op, latency_ms=layer.latency_ms, device=layer.device)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@given(all_settings)
def test_settings(settings: Settings) -> None:
    assert results.settings_from_pb(over_the_wire(wire.settings_as_pb(settings))) == settings


@given(boards)
def test_boards(board: BoardInfo) -> None:
    assert wire.board_from_pb(over_the_wire(board_as_pb(board))) == board


def test_a_board_describes_itself_in_bounds() -> None:
    one = PlatformInfo("p", "onnx", "fp32")
    most = tuple(replace(one, name=f"p{number}") for number in range(bounds.MOST_PLATFORMS))
    board = BoardInfo("b", "toy", runtimes=(RuntimeInfo("r", True, platforms=most),))
    assert wire.board_from_pb(board_as_pb(board)).platforms == most
    more = RuntimeInfo("more", True, platforms=(one,))
    with pytest.raises(BadAnswerError, match="501 platforms, 500 at most"):
        wire.board_from_pb(board_as_pb(replace(board, runtimes=(*board.runtimes, more))))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"board_id": ""}, "no board id"),
        ({"board_id": "b\x1b[2J"}, r"not printable: 'b\\x1b"),
        ({"board_id": "b" * 201}, "201 letters, 200 at most"),
        ({"boot_id": "\u202e"}, "boot id"),
        ({"protocol_version": 2**32 - 1}, "4294967295 as version of the protocol"),
        ({"hardware": {"\n": "x"}}, "name among its facts about the hardware"),
        ({"conditions": {str(n): "" for n in range(300)}}, "300 conditions, 256 at most"),
        ({"runtimes": (RuntimeInfo("", True),)}, "no name of a runtime"),
        (
            {"runtimes": (RuntimeInfo("r", True, platforms=(PlatformInfo("../p", "", ""),)),)},
            "a name of a platform that is a path: '../p'",
        ),
    ],
)
def test_a_description_out_of_bounds_is_refused(changes: dict[str, Any], says: str) -> None:
    board = replace(BoardInfo("b", "toy"), **changes)
    with pytest.raises(BadAnswerError, match=says):
        wire.board_from_pb(board_as_pb(board))


def test_texts_for_people_are_made_printable_and_cut() -> None:
    runtime = RuntimeInfo("r", False, missing="no\x1b[31m\n  library" + "!" * 9000)
    board = BoardInfo("b", "toy", hardware={"cpu": "A76\0"}, runtimes=(runtime,))
    found = wire.board_from_pb(board_as_pb(board))
    assert found.hardware == {"cpu": "A76\\x00"}
    missing = found.runtimes[0].missing
    assert missing.startswith("no\\x1b[31m / library!!!")
    assert missing.endswith("! [...]")
    assert len(missing.encode()) <= bounds.TEXT_BYTES


@given(sessions)
def test_sessions(session: SessionSamples) -> None:
    assert results.session_from_pb(over_the_wire(session_as_pb(session))) == session


@given(st.builds(MeasuringStage, text, count, real))
def test_stages(stage: MeasuringStage) -> None:
    assert wire.stage_from_pb(over_the_wire(stage_as_pb(stage))) == stage


@given(st.builds(ProfiledLayer, text, text, real, text))
def test_layers(layer: ProfiledLayer) -> None:
    assert results.layer_from_pb(over_the_wire(layer_as_pb(layer))) == layer


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
    message = wire.request_as_pb(BoardRequest.of(REQUEST), 7, "ab")
    assert message.request_id == REQUEST.request_id
    assert (message.token, message.platform, message.blob_sha256) == (7, "p", "ab")
    assert results.settings_from_pb(message.settings) == REQUEST.settings
