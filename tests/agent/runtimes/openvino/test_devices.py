"""OpenVINO's GPU and NPU: platforms, properties, caches, and no silent use of another device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.openvino.runtime import OpenVinoRuntime
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure

ONE = changed(QUICK, sessions=1)
Board = Any  # conftest's
Models = Callable[..., Path]


def test_each_device_has_platforms(board: Board) -> None:
    bench = board.bench("openvino", {}, properties={"GPU": {"GPU_QUEUE_THROTTLE": "LOW"}})
    (mine,) = bench.describe()[1]
    assert not mine.missing
    found = {entry.name: dict(entry.settings) for entry in mine.platforms}
    assert list(found) == [
        f"hw-openvino2026.4-{tail}"
        for tail in (
            *("fp32-1t", "int8-1t"),
            *("gpu0-fp32", "gpu0-fp16", "gpu0-int8", "gpu1-fp32", "gpu1-fp16", "gpu1-int8"),
            *("npu-fp16", "npu-int8"),
        )
    ]
    gpu, npu = found["hw-openvino2026.4-gpu1-fp16"], found["hw-openvino2026.4-npu-fp16"]
    assert gpu["full_device_name"] == "FULL_DEVICE_NAME of GPU.1"
    assert gpu["precision"] == "f16"
    assert "GPU_QUEUE_THROTTLE" in gpu["properties"]
    assert npu["npu_driver_version"] == "NPU_DRIVER_VERSION of NPU"
    assert "properties" not in npu


def test_a_gpu_compiles_into_its_cache(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    bench = board.bench("openvino", {}, properties={"GPU": {"GPU_QUEUE_THROTTLE": "LOW"}})
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-openvino2026.4-gpu1-fp16", model, settings=ONE, profile=True)
    assert result.outcome == "ok", result.error_message
    assert result.conditions["ran_on"] == "GPU.1"
    assert result.sessions[0].compile_ms > 0
    assert [(layer.name, layer.device) for layer in result.layers] == [
        ("conv0+bn0+relu0", "GPU.1 ocl"),
        ("conv1+add1+sigmoid1", "GPU.1 ocl"),
    ]
    last = board.told("compiled.jsonl")[-1]
    assert last["device"] == "GPU.1"
    cache = last["options"].pop("CACHE_DIR")
    assert Path(cache).is_dir()
    assert tmp_path in Path(cache).parents
    assert last["options"] == {
        "PERF_COUNT": True,
        "INFERENCE_PRECISION_HINT": "f16",
        "NUM_STREAMS": 1,
        "GPU_QUEUE_THROTTLE": "LOW",
    }


def test_an_npu_that_tells_nothing_has_no_profile(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench("openvino", {"silent": ["NPU"]})
    model = onnx_file(tmp_path / "m.onnx")
    name = "hw-openvino2026.4-npu-int8"
    result = measure(bench, name, model, settings=ONE, profile=True)
    assert result.error_code == "PROFILE_UNAVAILABLE"
    assert measure(bench, name, model, settings=ONE).outcome == "ok"
    options = board.told("compiled.jsonl")[-1]["options"]
    assert options["PERFORMANCE_HINT"] == "LATENCY"
    assert "NUM_STREAMS" not in options


def test_a_model_that_lands_elsewhere_has_no_time(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench("openvino", {"strays": "CPU"})
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-openvino2026.4-npu-fp16", model, settings=ONE)
    assert result.error_code == "MODEL_UNSUPPORTED"
    assert "leaves the model to CPU" in result.error_message


def test_an_unknown_property_is_told(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    bench = board.bench("openvino", {}, properties={"NPU": {"COLOUR": "blue"}})
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-openvino2026.4-npu-fp16", model, settings=ONE)
    assert result.error_code == "MODEL_UNSUPPORTED"
    assert "COLOUR" in result.error_message


@pytest.mark.parametrize("properties", [["GPU"], {"TPU": {}}, {"GPU": "fast"}])
def test_wrong_properties(properties: Any) -> None:
    with pytest.raises(RuntimeFailure, match="option properties") as caught:
        OpenVinoRuntime(properties=properties)
    assert caught.value.code == "RUNTIME_MISSING"
