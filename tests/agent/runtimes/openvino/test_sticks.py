"""Neural Compute Sticks: finding and choosing one, its settings, temperature and fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.runtimes.base import Job, RuntimeFailure
from latfarm_agent.runtimes.openvino.runtime_2021 import OpenVino2021Runtime, named
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure

ONE = changed(QUICK, sessions=1)
STICK = "hw-openvino2021.4-myriad-fp16"
Board = Any  # conftest's
Models = Callable[..., Path]


def names(bench: Any) -> list[str]:
    (mine,) = bench.describe()[1]
    assert not mine.missing
    return [entry.name for entry in mine.platforms]


def test_a_stick_is_a_platform_by_its_type(board: Board) -> None:
    bench = board.bench("openvino2021", {"sticks": ["1.2-ma2480"]})
    assert names(bench) == ["hw-openvino2021.4-fp32-1t", STICK]
    settings = {"device": "MYRIAD", "streams": "1", "chip": "ma2480"}
    (mine,) = bench.describe()[1]
    assert dict(mine.platforms[1].settings) == settings
    two = board.bench("openvino2021", {"sticks": ["1.4-ma2480", "1.2-ma2480"]})
    (mine,) = two.describe()[1]
    assert dict(mine.platforms[1].settings) == settings
    none = board.bench("openvino2021", {"sticks": []})
    assert names(none) == ["hw-openvino2021.4-fp32-1t"]


def test_measured_on_the_stick(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    hardware = {"MYRIAD": {"MYRIAD_ENABLE_HW_ACCELERATION": "NO"}}
    bench = board.bench("openvino2021", {"sticks": ["1.4-ma2480", "1.2-ma2480"]}, config=hardware)
    result = measure(bench, STICK, onnx_file(tmp_path / "m"), settings=ONE)
    assert result.outcome == "ok", result.error_message
    assert board.told("loads.jsonl")[-1] == {
        "device": "MYRIAD.1.2-ma2480",
        "config": {
            "PERF_COUNT": "NO",
            "MYRIAD_THROUGHPUT_STREAMS": "1",
            "MYRIAD_ENABLE_HW_ACCELERATION": "NO",
        },
    }
    assert result.conditions["device"] == "MYRIAD.1.2-ma2480"
    assert result.conditions["device_temperature_c_before"] == "41.5"
    assert float(result.conditions["device_temperature_c_after"]) > 41.5
    assert result.sessions[0].compile_ms > 0


def test_activations_belong_to_the_layer_before(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench("openvino2021", {"sticks": ["1.2-ma2480"]})
    result = measure(bench, STICK, onnx_file(tmp_path / "m"), settings=ONE, profile=True)
    assert result.outcome == "ok", result.error_message
    assert [(layer.name, layer.op, layer.device) for layer in result.layers] == [
        ("conv0+bn0+relu0", "Conv+BatchNormalization+Relu", "MYRIAD MyriadConv"),
        ("conv1", "Conv", "MYRIAD MyriadConv"),
        ("add1", "Add", "MYRIAD MyriadAdd"),
        ("sigmoid1", "Sigmoid", "MYRIAD MyriadSigmoid"),
        ("Receive-Tensor", "Receive-Tensor", "MYRIAD"),
    ]
    assert [layer.latency_ms for layer in result.layers] == pytest.approx([0.05] * 4 + [0.007])


def test_a_chosen_stick(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    sticks = {"sticks": ["1.2-ma2480", "1.4-ma2480"]}
    bench = board.bench("openvino2021", sticks, device="MYRIAD.1.4-ma2480")
    result = measure(bench, STICK, onnx_file(tmp_path / "m"), settings=ONE)
    assert result.conditions["device"] == "MYRIAD.1.4-ma2480"
    # If only one stick is plugged in, it is listed without its id.
    board.change({"sticks": ["1.4-ma2480"]})
    assert measure(bench, STICK, onnx_file(tmp_path / "m"), settings=ONE).outcome == "ok"
    board.change({"sticks": ["1.2-ma2480"]})
    other = measure(bench, STICK, onnx_file(tmp_path / "m"), settings=ONE)
    assert (other.outcome, other.error_code) == ("infrastructure_error", "RUNTIME_MISSING")
    assert "'MYRIAD.1.4-ma2480'" in other.error_message


def test_what_a_stick_takes_and_refuses(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    here = {"sticks": ["1.2-ma2480"]}
    bench = board.bench("openvino2021", here)
    assert STICK in names(bench)
    model = onnx_file(tmp_path / "m")
    refusals = [
        ({"sticks": []}, "RUNTIME_MISSING", "plugged in any more"),
        (dict(here, gone=True), "RUNTIME_MISSING", "does not answer"),
        (dict(here, busy=True), "RUNTIME_MISSING", "does not answer"),
        (dict(here, unsupported=["Sigmoid"]), "MODEL_UNSUPPORTED", "layer sigmoid1"),
    ]
    for change, code, says in refusals:
        board.change(change)
        result = measure(bench, STICK, model, settings=ONE)
        assert result.error_code == code, change
        assert says in result.error_message
    board.change(here)
    # The engine itself would read the file with the newest operators that it knows.
    newer = measure(bench, STICK, onnx_file(tmp_path / "n", "future"), settings=ONE)
    assert newer.error_code == "MODEL_UNSUPPORTED"
    assert "opset 9999" in newer.error_message
    # A stick has no 64-bit integers, and its double refuses them.
    integers = measure(bench, STICK, onnx_file(tmp_path / "i", "int"), settings=ONE)
    assert integers.outcome == "ok", integers.error_message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "GPU"}, "option device"),
        ({"device": 1}, "option device"),
        ({"config": ["MYRIAD"]}, "option config"),
        ({"config": {"VPU": {}}}, "option config"),
        ({"config": {"CPU": "fast"}}, "option config"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RuntimeFailure, match=says) as caught:
        OpenVino2021Runtime(**options)
    assert caught.value.code == "RUNTIME_MISSING"


@pytest.mark.parametrize("name", ["weights", "model.onnx", "a.onnx"])
def test_companions_lie_beside_the_name_of_the_model_and_never_take_its_place(
    tmp_path: Path, name: str
) -> None:
    handed, scratch = tmp_path / "handed", tmp_path / "scratch"
    handed.mkdir()
    scratch.mkdir()
    (handed / "0123").write_text("the model")
    (handed / name).write_text("its weights")
    for _ in range(2):  # each session of a request names the files again
        job = Job(handed / "0123", {}, "fp32", scratch, companions=(name,))
        found = named(job)
        assert found.suffix == ".onnx"
        assert found.read_text() == "the model"
        assert (found.parent / name).read_text() == "its weights"
        assert {path.name for path in found.parent.iterdir()} == {found.name, name}
