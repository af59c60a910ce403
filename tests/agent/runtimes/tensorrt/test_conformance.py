"""The conformance suite on TensorRT's double, and tests of what only TensorRT does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, RuntimeSuite, changed, measure
from latfarm_agent.worker.pool import WorkerLimits

REFERENCE = "latfarm_agent.runtimes.tensorrt.runtime:TensorRtRuntime"
DOUBLE = Path(__file__).parent / "double"
LATENCIES = ("host_latency_ms", "gpu_latency_ms")
KERNELS_MS = 0.0186
"""The least time of all kernels of the small network together, as the double computes it."""
VARIANTS = {
    "cuda_graph": True,
    "transfers": True,
    "gpu_latency": True,
    "dla_core": 1,
    "workspace_mib": 64,
    "optimization_level": 2,
    "tf32": False,
}


def make_bench(
    directory: Path, options: dict[str, Any] | None = None, limits: WorkerLimits = PATIENT
) -> Bench:
    """Make a bench that offers TensorRT on its double."""
    return host_bench(
        BenchOptions(
            "board",
            None,
            directory,
            runtimes={"tensorrt": REFERENCE},
            search_path=[DOUBLE],
            config=AgentConfig(runtimes={"tensorrt": RuntimeConfig(options=options or {})}),
            limits=limits,
        )
    )


@pytest.mark.usefixtures("gpu_host")
class TestTensorRt(RuntimeSuite):
    runtime = "tensorrt"
    model_format = "onnx"

    @pytest.fixture(autouse=True)
    def _files(self, write: Callable[..., Path]) -> None:
        self._write = write

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        return make_bench(directory, limits=limits)

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.onnx")

    def make_unsupported(self, directory: Path) -> Path | None:
        return self._write(directory / "custom.onnx", "custom")

    def make_greedy(self, directory: Path) -> Path | None:
        return self._write(directory / "greedy.onnx", "greedy")

    def make_lacking(self, directory: Path) -> Bench | None:
        folder = directory / "shadow"
        folder.mkdir()
        (folder / "tensorrt.py").write_text("raise ImportError('not on this board')\n")
        only = {"tensorrt": REFERENCE}
        return host_bench(
            BenchOptions("board", None, directory, runtimes=only, search_path=[folder])
        )

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        return make_bench(directory, {option: True})

    def test_platforms(self, bench: Bench) -> None:
        (mine,) = bench.describe()[1]
        named = {entry.name: entry for entry in mine.platforms}
        assert list(named) == [f"board-tensorrt10.3-{d}" for d in ("fp32", "fp16", "int8")]
        settings = dict(named["board-tensorrt10.3-fp16"].settings)
        assert settings["gpu"] == "Double GPU"
        assert settings["compute_capability"] == "8.7"
        assert settings["cuda_driver"] == "12.6"
        assert settings["typing"] == "strong"
        assert settings["latency"] == "host"

    def test_host_and_gpu_latency_stand_apart(self, bench: Bench, model: Path) -> None:
        result = measure(bench, "board-tensorrt10.3-fp32", model)
        assert result.outcome == "ok", result.error_message
        told = {name: float(result.conditions[name].split(";")[0]) for name in LATENCIES}
        # What differs between sessions is told for each of them, what they share only once.
        assert all(len(result.conditions[name].split("; ")) <= 2 for name in LATENCIES)
        assert result.conditions["gpu"] == "Double GPU"
        # The GPU's share of a run is shorter than the run, and longer than its kernels together.
        assert KERNELS_MS < told["gpu_latency_ms"] < told["host_latency_ms"]
        assert result.conditions["latency_of"] == "host"

    def test_layers_name_what_was_fused(self, bench: Bench, model: Path) -> None:
        result = measure(bench, "board-tensorrt10.3-fp32", model, profile=True)
        rows = [(layer.name, layer.op, layer.device) for layer in result.layers]
        assert rows == [
            (
                "Reformatting CopyNode for Input Tensor 0 to conv0 + bn0 + relu0",
                "Reformat",
                "GPU",
            ),
            ("conv0+bn0+relu0", "Conv+BatchNormalization+Relu", "GPU"),
            ("conv1+add1", "Conv+Add", "GPU"),
            ("sigmoid1", "Sigmoid", "GPU"),
        ]
        assert result.layers[0].latency_ms == pytest.approx(0.003)

    def test_compiled_once_a_request(self, bench: Bench, model: Path) -> None:
        result = measure(bench, "board-tensorrt10.3-fp32", model, settings=changed(QUICK))
        built = [session.compile_ms > 0 for session in result.sessions]
        assert built == [True, False]
        again = measure(bench, "board-tensorrt10.3-fp32", model, profile=True)
        assert [session.compile_ms > 0 for session in again.sessions] == [True, False]
        assert again.conditions["timing_cache"] == "warm"

    @pytest.mark.parametrize(
        ("platform", "kind", "code", "says"),
        [
            ("fp32", "open", "MODEL_INVALID", "open dimension"),
            ("fp32", "external", "MODEL_INVALID", "'far'"),
            ("fp32", "shape", "MODEL_UNSUPPORTED", "decides shapes"),
            ("fp32", "custom", "MODEL_UNSUPPORTED", "node 'strange' (NoSuchOp)"),
            ("fp32", "fp16", "MODEL_INVALID", "measure it on an fp16 platform"),
            ("fp32", "int8", "MODEL_INVALID", "measure it on an int8 platform"),
            ("fp16", "conv", "MODEL_INVALID", "build it as fp16"),
            ("fp32", "int", "", ""),
            ("fp32", "unnamed", "", ""),
            ("fp16", "fp16", "", ""),
            ("int8", "int8", "", ""),
        ],
    )
    def test_models(
        self, bench: Bench, tmp_path: Path, platform: str, kind: str, code: str, says: str
    ) -> None:
        path = self._write(tmp_path / "m.onnx", kind)
        result = measure(bench, f"board-tensorrt10.3-{platform}", path)
        assert result.error_code == code, result.error_message
        assert says in result.error_message

    def test_float_model_on_an_int8_platform_says_so(self, bench: Bench, model: Path) -> None:
        result = measure(bench, "board-tensorrt10.3-int8", model)
        assert "no quantised node" in result.conditions["precision"]

    def test_quantised_layers(self, bench: Bench, tmp_path: Path) -> None:
        path = self._write(tmp_path / "m.onnx", "int8")
        result = measure(bench, "board-tensorrt10.3-int8", path, profile=True)
        assert [layer.name for layer in result.layers] == [
            "x_q",
            "Reformatting CopyNode for Input Tensor 0 to conv0 + relu0",
            "x_dq+conv0+relu0+r_q",
            "r_dq",
        ]


@pytest.fixture(scope="class", name="variants")
def _variants(
    gpu_host: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    del gpu_host
    bench = make_bench(tmp_path_factory.mktemp("bench"), VARIANTS)
    yield bench
    bench.close()


class TestVariants:
    """Platforms that options add, all on one bench."""

    def test_names(self, variants: Bench) -> None:
        (mine,) = variants.describe()[1]
        short = [entry.name[len("board-tensorrt10.3-") :] for entry in mine.platforms]
        assert short == [
            *("fp32", "fp16", "int8"),
            *("graph-fp32", "graph-fp16", "graph-int8"),
            *("transfers-fp32", "transfers-fp16", "transfers-int8"),
            *("gputime-fp32", "gputime-fp16", "gputime-int8"),
            *("dla1-fp16", "dla1-int8"),
        ]
        settings = {entry.name: dict(entry.settings) for entry in mine.platforms}
        assert settings["board-tensorrt10.3-fp32"]["tf32"] == "no"
        assert settings["board-tensorrt10.3-dla1-fp16"]["typing"] == "weak"
        assert settings["board-tensorrt10.3-graph-fp16"]["workspace_mib"] == "64"

    @pytest.mark.parametrize("kind", ["graph", "transfers", "gputime"])
    def test_run(
        self, variants: Bench, write: Callable[..., Path], tmp_path: Path, kind: str
    ) -> None:
        path = write(tmp_path / "m.onnx")
        result = measure(variants, f"board-tensorrt10.3-{kind}-fp32", path)
        assert result.outcome == "ok", result.error_message
        told = {name: float(result.conditions[name].split(";")[0]) for name in LATENCIES}
        assert KERNELS_MS < told["gpu_latency_ms"] < told["host_latency_ms"]
        assert result.conditions["latency_of"] == ("gpu" if kind == "gputime" else "host")
        if kind == "gputime":
            runs = [run for session in result.sessions for run in session.runs_ms]
            assert KERNELS_MS < min(runs) < told["host_latency_ms"]

    def test_what_fell_back_from_the_dla(
        self, variants: Bench, write: Callable[..., Path], tmp_path: Path
    ) -> None:
        path = write(tmp_path / "m.onnx", "fp16")
        result = measure(variants, "board-tensorrt10.3-dla1-fp16", path, profile=True)
        assert result.outcome == "ok", result.error_message
        assert result.conditions["on_gpu"] == "cast_in, sigmoid1, cast_out"
        rows = {layer.name: layer.device for layer in result.layers}
        assert rows == {
            "cast_in": "GPU",
            "h to nvm": "DLA 1",
            "conv0+bn0+relu0+conv1+add1": "DLA 1",
            "a1 from nvm": "DLA 1",
            "sigmoid1": "GPU",
            "cast_out": "GPU",
        }


@pytest.mark.parametrize("version", ["8.4", "8.6", "11.4"])
def test_other_versions(
    gpu_host: pytest.MonkeyPatch, write: Callable[..., Path], tmp_path: Path, version: str
) -> None:
    gpu_host.setenv("LATFARM_TENSORRT_DOUBLE", version)
    bench = make_bench(tmp_path, {"cuda_graph": True, "optimization_level": 4})
    try:
        prefix = f"board-tensorrt{version}"
        for platform, kind in (("graph-fp32", "region"), ("fp16", "fp16"), ("int8", "int8")):
            path = write(tmp_path / f"{kind}.onnx", kind)
            result = measure(bench, f"{prefix}-{platform}", path, profile=True)
            assert result.outcome == "ok", result.error_message
            names = [layer.name for layer in result.layers]
            if kind == "region":
                assert "identity0+softmax0" in names or "softmax0" in names
                assert "conv0" in names
                assert "conv1" in names
    finally:
        bench.close()
        gpu_host.setenv("LATFARM_TENSORRT_DOUBLE", "10.3")


def test_no_driver(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    try:
        (mine,) = bench.describe()[1]
        assert "install" in mine.missing
        assert "libcuda.so.1" in mine.missing
    finally:
        bench.close()
