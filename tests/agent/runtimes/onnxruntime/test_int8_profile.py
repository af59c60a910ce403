"""Profiles of int8 networks on the CPU cover every node once, and name their conversions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure

zoo = pytest.importorskip("latfarm_controller.zoo", reason="networks come from the controller")
builders = pytest.importorskip("latfarm_controller.builders")

REFERENCE = {"onnxruntime": "latfarm_agent.runtimes.onnxruntime.runtime:OnnxRuntime"}


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v2"])
def test_all_nodes_are_covered_once(name: str, tmp_path: Path) -> None:
    graph = zoo.build(name, width=0.25, resolution=64)
    model = tmp_path / "model"
    model.write_bytes(builders.build(graph, "onnx", "int8"))
    bench = host_bench(BenchOptions("board", "hw", tmp_path, runtimes=REFERENCE, limits=PATIENT))
    try:
        (mine,) = bench.describe()[1]
        (platform,) = [entry.name for entry in mine.platforms if "-int8-" in entry.name]
        one = changed(QUICK, sessions=1)
        result = measure(bench, platform, model, settings=one, profile=True)
    finally:
        bench.close()
    assert result.outcome == "ok", result.error_message
    covered = Counter(part for layer in result.layers for part in layer.name.split("+"))
    # The builder folds a batch-norm into its convolution before it writes the file.
    wanted = {node.name for node in graph.nodes if node.op != "BatchNormalization"}
    assert wanted <= set(covered)
    assert {count for part, count in covered.items() if part in wanted} == {1}
    ops = Counter(layer.op for layer in result.layers)
    convolutions = sum(node.op == "Conv" for node in graph.nodes)
    assert sum(count for op, count in ops.items() if op.startswith("QLinearConv")) == convolutions
    for layer in result.layers:
        alone = layer.op in ("QuantizeLinear", "DequantizeLinear")
        assert alone == ("QuantizeLinear" in layer.name or "DequantizeLinear" in layer.name)
    assert (ops["QuantizeLinear"], ops["DequantizeLinear"]) == (1, 1)
