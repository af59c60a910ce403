"""The conformance suite over every runtime that the agent ships."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_agent.bench import Bench
from latfarm_agent.pool import Limits
from latfarm_agent.runtimes.sim_cost import Profile, exact_latency_ms
from latfarm_agent.testing.runtime_suite import QUICK, RuntimeSuite, changed, measure

PROFILE = {
    "platform": "sim-npu-int8",
    "peak_macs_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 1e6,
    "overhead_ms": 0.01,
    "fused_pairs": [["Conv", "Relu"]],
    "noise": 0.005,
    "unsupported_ops": ["Celu"],
}
REFERENCES = {
    "onnxruntime": "latfarm_agent.runtimes.onnxruntime:OnnxRuntime",
    "openvino": "latfarm_agent.runtimes.openvino:OpenVinoRuntime",
    "tflite": "latfarm_agent.runtimes.tflite:TfliteRuntime",
}


class _Library(RuntimeSuite):
    packages: tuple[str, ...]

    @pytest.fixture(autouse=True)
    def _files(self, onnx_file: Callable[..., Path], tflite_file: Callable[..., Path]) -> None:
        self._write = tflite_file if self.runtime == "tflite" else onnx_file

    @classmethod
    def make_bench(cls, directory: Path, limits: Limits) -> Bench:
        only = {cls.runtime: REFERENCES[cls.runtime]}
        return Bench("board", None, directory, runtimes=only, limits=limits)

    def make_unsupported(self, directory: Path) -> Path | None:
        return self._write(directory / "custom", "custom")

    def make_greedy(self, directory: Path) -> Path | None:
        return self._write(directory / "greedy", "greedy")

    def make_lacking(self, directory: Path) -> Bench | None:
        folder = directory / "shadow"
        folder.mkdir()
        for package in self.packages:
            (folder / f"{package}.py").write_text("raise ImportError('not on this board')\n")
        only = {self.runtime: REFERENCES[self.runtime]}
        return Bench("board", None, directory, runtimes=only, search_path=[folder])


class TestOnnxRuntime(_Library):
    runtime = "onnxruntime"
    model_format = "onnx"
    packages = ("onnxruntime",)

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.onnx")

    def test_layers_name_what_was_fused(self, bench: Bench, platform: str, model: Path) -> None:
        result = measure(bench, platform, model, profile=True)
        by_op = {layer.op: layer for layer in result.layers}
        fused = by_op["Conv+BatchNormalization+Relu"]
        assert fused.name == "conv0+bn0+relu0"
        assert fused.device == "CPUExecutionProvider"
        covered = [part for layer in result.layers for part in layer.name.split("+")]
        wanted = {"conv0", "bn0", "relu0", "conv1", "add1", "sigmoid1"}
        assert wanted <= set(covered)
        assert len(covered) == len(set(covered))

    @pytest.mark.parametrize(
        ("kind", "code", "says"),
        [
            ("open", "MODEL_INVALID", "open dimension"),
            ("future", "MODEL_UNSUPPORTED", "opset"),
            ("int", "", ""),
        ],
    )
    def test_inputs_and_versions(
        self, bench: Bench, platform: str, tmp_path: Path, kind: str, code: str, says: str
    ) -> None:
        result = measure(bench, platform, self._write(tmp_path / "m.onnx", kind))
        assert result.error_code == code
        assert says in result.error_message


class TestOpenVino(_Library):
    runtime = "openvino"
    model_format = "onnx"
    packages = ("openvino",)

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.onnx")

    def test_layers_name_what_was_fused(self, bench: Bench, platform: str, model: Path) -> None:
        result = measure(bench, platform, model, profile=True)
        first = next(layer for layer in result.layers if "conv0" in layer.name)
        assert (first.name, first.op) == ("conv0+bn0+relu0", "Conv+BatchNormalization+Relu")
        assert first.device.startswith("CPU ")
        covered = [part for layer in result.layers for part in layer.name.split("+")]
        assert {"conv0", "bn0", "relu0", "conv1", "add1", "sigmoid1"} <= set(covered)
        assert len(covered) == len(set(covered))

    @pytest.mark.parametrize(
        ("kind", "code", "says"), [("open", "MODEL_INVALID", "open dimension"), ("int", "", "")]
    )
    def test_inputs(
        self, bench: Bench, platform: str, tmp_path: Path, kind: str, code: str, says: str
    ) -> None:
        result = measure(bench, platform, self._write(tmp_path / "m.onnx", kind))
        assert result.error_code == code
        assert says in result.error_message


class TestTflite(_Library):
    runtime = "tflite"
    model_format = "tflite"
    profiles = False
    packages = ("ai_edge_litert", "tflite_runtime")

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.tflite")

    def test_int8(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        (mine,) = bench.describe()[1]
        (int8,) = [entry.name for entry in mine.platforms if entry.dtype == "int8"]
        assert int8 != platform
        result = measure(bench, int8, self._write(tmp_path / "m.tflite", "add", "int8"))
        assert result.outcome == "ok", result.error_message


class TestSimulated(RuntimeSuite):
    runtime = "simulated"
    model_format = "graph-json"

    @pytest.fixture(autouse=True)
    def _files(self, conv_graph: Callable[..., Path]) -> None:
        self._write = conv_graph

    @classmethod
    def make_bench(cls, directory: Path, limits: Limits) -> Bench:
        path = directory / "profile.json"
        path.write_text(json.dumps(PROFILE))
        return Bench("board", None, directory, simulate=path, limits=limits)

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.json")

    def make_unsupported(self, directory: Path) -> Path | None:
        return self._write(directory / "celu.json", ["Celu"])

    def make_lacking(self, directory: Path) -> Bench | None:
        only = {"simulated": "latfarm_agent.runtimes.simulated:SimulatedRuntime"}
        return Bench("board", None, directory, runtimes=only)

    def test_tells_the_truth(self, bench: Bench, platform: str, model: Path) -> None:
        profile = Profile.from_json(PROFILE)
        exact = exact_latency_ms(json.loads(model.read_text()), profile)
        result = measure(bench, platform, model, settings=changed(QUICK, min_runs=20))
        for session in result.sessions:
            assert min(session.runs_ms) == pytest.approx(exact, rel=0.03)
            assert max(session.runs_ms) == pytest.approx(exact, rel=0.03)
        again = measure(bench, platform, model, settings=changed(QUICK, min_runs=20))
        assert [list(s.runs_ms) for s in again.sessions] == [
            list(s.runs_ms) for s in result.sessions
        ]
        other = measure(bench, platform, model, request_id="other")
        assert other.sessions[0].runs_ms != result.sessions[0].runs_ms
