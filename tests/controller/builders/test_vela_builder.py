"""Vela on the controller: what it compiles, what it reports, and what it refuses."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from latfarm_agent.runtimes.tflite.vela import estimate_of as read_by_the_agent
from latfarm_agent.runtimes.tflite_format.check import check
from latfarm_controller.builders import build, dtypes_of, known_formats, vela
from latfarm_controller.errors import BuildError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

pytest.importorskip("ethosu.vela")
pytest.importorskip("ai_edge_litert")

FORMAT = "tflite-vela:ethos-u65-256"


def network(*, gather: bool = False) -> Graph:
    """Build two convolutions; with `gather`, an LRN between them that no Ethos-U supports."""
    b = GraphBuilder("small")
    x = b.relu(b.conv(b.input((1, 8, 16, 16)), 16, 3))
    if gather:
        x = b.lrn(x, 5)
    return b.build([b.relu(b.conv(x, 8, 1))])


@pytest.fixture(scope="module")
def compiled() -> bytes:
    return build(network(), FORMAT, "int8")


def test_all_of_a_network_becomes_a_command_stream(compiled: bytes) -> None:
    assert vela.on_cpu(compiled) == ()
    assert b"ethos-u" in compiled
    plain = build(network(), "tflite", "int8")
    assert b"ethos-u" not in plain
    check(compiled)


def test_the_same_graph_gives_the_same_bytes(compiled: bytes) -> None:
    assert build(network(), FORMAT, "int8") == compiled


def test_another_accelerator_is_another_file(compiled: bytes) -> None:
    other = build(network(), "tflite-vela:ethos-u55-128", "int8")
    mine, theirs = vela.estimate_of(compiled), vela.estimate_of(other)
    assert mine is not None
    assert theirs is not None
    assert 0 < mine.latency_ms < theirs.latency_ms


def test_the_estimate_is_the_one_of_the_runtime_vela(compiled: bytes, tmp_path: Path) -> None:
    from latfarm_agent.runtimes.base import Job
    from latfarm_agent.runtimes.vela.runtime import VelaRuntime

    source = tmp_path / "model.tflite"
    source.write_bytes(build(network(), "tflite", "int8"))
    runtime = VelaRuntime()
    settings = VelaRuntime.targets["ethosu65-256"].settings
    runtime.prepare(Job(source, settings, "int8", tmp_path))
    estimate = vela.estimate_of(compiled)
    assert estimate is not None
    assert estimate.latency_ms == pytest.approx(runtime.run())


def test_the_agent_reads_what_the_builder_wrote(compiled: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(compiled)
    told, estimate = read_by_the_agent(path), vela.estimate_of(compiled)
    assert estimate is not None
    assert float(told["vela_estimate_ms"]) == estimate.latency_ms
    assert told["vela_version"] == estimate.version
    assert "vela_on_cpu" not in told
    assert vela.estimate_of(b"no trailer") is None
    for spoilt in (b"", b"TFL3", compiled[:-1], compiled[:-60] + compiled[-24:]):
        path.write_bytes(spoilt)
        assert read_by_the_agent(path) == {}


def test_what_stays_on_the_cpu_is_told(tmp_path: Path) -> None:
    data = build(network(gather=True), FORMAT, "int8")
    estimate = vela.estimate_of(data)
    assert estimate is not None
    assert any("LOCAL_RESPONSE_NORMALIZATION" in name for name in estimate.on_cpu)
    assert vela.on_cpu(data) == estimate.on_cpu
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    assert "LOCAL_RESPONSE_NORMALIZATION" in read_by_the_agent(path)["vela_on_cpu"]


def test_formats_are_named() -> None:
    assert dtypes_of(FORMAT) == ("int8",)
    assert dtypes_of("tflite-vela") is None
    assert dtypes_of("tflite:x") is None
    assert dtypes_of("onnx") == ("fp32", "fp16", "int8")
    assert "tflite-vela:TARGET" in known_formats()


@pytest.mark.parametrize(
    ("model_format", "dtype", "said"),
    [
        ("tflite-vela:ethos-u99", "int8", "no accelerator 'ethos-u99'; known: ethos-u55-32"),
        ("tflite-vela", "int8", "unknown model format 'tflite-vela'; known: onnx"),
        ("tflite-vela:", "int8", "unknown model format 'tflite-vela:'"),
        (FORMAT, "fp32", "tflite-vela:ethos-u65-256 is built as int8, not 'fp32'"),
    ],
)
def test_wrong_formats_are_refused(model_format: str, dtype: str, said: str) -> None:
    with pytest.raises(BuildError, match=said):
        build(network(), model_format, dtype)


def test_without_vela_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = importlib.import_module("importlib.metadata")

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(BuildError, match=r"pip install 'latfarm-controller\[vela\]'"):
        build(network(), FORMAT, "int8")


def test_too_old_a_vela_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = importlib.import_module("importlib.metadata")
    monkeypatch.setattr(metadata, "version", lambda name: "3.12.0")
    with pytest.raises(BuildError, match=r"5\.0 or newer, 3\.12\.0 is here"):
        build(network(), FORMAT, "int8")


def test_what_vela_refuses_comes_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "build_tflite", lambda *_: b"no flatbuffer at all")
    with pytest.raises(BuildError, match="small: Vela cannot compile it for ethos-u65-256"):
        build(network(), FORMAT, "int8")


def test_one_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "TIMEOUT_S", 0.01)
    with pytest.raises(BuildError, match="did not end within"):
        build(network(), FORMAT, "int8")


def test_a_measurement_brings_the_estimate_as_a_baseline() -> None:
    from latfarm_controller.reports.facts.network_rows import vendor_baselines
    from latfarm_predictors.measurement import Measurement, Outcome

    def measured(**conditions: str) -> Measurement:
        return Measurement("r", "h", "p", "network", Outcome.OK, conditions=conditions)

    told = measured(vela_estimate_ms="3.5")
    assert vendor_baselines([measured(), told]) == {"vela_estimate": 3.5}
    assert vendor_baselines([measured(vela_estimate_ms="0.0")]) == {}
    assert vendor_baselines([]) == {}
