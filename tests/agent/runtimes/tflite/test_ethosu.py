"""The way of a model to an i.MX 93: Vela compiles it on the controller, a delegate runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.testing.runtime_suite import measure

pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ethosu.vela")
builders = pytest.importorskip("latfarm_controller.builders")
graph_builder = pytest.importorskip("latfarm_predictors.graph.builder")

PLATFORM = "board-litert2.3-ethosu-int8"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Compiled models: "npu" runs on the NPU alone, "mixed" has an operator that the NPU lacks."""
    found = {}
    for name in ("npu", "mixed"):
        b = graph_builder.GraphBuilder(name)
        x = b.relu(b.conv(b.input((1, 8, 16, 16)), 16, 3))
        if name == "mixed":
            x = b.lrn(x, 5)
        graph = b.build([b.relu(b.conv(x, 8, 1))])
        found[name] = builders.build(graph, "tflite-vela:ethos-u65-256", "int8")
    return found


@pytest.fixture
def bench(make_bench: Callable[..., Bench], library: Path) -> Bench:
    entry: dict[str, Any] = {
        "name": "ethosu",
        "library": str(library),
        "options": {"take": "ethos-u"},
        "model_format": "tflite-vela:ethos-u65-256",
    }
    return make_bench(entry)


def test_the_command_stream_runs_on_the_delegate(
    bench: Bench, files: dict[str, bytes], tmp_path: Path
) -> None:
    (mine,) = bench.describe()[1]
    (platform,) = [entry for entry in mine.platforms if entry.name == PLATFORM]
    assert platform.model_format == "tflite-vela:ethos-u65-256"
    model = tmp_path / "npu.tflite"
    model.write_bytes(files["npu"])
    result = measure(bench, PLATFORM, model, profile=True)
    assert result.outcome == "ok", result.error_message
    assert [(layer.op, layer.device) for layer in result.layers] == [("ethos-u", "ethosu")]
    assert float(result.conditions["vela_estimate_ms"]) > 0
    assert "on_cpu" not in result.conditions


def test_what_vela_left_to_the_cpu_runs_there(
    bench: Bench, files: dict[str, bytes], tmp_path: Path
) -> None:
    model = tmp_path / "mixed.tflite"
    model.write_bytes(files["mixed"])
    result = measure(bench, PLATFORM, model, profile=True)
    assert result.outcome == "ok", result.error_message
    devices = {layer.op: layer.device for layer in result.layers}
    assert devices["ethos-u"] == "ethosu"
    assert devices["LocalResponseNormalization"] == "CPU"
    assert "LOCAL_RESPONSE_NORMALIZATION" in result.conditions["vela_on_cpu"]
    assert "LocalResponseNormalization" in result.conditions["on_cpu"]


def test_without_the_delegate_the_stream_is_unsupported(
    bench: Bench, files: dict[str, bytes], tmp_path: Path
) -> None:
    model = tmp_path / "npu.tflite"
    model.write_bytes(files["npu"])
    result = measure(bench, "board-litert2.3-int8-1t", model)
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_UNSUPPORTED")
