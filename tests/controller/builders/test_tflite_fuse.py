"""Clamps are fused into the operators before them, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.tflite.build import build_tflite, tflite_report, translate
from latfarm_controller.builders.tflite.fuse import fuse_activations
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

Run = Callable[[bytes, Graph], list[Any]]


def codes(graph: Graph) -> list[str]:
    return [operator.code for operator in fuse_activations(translate(graph)).operators]


def block(clamp: Callable[[GraphBuilder, str], str]) -> Graph:
    b = GraphBuilder("block")
    x = clamp(b, b.conv(b.input((1, 8, 16, 16)), 16, 3, bias=True))
    x = clamp(b, b.batch_norm(b.depthwise(x, 3)))
    x = clamp(b, b.add(x, b.conv(x, 16, 1)))
    x = clamp(b, b.max_pool(x, 2))
    return b.build([clamp(b, b.fc(b.flatten(b.global_avg_pool(x)), 4))])


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize(
    "clamp",
    [
        lambda b, x: b.relu(x),
        lambda b, x: b.relu6(x),
        lambda b, x: b.clip(x, -1.0, 1.0),
    ],
    ids=["relu", "relu6", "-1..1"],
)
def test_every_clamp_is_drawn_in_and_the_result_stays(
    clamp: Callable[[GraphBuilder, str], str], dtype: str, run_onnx: Run, lite: Any
) -> None:
    graph = block(clamp)
    assert not [code for code in codes(graph) if code.startswith("RELU")], "as fp32"
    model = lite(build_tflite(graph, dtype))
    assert Counter(model.operators())["CONV_2D"] == 2
    expected, found = run_onnx(build_onnx(graph), graph)[0], model.run(graph)[0]
    error = np.abs(expected - found).max() / np.abs(expected).max()
    assert error < (1e-5 if dtype == "fp32" else 0.05)


def test_xnnpack_takes_a_quantised_block_whole(lite: Any) -> None:
    b = GraphBuilder("mobile")
    x = b.relu6(b.conv(b.input((1, 16, 16, 16)), 32, 1))
    graph = b.build([b.relu6(b.depthwise(x, 3))])
    details = lite(build_tflite(graph, "int8")).interpreter._get_ops_details()
    delegates = [detail for detail in details if detail["op_name"] == "DELEGATE"]
    assert len(delegates) == 1
    assert len(details) == 3, "two operators of the file, and the delegate that runs them both"


def test_what_others_read_is_left_alone() -> None:
    b = GraphBuilder("fork")
    y = b.conv(b.input((1, 8, 8, 8)), 8, 3)
    graph = b.build([b.relu(y), b.sigmoid(y)])
    assert Counter(codes(graph))["RELU"] == 1
    b = GraphBuilder("output")
    y = b.conv(b.input((1, 8, 8, 8)), 8, 3)
    assert Counter(codes(b.build([b.relu(y), y])))["RELU"] == 1


def test_only_operators_that_can_take_it() -> None:
    b = GraphBuilder("others")
    x = b.relu(b.sigmoid(b.input((1, 8, 8, 8))))
    x = b.relu(b.concat([x, x]))
    graph = b.build([b.clip(b.conv(x, 8, 1), 0.0, 1.0)])
    assert codes(graph) == ["LOGISTIC", "RELU", "CONCATENATION", "RELU", "CONV_2D", "RELU_0_TO_1"]
    b = GraphBuilder("alone")
    assert codes(b.build([b.relu(b.input((1, 8, 8, 8)))])) == ["RELU"]


def test_tensors_that_are_made_no_more_are_gone() -> None:
    graph = block(lambda b, x: b.relu(x))
    model = fuse_activations(translate(graph))
    used = {
        index for operator in model.operators for index in (*operator.inputs, *operator.outputs)
    }
    assert used - {-1} == set(range(len(model.tensors)))
    assert "RELU" not in tflite_report(graph, "fp32").operators
