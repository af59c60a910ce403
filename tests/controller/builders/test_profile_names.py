"""Layers of a profile are named after the nodes of the graph that was built."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_agent.runtimes.base import Job
from latfarm_agent.runtimes.tflite.runtime import TfliteRuntime
from latfarm_controller.builders import build
from latfarm_predictors.graph.builder import GraphBuilder


def test_what_litert_computes_in_floating_point_keeps_its_nodes_name(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert.interpreter")
    b = GraphBuilder("lrn")
    x = b.input((1, 16, 24, 24))
    graph = b.build([b.max_pool(b.lrn(b.max_pool(x, 3, 2, "same"), 5), 3, 2, "same")])
    model = tmp_path / "m.tflite"
    model.write_bytes(build(graph, "tflite", "int8"))
    layers = TfliteRuntime(1).profile(Job(model, {"delegate": "xnnpack"}, "int8", tmp_path), 4)
    by_op = {layer.op: layer.name for layer in layers}
    (norm,) = [node.name for node in graph.nodes if node.op == "LRN"]
    assert by_op["LocalResponseNormalization"] == norm
    # The layer that quantises the result must not have the same name as the normalisation.
    assert by_op["Quantize"].startswith(f"{norm}@")
    assert by_op["Dequantize"] not in {node.name for node in graph.nodes}
