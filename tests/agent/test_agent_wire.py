"""Every dataclass of the bench survives the way through protocol buffers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent import wire
from latfarm_agent.bench.records import (
    BenchRequest,
    BenchResult,
    BenchStage,
    DescribedBoard,
    MeasuredEnergy,
    MeasuredSession,
    OfferedPlatform,
    OfferedRuntime,
)
from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.worker.rules import TimingSettings

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
count = st.integers(0, 2**32 - 1)
real = st.floats(allow_nan=False)
reals = st.lists(real, max_size=3)
texts = st.dictionaries(text, text, max_size=3)
settings = st.builds(
    TimingSettings, text, count, count, real, count, count, real, count, real, real, real, real
)
platforms = st.builds(OfferedPlatform, text, text, text, texts, text, st.booleans())
runtimes = st.builds(
    OfferedRuntime, text, st.booleans(), text, text, st.lists(platforms, max_size=2).map(tuple)
)
boards = st.builds(DescribedBoard, text, text, text, texts, texts)
sessions = st.builds(MeasuredSession, real, real, real, reals, count, reals, reals)
energies = st.builds(MeasuredEnergy, real, real, real, real, real, text, count, real)
results = st.builds(
    BenchResult,
    text,
    text,
    text,
    text,
    st.lists(sessions, max_size=2),
    st.lists(st.builds(LayerTime, text, text, real, text), max_size=2),
    settings,
    texts,
    text,
    text,
    text,
    count,
    real,
    real,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.none() | energies,
)


@given(results)
def test_results_survive_the_link_and_the_spool(result: BenchResult) -> None:
    assert wire.unpacked_result(wire.packed_result(result)) == result
    assert wire.result_from_bytes(wire.result_bytes(result)) == result


@given(st.builds(BenchRequest, text, text, settings), st.builds(BenchStage, text, count, real))
def test_requests_and_stages_survive_the_link(request: BenchRequest, stage: BenchStage) -> None:
    assert wire.unpacked_request(wire.packed_request(request)) == request
    assert wire.unpacked_stage(wire.packed_stage(stage)) == stage


@given(boards, runtimes)
def test_descriptions_survive_the_link(board: DescribedBoard, runtime: OfferedRuntime) -> None:
    assert wire.unpacked_board(wire.packed_board(board)) == board
    assert wire.unpacked_runtime(wire.packed_runtime(runtime)) == runtime


def test_what_is_no_message_is_refused() -> None:
    for text in ("not base64", "////", None, 7):
        with pytest.raises(wire.MessageError):
            wire.unpacked_result(text)
    with pytest.raises(wire.MessageError):
        wire.result_from_bytes(b"\xff")


def test_a_description_as_json_leaves_out_empty_fields() -> None:
    board = DescribedBoard("1", "toy", "", {"cpu": "fast"}, {})
    found = wire.described_json(board, [OfferedRuntime("tflite", missing="install it")])
    assert found == {
        "board": {"board_id": "1", "name": "toy", "hardware": {"cpu": "fast"}},
        "runtimes": [{"available": False, "name": "tflite", "missing": "install it"}],
    }
