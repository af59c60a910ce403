"""onnxruntime's providers: platforms, options, and that nodes never run elsewhere unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.onnxruntime.runtime import OnnxRuntime
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
ONE = changed(QUICK, sessions=1)
Models = Callable[..., Path]
Board = Any  # conftest's


def platforms(bench: Bench) -> dict[str, dict[str, str]]:
    (mine,) = bench.describe()[1]
    assert not mine.missing
    return {entry.name: dict(entry.settings) for entry in mine.platforms}


def rows(result: BenchResult) -> list[Any]:
    return [(layer.name, layer.op, layer.device) for layer in result.layers]


def test_cuda_has_platforms_and_runs_on_the_gpu(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench({"providers": [CUDA], "device_times": True, "left": ["Sigmoid"]})
    found = platforms(bench)
    assert list(found) == [
        "hw-onnxruntime1.31-fp32-1t",
        "hw-onnxruntime1.31-int8-1t",
        "hw-onnxruntime1.31-cuda-fp32",
        "hw-onnxruntime1.31-cuda-fp16",
    ]
    assert found["hw-onnxruntime1.31-cuda-fp32"]["provider"] == CUDA
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-onnxruntime1.31-cuda-fp32", model, settings=ONE, profile=True)
    assert result.outcome == "ok", result.error_message
    assert board.sessions[-1]["asked"] == [[CUDA, {}], [CPU, {}]]
    told = {name: result.conditions[name] for name in ("provider", "nodes_on_cpu", "on_cpu")}
    assert told == {"provider": CUDA, "nodes_on_cpu": "1 of 6", "on_cpu": "sigmoid1 (Sigmoid)"}
    assert rows(result)[0] == ("sigmoid1", "Sigmoid", CPU)
    assert ("conv0", "Conv", CUDA) in rows(result)
    # These are the GPU's own times, not those that the host took to launch the kernels.
    times = {layer.name: layer.latency_ms for layer in result.layers}
    assert times["conv0"] == pytest.approx(0.025)
    assert times["sigmoid1"] == pytest.approx(0.003)


def test_without_device_times_there_is_no_profile(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench({"providers": [CUDA]})
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-onnxruntime1.31-cuda-fp32", model, settings=ONE, profile=True)
    assert result.error_code == "PROFILE_UNAVAILABLE"
    assert "no device times" in result.error_message
    assert measure(bench, "hw-onnxruntime1.31-cuda-fp32", model, settings=ONE).outcome == "ok"


def test_a_provider_that_does_not_load_has_no_platform(board: Board) -> None:
    bench = board.bench({"providers": [TENSORRT, CUDA], "broken": [TENSORRT], "raising": [CUDA]})
    assert list(platforms(bench)) == ["hw-onnxruntime1.31-fp32-1t", "hw-onnxruntime1.31-int8-1t"]


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        ({"providers": []}, "was built without it"),
        ({"providers": [CUDA], "broken": [CUDA]}, "left it out"),
        ({"providers": [CUDA], "raising": [CUDA]}, "libcudnn.so.9"),
    ],
)
def test_a_chosen_one_that_does_not_load_is_told(
    board: Board,
    missing_of: Callable[[Bench], str | None],
    machine: dict[str, Any],
    says: str,
) -> None:
    said = missing_of(board.bench(machine, [{"name": CUDA}]))
    assert said is not None
    assert says in said
    assert CUDA in said
    assert "install" in said


def test_a_model_that_is_left_to_the_cpu_whole_has_no_time(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench({"providers": [QNN], "backendless": [QNN]})
    model = onnx_file(tmp_path / "m.onnx")
    for profile in (False, True):
        result = measure(bench, "hw-onnxruntime1.31-qnn-int8", model, settings=ONE, profile=profile)
        assert result.error_code == "MODEL_UNSUPPORTED"
        assert "takes no node" in result.error_message
        assert not result.sessions


def test_compiled_pieces_name_their_nodes(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    bench = board.bench({"providers": [QNN], "left": ["Add"]})
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-onnxruntime1.31-qnn-int8", model, settings=ONE, profile=True)
    assert result.outcome == "ok", result.error_message
    pieces = "conv0+bn0+relu0+conv1", "Conv+BatchNormalization+Relu+Conv"
    assert sorted(rows(result)) == [
        ("add1", "Add", CPU),
        (*pieces, QNN),
        ("sigmoid1", "Sigmoid", QNN),
    ]
    assert result.conditions["nodes_on_cpu"] == "1 of 6"
    assert result.sessions[0].compile_ms > 0
    options = {"backend_path": "libQnnHtp.so", "htp_performance_mode": "burst"}
    assert board.sessions[-1]["asked"][0] == [QNN, options]


def test_tensorrt_keeps_its_timings_and_no_engine(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench({"providers": [TENSORRT, CUDA]}, [{"name": TENSORRT, "dtypes": ["fp16"]}])
    assert "hw-onnxruntime1.31-tensorrt-fp16" in platforms(bench)
    assert "hw-onnxruntime1.31-tensorrt-fp32" not in platforms(bench)
    model = onnx_file(tmp_path / "m.onnx")
    for _ in range(2):
        result = measure(bench, "hw-onnxruntime1.31-tensorrt-fp16", model, settings=ONE)
        assert result.outcome == "ok", result.error_message
    (first, second) = board.sessions
    names = [name for name, _ in second["asked"]]
    assert names == [TENSORRT, CUDA, CPU]
    given, before = second["asked"][0][1], first["asked"][0][1]
    assert given["trt_fp16_enable"] == "1"
    assert given["trt_timing_cache_path"] == before["trt_timing_cache_path"]
    assert Path(given["trt_timing_cache_path"]).is_dir()
    # The engines of a request are removed with its scratch folder.
    assert given["trt_engine_cache_path"] != before["trt_engine_cache_path"]
    assert not Path(given["trt_engine_cache_path"]).exists()


def test_fallback_can_be_refused(board: Board, tmp_path: Path, onnx_file: Models) -> None:
    machine = {"providers": [CUDA], "left": ["Sigmoid"]}
    bench = board.bench(machine, [{"name": CUDA, "cpu_fallback": False}])
    model = onnx_file(tmp_path / "m.onnx")
    result = measure(bench, "hw-onnxruntime1.31-cuda-fp32", model, settings=ONE)
    assert result.error_code == "MODEL_UNSUPPORTED"
    assert "explicitly disabled" in result.error_message
    assert platforms(bench)["hw-onnxruntime1.31-cuda-fp32"]["cpu_fallback"] == "refused"


def test_a_plugin_s_library_is_part_of_the_platform(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    library = tmp_path / "libprovider.so"
    library.write_bytes(b"one")
    machine = {"providers": [], "plugins": {str(library): QNN}}
    entry = {
        "name": QNN,
        "label": "npu",
        "library": str(library),
        "options": {"htp_performance_mode": "balanced"},
        "dtypes": ["int8"],
    }
    name = "hw-onnxruntime1.31-npu-int8"
    bench = board.bench(machine, [entry])
    before = platforms(bench)[name]
    assert json.loads(before["options"])["htp_performance_mode"] == "balanced"
    result = measure(bench, name, onnx_file(tmp_path / "m.onnx"), settings=ONE)
    assert result.outcome == "ok", result.error_message
    (session,) = board.sessions
    assert session["devices"][0][0] == QNN
    assert session["asked"] == []
    library.write_bytes(b"two")
    after = platforms(board.bench(machine, [entry]))[name]
    assert after["library_sha256"] != before["library_sha256"]


def test_one_that_computes_on_the_cpu_has_threads(
    board: Board, tmp_path: Path, onnx_file: Models
) -> None:
    bench = board.bench({"providers": ["XnnpackExecutionProvider"]}, threads=2)
    name = "hw-onnxruntime1.31-xnnpack-fp32-2t"
    assert platforms(bench)[name]["threads"] == "2"
    result = measure(bench, name, onnx_file(tmp_path / "m.onnx"), settings=ONE)
    assert result.outcome == "ok", result.error_message
    asked = board.sessions[-1]["asked"][0]
    assert asked == ["XnnpackExecutionProvider", {"intra_op_num_threads": "2"}]


@pytest.mark.parametrize(
    ("providers", "says"),
    [
        ("CUDA", "must be a list"),
        (["CUDA"], "must be an object"),
        ([{"name": "CUDA"}], "must be a provider"),
        ([{"name": CPU}], "must be a provider"),
        ([{"name": CUDA, "colour": 1}], "unknown key 'colour'"),
        ([{"name": CUDA, "dtypes": ["fp64"]}], "must be a list of fp32"),
        ([{"name": CUDA, "options": {"device_id": [1]}}], "strings and numbers"),
        ([{"name": CUDA, "label": "GPU 1"}], "small letters"),
        ([{"name": CUDA, "cpu_fallback": "no"}], "true or false"),
        ([{"name": CUDA, "library": "lib.so"}], "absolute path"),
        ([{"name": CUDA}, {"name": CUDA}], "two entries 'cuda'"),
        ([{"name": "OwnExecutionProvider"}], "must be given for OwnExecutionProvider"),
    ],
)
def test_wrong_options_are_named(providers: Any, says: str) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        OnnxRuntime(providers=providers)
    assert caught.value.code == "RUNTIME_MISSING"
    assert says in caught.value.message
    assert "option providers" in caught.value.message
