"""Vela as a platform: the conformance suite, its answers about networks, and how it may fail."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.runtimes.base import Job, RuntimeFailure
from latfarm_agent.runtimes.vela.runtime import Target, VelaRuntime
from latfarm_agent.testing.runtime_suite import QUICK, RuntimeSuite, changed, measure
from latfarm_agent.testing.tflite_samples import SampleWriter, samples
from latfarm_agent.worker.pool import WorkerLimits

REFERENCE = {"vela": "latfarm_agent.runtimes.vela.runtime:VelaRuntime"}
U65, U55 = VelaRuntime.targets["ethosu65-256"], VelaRuntime.targets["ethosu55-128"]


def sample(directory: Path, name: str) -> Path:
    """Write one of the sample TFLite files."""
    pytest.importorskip("ai_edge_litert.schema_py_generated")
    path = directory / name
    path.write_bytes(samples()[name])
    return path


def tiled(directory: Path, times: int) -> Path:
    """Write a file of a kilobyte whose constant becomes `times` rows of 64 bytes when compiled."""
    pytest.importorskip("ai_edge_litert.schema_py_generated")
    w = SampleWriter("int8")
    rows = w.op("TILE", [w.weight(1, 64), w.ints(times, 1)], [times, 64], "TileOptions")
    x = w.input([times, 64])
    w.output(w.op("ADD", [x, rows], [times, 64], "AddOptions"))
    path = directory / "tiled"
    path.write_bytes(w.finish())
    return path


class TestVela(RuntimeSuite):
    runtime = "vela"
    model_format = "tflite"

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        return host_bench(BenchOptions("board", None, directory, runtimes=REFERENCE, limits=limits))

    def make_model(self, directory: Path) -> Path:
        return sample(directory, "cnn-int8")

    def make_unsupported(self, directory: Path) -> Path | None:
        return sample(directory, "upsampling-fp32")

    def make_greedy(self, directory: Path) -> Path | None:
        return tiled(directory, 300_000_000)

    def make_lacking(self, directory: Path) -> Bench | None:
        folder = directory / "shadow"
        folder.mkdir()
        (folder / "ethosu.py").write_text("raise ImportError('not on this board')\n")
        return host_bench(
            BenchOptions("board", None, directory, runtimes=REFERENCE, search_path=[folder])
        )

    def test_platforms(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        (mine,) = bench.describe()[1]
        short = ".".join(mine.version.split(".")[:2])
        first, second = mine.platforms
        assert first.name == platform == f"vela{short}-ethosu65-256-int8"
        assert second.name == f"vela{short}-ethosu55-128-int8"
        assert not first.real_time
        assert first.settings["system_config"] == "Ethos_U65_Client_Server"
        other = host_bench(BenchOptions("another", "hardware", tmp_path, runtimes=REFERENCE))
        try:
            (elsewhere,) = other.describe()[1]
        finally:
            other.close()
        assert [each.fingerprint for each in elsewhere.platforms] == [
            first.fingerprint,
            second.fingerprint,
        ]

    def test_same_answer_each_time(self, bench: Bench, model: Path) -> None:
        names = [each.name for each in bench.describe()[1][0].platforms]
        found: list[set[float]] = [set(), set()]
        settings = changed(QUICK, cold_runs=2)
        for _ in range(2):
            bench.restart_workers()
            for name, runs in zip(names, found):
                result = measure(bench, name, model, settings=settings)
                (compile_ms,) = {session.compile_ms for session in result.sessions}
                assert 0 < compile_ms < result.sessions[0].load_ms
                for session in result.sessions:
                    runs.update(session.runs_ms, session.cold_ms)
        (small,), (large,) = found
        assert 0 < small < large

    def test_layers_sum_to_the_estimate(self, bench: Bench, platform: str, model: Path) -> None:
        result = measure(bench, platform, model, profile=True)
        total_ms = sum(layer.latency_ms for layer in result.layers)
        assert total_ms == pytest.approx(result.sessions[0].runs_ms[0], rel=1e-9)
        ops = [layer.op for layer in result.layers]
        assert ops == [
            "Conv2D",
            "DepthwiseConv2D",
            "MaxPool",
            "AvgPool",
            "FullyConnected",
            "Softmax",
        ]
        assert {layer.device for layer in result.layers} == {"ethos-u65-256"}
        assert "on_cpu" not in result.conditions

    def test_says_what_stays_on_the_cpu(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        result = measure(bench, platform, sample(tmp_path, "math-int8"), profile=True)
        assert result.outcome == "ok", result.error_message
        left = {layer.op for layer in result.layers if layer.device == "cpu"}
        assert {"TopKV2", "LogSoftmax"} <= left
        assert all(layer.latency_ms == 0 for layer in result.layers if layer.op in left)
        assert result.conditions["latency_of"].startswith("NPU alone")
        assert all(op in result.conditions["on_cpu"] for op in left)
        total_ms = sum(layer.latency_ms for layer in result.layers)
        assert total_ms == pytest.approx(result.sessions[0].runs_ms[0], rel=1e-9)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("cnn-fp32", "nothing of it runs on the NPU; on the CPU: Conv2D 't@0', "),
            ("branches-fp32", "5 subgraphs"),
            ("recurrent-fp32", "IFM must be INT8"),
        ],
    )
    def test_unsupported_networks(
        self, bench: Bench, platform: str, tmp_path: Path, name: str, says: str
    ) -> None:
        result = measure(bench, platform, sample(tmp_path, name))
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_UNSUPPORTED")
        assert says in result.error_message
        assert "\n" not in result.error_message


def job(path: Path, scratch: Path, target: Target = U65) -> Job:
    return Job(path, target.settings, "int8", scratch)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def built(name: str, **scale: object) -> tuple[Any, bytes]:
    """Build a network of the zoo, and its int8 file."""
    zoo = pytest.importorskip("latfarm_controller.zoo")
    builders = pytest.importorskip("latfarm_controller.builders")
    graph = zoo.build(name, **scale)
    return graph, builders.build(graph, "tflite", "int8")


@pytest.mark.parametrize(
    ("name", "scale", "low_ms", "high_ms"),
    [
        ("mobilenet-v1", {"resolution": 96, "width": 0.25}, 0.05, 1.0),
        ("mnasnet-a1", {"resolution": 64, "width": 0.5}, 0.05, 2.0),
    ],
)
def test_networks(
    tmp_path: Path, scratch: Path, name: str, scale: dict[str, Any], low_ms: float, high_ms: float
) -> None:
    pytest.importorskip("ethosu.vela.vela")
    graph, data = built(name, **scale)
    path = tmp_path / "network"
    path.write_bytes(data)
    runtime = VelaRuntime()
    prepared = runtime.prepare(job(path, scratch))
    latency_ms = runtime.run()
    assert latency_ms is not None
    assert low_ms < latency_ms < high_ms
    assert prepared.compile_ms > 0
    assert "on_cpu" not in prepared.conditions
    layers = runtime.profile(job(path, scratch), 3)
    assert sum(layer.latency_ms for layer in layers) == pytest.approx(latency_ms, rel=1e-9)
    covered = [part for layer in layers for part in layer.name.split("+")]
    assert len(covered) == len(set(covered))
    made = {tensor for node in graph.nodes for tensor in node.outputs}
    own = [part for part in covered if part in made]
    assert len(own) >= 0.9 * len(covered)
    assert any(layer.op.startswith("Conv2D") for layer in layers)
    assert not any("Relu" in layer.op for layer in layers), "the file holds no clamp of its own"
    copy = tmp_path / "copy"
    copy.write_bytes(data)
    assert runtime.prepare(job(copy, scratch)).compile_ms == prepared.compile_ms
    assert not list(scratch.iterdir())
    slower = VelaRuntime()
    slower.prepare(job(path, scratch, U55))
    assert (slower.run() or 0.0) > 2 * latency_ms


def test_run_needs_a_model(tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("ethosu.vela.vela")
    runtime = VelaRuntime()
    with pytest.raises(RuntimeFailure, match="no model was prepared"):
        runtime.run()
    runtime.prepare(job(sample(tmp_path, "cnn-int8"), scratch))
    with pytest.raises(RuntimeFailure):
        runtime.prepare(job(sample(tmp_path, "cnn-fp32"), scratch))
    with pytest.raises(RuntimeFailure, match="no model was prepared"):
        runtime.run()


OWN_CONFIG = """\
[System_Config.Own]
core_clock={core_clock}
axi0_port=Sram
axi1_port=Dram
Sram_clock_scale=1.0
Sram_burst_length=32
Sram_read_latency=32
Sram_write_latency=32
Sram_max_reads=16
Sram_max_writes=16
Dram_clock_scale=0.5
Dram_burst_length=128
Dram_read_latency=500
Dram_write_latency=250
Dram_max_reads=24
Dram_max_writes=12

[Memory_Mode.Own_Mode]
const_mem_area=Axi1
arena_mem_area=Axi1
cache_mem_area=Axi0
arena_cache_size=262144
"""


def test_other_targets(tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("ethosu.vela.vela")
    files = {clock: tmp_path / f"{clock}.ini" for clock in ("1e9", "250e6")}
    for clock, file in files.items():
        file.write_text(OWN_CONFIG.format(core_clock=clock))

    class Boards(VelaRuntime):
        targets: ClassVar = {
            "fast": Target("ethos-u65-256", "Own", "Own_Mode", str(files["1e9"])),
            "slow": Target("ethos-u65-256", "Own", "Own_Mode", str(files["250e6"])),
            "nonsense": Target("ethos-u65-256", "No_Such_System", "Dedicated_Sram_384KB"),
        }

    runtime = Boards()
    fast, slow, nonsense = runtime.describe().platforms
    assert slow.name.endswith("-slow-int8")
    path = sample(tmp_path, "cnn-int8")
    found = []
    for platform in (fast, slow):
        runtime.prepare(Job(path, platform.settings, "int8", scratch))
        found.append(runtime.run() or 0.0)
    assert found[1] == pytest.approx(4 * found[0], rel=1e-9)
    with pytest.raises(RuntimeFailure, match="No_Such_System") as caught:
        runtime.prepare(Job(path, nonsense.settings, "int8", scratch))
    assert caught.value.code == "RUNTIME_MISSING"


def test_old_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ethosu.vela.vela")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "4.5.0")
    with pytest.raises(RuntimeFailure, match=r"4\.5\.0 is too old.*install") as caught:
        VelaRuntime().describe()
    assert caught.value.code == "RUNTIME_MISSING"


def ends(error: BaseException) -> Callable[[Sequence[str]], int]:
    def main(arguments: Sequence[str]) -> int:
        raise error

    return main


def says(text: str, status: int) -> Callable[[Sequence[str]], int]:
    def main(arguments: Sequence[str]) -> int:
        print(text)
        return status

    return main


@pytest.mark.parametrize(
    ("main", "code", "message"),
    [
        (ends(MemoryError()), "OUT_OF_MEMORY", "Vela: MemoryError"),
        (ends(RuntimeError("std::bad_alloc")), "OUT_OF_MEMORY", "Vela: std::bad_alloc"),
        (ends(RuntimeError("Compilation\n  failed")), "MODEL_FAILED", "Vela: Compilation failed"),
        (
            ends(RuntimeError("Non-passthrough operation (Conv2D) could not run on NPU")),
            "MODEL_UNSUPPORTED",
            "Vela: Non-passthrough operation (Conv2D) could not run on NPU",
        ),
        (ends(SystemExit(2)), "MODEL_FAILED", "Vela ended with status 2"),
        (says("Error: no\nway", 1), "MODEL_FAILED", "Vela ended with status 1: Error: no way"),
        (says("", 0), "MODEL_FAILED", "Vela left no report"),
    ],
)
def test_how_vela_may_end(
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    main: object,
    code: str,
    message: str,
) -> None:
    pytest.importorskip("ethosu.vela.vela")
    monkeypatch.setattr("ethosu.vela.vela.main", main)
    with pytest.raises(RuntimeFailure) as caught:
        VelaRuntime().prepare(job(sample(tmp_path, "cnn-int8"), scratch))
    assert (caught.value.code, caught.value.message) == (code, message)
    assert not list(scratch.iterdir())
    assert capfd.readouterr().out == ""
