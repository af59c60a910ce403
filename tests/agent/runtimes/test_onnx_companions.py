"""ONNX models of two files are measured when both were uploaded, and only then."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Iterator

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchRequest, BenchResult
from latfarm_agent.runtimes.base import discover
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, platform_of

onnx = pytest.importorskip("onnx")
RUNTIMES = ("onnxruntime", "openvino")
WIDTH = 64
DATA = b"\1\2\3\0" * (WIDTH * WIDTH + 1024)
"""The weights at an offset of one page, as small finite numbers."""


def two_files(location: str = "weights", offset: int = 4096) -> bytes:
    """A product of matrices, one of which lies in another file."""
    far = onnx.TensorProto(name="far", data_type=1, dims=[WIDTH, WIDTH], data_location=1)
    length = 4 * WIDTH * WIDTH
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        far.external_data.add(key=key, value=str(value))
    value = onnx.helper.make_tensor_value_info
    main = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "far"], ["y"])],
        "g",
        [value("x", 1, [1, WIDTH])],
        [value("y", 1, [1, WIDTH])],
        initializer=[far],
    )
    opset = onnx.helper.make_opsetid("", 13)
    made = onnx.helper.make_model(main, opset_imports=[opset], ir_version=8)
    data: bytes = made.SerializeToString()
    return data


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    known = discover()
    runtimes = {name: known[name] for name in RUNTIMES}
    folder = tmp_path_factory.mktemp("onnx")
    made = host_bench(BenchOptions("board", None, folder, runtimes=runtimes, limits=PATIENT))
    yield made
    made.close()


def put(folder: Path, data: bytes) -> Path:
    path = folder / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return path


def measured(
    bench: Bench, platform: str, model: Path, companions: Mapping[str, str], **asked: Any
) -> BenchResult:
    request = BenchRequest("r", platform, changed(QUICK, sessions=1), companions)
    return bench.measure(
        request,
        model,
        profile=bool(asked.get("profile")),
        on_stage=lambda _: None,
        cancelled=lambda: False,
    )


@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_model_of_two_files_is_measured(
    bench: Bench, tmp_path: Path, runtime: str, profile: bool
) -> None:
    platform = platform_of(bench, runtime)
    data = put(tmp_path, DATA)
    model = put(tmp_path, two_files())
    result = measured(bench, platform, model, {"weights": data.name}, profile=profile)
    assert result.outcome == "ok", result.error_message
    assert result.sessions[0].runs_ms


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("location", "uploaded"),
    [
        ("weights", {}),
        ("weights", {"Weights": 0}),
        ("./weights", {"weights": 0}),
        ("../weights", {"weights": 0}),
        ("sub/weights", {"weights": 0}),
        ("*/_ORT_MEM_ADDR_/*", {"weights": 0}),
    ],
)
def test_a_reference_to_anything_else_is_refused(
    bench: Bench, tmp_path: Path, runtime: str, location: str, uploaded: dict[str, int]
) -> None:
    platform = platform_of(bench, runtime)
    data = put(tmp_path, DATA)
    (tmp_path / "weights").write_bytes(DATA)
    model = put(tmp_path, two_files(location))
    result = measured(bench, platform, model, dict.fromkeys(uploaded, data.name))
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_INVALID")
    assert f"refers to {location!r}" in result.error_message


def test_a_reference_to_the_hash_of_another_model_is_refused(bench: Bench, tmp_path: Path) -> None:
    platform = platform_of(bench, "onnxruntime")
    other = put(tmp_path, DATA)
    model = put(tmp_path, two_files(other.name))
    result = measured(bench, platform, model, {"weights": other.name})
    assert result.error_code == "MODEL_INVALID"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_offset_behind_the_end_is_a_failure_of_the_model(
    bench: Bench, tmp_path: Path, runtime: str
) -> None:
    platform = platform_of(bench, runtime)
    data = put(tmp_path, DATA)
    model = put(tmp_path, two_files(offset=1 << 40))
    result = measured(bench, platform, model, {"weights": data.name})
    assert result.outcome == "model_error"
    whole = put(tmp_path, two_files())
    assert measured(bench, platform, whole, {"weights": data.name}).outcome == "ok"


def test_a_companion_that_was_changed_is_not_used(bench: Bench, tmp_path: Path) -> None:
    platform = platform_of(bench, "onnxruntime")
    data = put(tmp_path, DATA)
    data.write_bytes(DATA + b"!")
    model = put(tmp_path, two_files())
    result = measured(bench, platform, model, {"weights": data.name})
    assert (result.outcome, result.error_code) == ("infrastructure_error", "BLOB_MISSING")
