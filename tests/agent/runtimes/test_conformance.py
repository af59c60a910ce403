"""The conformance suite on every runtime of the agent whose library is installed."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.testing.runtime_suite import QUICK, RuntimeSuite, changed, measure
from latfarm_agent.worker.pool import WorkerLimits

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
    "mnn": "latfarm_agent.runtimes.mnn.runtime:MnnRuntime",
    "ncnn": "latfarm_agent.runtimes.ncnn.runtime:NcnnRuntime",
    "onnxruntime": "latfarm_agent.runtimes.onnxruntime.runtime:OnnxRuntime",
    "openvino": "latfarm_agent.runtimes.openvino.runtime:OpenVinoRuntime",
    "tflite": "latfarm_agent.runtimes.tflite.runtime:TfliteRuntime",
}


class _Library(RuntimeSuite):
    packages: tuple[str, ...]

    @pytest.fixture(autouse=True)
    def _files(self, onnx_file: Callable[..., Path], tflite_file: Callable[..., Path]) -> None:
        self._write = tflite_file if self.runtime == "tflite" else onnx_file

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        only = {cls.runtime: REFERENCES[cls.runtime]}
        return host_bench(BenchOptions("board", None, directory, runtimes=only, limits=limits))

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
        return host_bench(
            BenchOptions("board", None, directory, runtimes=only, search_path=[folder])
        )

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        only = {self.runtime: REFERENCES[self.runtime]}
        return host_bench(
            BenchOptions(
                "board", None, directory, runtimes=only, config=self.configured(**{option: 1})
            )
        )

    @classmethod
    def configured(cls, **options: object) -> AgentConfig:
        return AgentConfig(runtimes={cls.runtime: RuntimeConfig(options=options)})


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
    packages = ("ai_edge_litert", "tflite_runtime")

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.tflite")

    def test_int8(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        (mine,) = bench.describe()[1]
        (int8,) = [entry.name for entry in mine.platforms if entry.dtype == "int8"]
        assert int8 != platform
        result = measure(bench, int8, self._write(tmp_path / "m.tflite", "add", "int8"))
        assert result.outcome == "ok", result.error_message


# Runs MNN's converter in another process, without MNN.tools, which installs packages on import.
MNN_CONVERT = """
import _tools
_tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", "source", "--MNNModel", "target",
                   "--bizCode", "latfarm", "--allowCustomOp"])
"""


@lru_cache(maxsize=None)
def mnn_bytes(onnx_bytes: bytes) -> bytes:
    """Convert an ONNX model with MNN's converter."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").write_bytes(onnx_bytes)
        command = [sys.executable, "-c", MNN_CONVERT]
        subprocess.run(command, cwd=name, check=True, capture_output=True, timeout=60)
        return (folder / "target").read_bytes()


class TestMnn(_Library):
    runtime = "mnn"
    model_format = "mnn"
    packages = ("MNN",)

    @pytest.fixture(autouse=True)
    def _converted(self, _files: None) -> None:
        pytest.importorskip("_tools", reason="MNN's converter is not here")
        write_onnx = self._write

        def write(path: Path, kind: str = "conv") -> Path:
            path.write_bytes(mnn_bytes(write_onnx(path, kind).read_bytes()))
            return path

        self._write = write

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.mnn")

    def test_layers(self, bench: Bench, platform: str, model: Path) -> None:
        result = measure(bench, platform, model, profile=True)
        named = {layer.name: layer.op for layer in result.layers}
        assert {name: named[name] for name in ("c0", "c1", "a1", "y")} == {
            "c0": "Convolution",
            "c1": "Convolution",
            "a1": "BinaryOp",
            "y": "UnaryOp",
        }

    def test_says_what_it_lacks(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        result = measure(bench, platform, self._write(tmp_path / "m.mnn", "custom"))
        assert result.error_code == "MODEL_UNSUPPORTED"
        assert "Extra" in result.error_message  # what MNN calls a custom op

    def test_integer_inputs(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        result = measure(bench, platform, self._write(tmp_path / "m.mnn", "int"))
        assert result.outcome == "ok", result.error_message


NCNN_PARAMS = {
    "conv": (
        "Input in0 0 1 in0 0=16 1=16 2=8",
        "Convolution conv0 1 1 in0 c0 0=8 1=3 4=1 5=1 6=576",
        "Split split0 1 2 c0 s0 s1",
        "ReLU relu0 1 1 s0 r0",
        "BinaryOp add0 2 1 r0 s1 out0 0=0",
    ),
    "custom": ("Input in0 0 1 in0 0=4", "NoSuchLayer strange 1 1 in0 out0"),
    "greedy": (
        "Input in0 0 1 in0 0=1 1=30000",
        "Input in1 0 1 in1 0=30000 1=1",
        "BinaryOp add0 2 1 in0 in1 out0 0=0",
    ),
    "mixed": (
        "Input in0 0 1 in0 0=8 1=8",
        "ReLU relu0 1 1 in0 r0",
        "Split split0 1 2 r0 s0 s1",
        "MatMul matmul0 2 1 s0 s1 out0 0=0",
    ),
    "no shape": ("Input in0 0 1 in0", "ReLU relu0 1 1 in0 out0"),
    "no number": ("Input in0 0 1 in0 0=x", "ReLU relu0 1 1 in0 out0"),
    "no blob": ("Input in0 0 1 in0 0=4", "ReLU relu0 1 1 nowhere out0"),
}


def write_ncnn(path: Path, kind: str = "conv", method: int = zipfile.ZIP_STORED) -> Path:
    """Write a packed ncnn model."""
    layers = NCNN_PARAMS[kind]
    blobs = {name for line in layers for name in line.split()[4:] if "=" not in name}
    param = "\n".join(["7767517", f"{len(layers)} {len(blobs)}", *layers, ""])
    # A tag, the convolution's weights and its biases.
    data = bytes(4) + struct.pack("<584f", *(((i * 37) % 101 - 50) / 500 for i in range(584)))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("model.param", param)
        archive.writestr("model.bin", data if kind == "conv" else b"")
    return path


class TestNcnn(_Library):
    runtime = "ncnn"
    model_format = "ncnn"
    packages = ("ncnn",)

    @pytest.fixture(autouse=True)
    def _packed(self, _files: None) -> None:
        self._write = write_ncnn

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.ncnn")

    def test_layers(self, bench: Bench, platform: str, model: Path) -> None:
        result = measure(bench, platform, model, profile=True)
        assert [(layer.name, layer.op) for layer in result.layers] == [
            ("conv0", "Convolution"),
            ("relu0", "ReLU"),
            ("add0", "BinaryOp"),
        ]

    @pytest.mark.parametrize(
        ("kind", "code", "says"),
        [
            ("custom", "MODEL_UNSUPPORTED", "NoSuchLayer"),
            ("no shape", "MODEL_INVALID", "'in0' has no shape"),
            ("no number", "MODEL_INVALID", "not a packed ncnn model"),
            ("no blob", "MODEL_FAILED", "ended with code"),
        ],
    )
    def test_params(
        self, bench: Bench, platform: str, tmp_path: Path, kind: str, code: str, says: str
    ) -> None:
        result = measure(bench, platform, write_ncnn(tmp_path / "m.ncnn", kind))
        assert result.error_code == code
        assert says in result.error_message

    def test_containers(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        packed = write_ncnn(tmp_path / "packed", method=zipfile.ZIP_DEFLATED)
        short = tmp_path / "short"
        whole = zipfile.ZipFile(write_ncnn(tmp_path / "whole"))
        with whole, zipfile.ZipFile(short, "w") as archive:
            archive.writestr("model.param", whole.read("model.param"))
            archive.writestr("model.bin", whole.read("model.bin")[:300])
        for path, says in ((packed, "is compressed"), (short, "does not read model.bin")):
            result = measure(bench, platform, path)
            assert result.error_code == "MODEL_INVALID"
            assert says in result.error_message


class TestNcnnVulkan(_Library):
    """ncnn on any Vulkan device of this host; on an emulated GPU, the times mean nothing."""

    runtime = "ncnn"
    model_format = "ncnn"
    packages = ("ncnn",)
    part = "vulkan-fp16"

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        only = {cls.runtime: REFERENCES[cls.runtime]}
        config = cls.configured(software_devices=True)
        return host_bench(
            BenchOptions("board", None, directory, runtimes=only, limits=limits, config=config)
        )

    @pytest.fixture(autouse=True)
    def _packed(self, _files: None) -> None:
        self._write = write_ncnn

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.ncnn")

    def test_layers_say_where_they_ran(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        result = measure(bench, platform, write_ncnn(tmp_path / "m", "mixed"), profile=True)
        assert result.outcome == "ok", result.error_message
        (mine,) = bench.describe()[1]
        (settings,) = [dict(entry.settings) for entry in mine.platforms if entry.name == platform]
        assert {layer.op: layer.device for layer in result.layers} == {
            "ReLU": settings["gpu"],
            "MatMul": "cpu",
        }


class TestSimulated(RuntimeSuite):
    runtime = "simulated"
    model_format = "graph-json"

    @pytest.fixture(autouse=True)
    def _files(self, conv_graph: Callable[..., Path]) -> None:
        self._write = conv_graph

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        path = directory / "profile.json"
        path.write_text(json.dumps(PROFILE))
        return simulated_bench(BenchOptions("board", None, directory, limits=limits), path)

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.json")

    def make_unsupported(self, directory: Path) -> Path | None:
        return self._write(directory / "celu.json", ["Celu"])

    def make_lacking(self, directory: Path) -> Bench | None:
        only = {"simulated": "latfarm_agent.runtimes.simulated.runtime:SimulatedRuntime"}
        return host_bench(BenchOptions("board", None, directory, runtimes=only))

    def test_tells_the_truth(self, bench: Bench, platform: str, model: Path) -> None:
        profile = BoardProfile.from_json(PROFILE)
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
