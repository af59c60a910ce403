"""Each form that an op has in some opset is read as the graph that the builder makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from latfarm_predictors.errors import DynamicShapeError, UnsupportedOpError
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.testing.graphs import graphs
from latfarm_predictors.testing.onnx_files import write

from tests.predictors.frontends.op_forms import (
    SAME,
    Step,
    X,
    built,
    i64,
    one,
    read,
)


@pytest.mark.parametrize("name", SAME)
def test_a_form_of_an_op_is_read_as_the_graph_of_the_builder(name: str, tmp_path: Path) -> None:
    opset, steps, weights, make = SAME[name]
    graph, expected = read(tmp_path, opset, steps, weights), built(make)
    assert [n.op for n in graph.nodes] == [n.op for n in expected.nodes]
    assert hash_of(graph) == hash_of(expected)


@given(graph=graphs())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_graph_survives_writing_and_reading(graph: Graph, tmp_path: Path) -> None:
    kept = [n for n in graph.nodes if n.op != "Dropout"]
    assume(kept)  # a network of Dropout only is refused
    again = read_onnx(write(graph, tmp_path / "model.onnx"))
    if len(kept) == len(graph.nodes):
        assert hash_of(again) == hash_of(graph)
    assert len(again.nodes) == len(kept)


def test_values_of_constants_are_kept_and_those_of_weights_are_not(tmp_path: Path) -> None:
    steps: list[Step] = [
        ("Conv", ["x", "w", "b"], ["c"], {}),
        ("Clip", ["c", "lo", "hi"], ["y"], {}),
    ]
    weights = {
        "w": np.ones((1, 4, 1, 1), np.float32),
        "b": np.ones(1, np.float32),
        "lo": np.float32(0),
        "hi": np.float32(6),
    }
    graph = read(tmp_path, 13, steps, weights)
    assert [w.values for w in graph.weights.values()] == [None, None, (0.0,), (6.0,)]


def test_names_of_the_file_are_kept_and_made_unique(tmp_path: Path) -> None:
    steps: list[Step] = [
        ("Relu", ["x"], ["a"], {"name": "act"}),
        ("Relu", ["a"], ["b"], {"name": "act"}),
        ("HardSwish", ["b"], ["c"], {"name": "swish"}),
        ("Tanh", ["c"], ["y"], {}),
    ]
    graph = read(tmp_path, 14, steps)
    assert [n.name for n in graph.nodes] == ["act", "act_2", "swish", "swish_2", "Tanh_3"]


def test_standard_ops_without_a_rule_of_ours_are_typed_by_onnx(tmp_path: Path) -> None:
    graph = read(
        tmp_path,
        13,
        one("Einsum", "w", equation="nchw,cd->ndhw"),
        {"w": np.ones((4, 5), np.float32)},
    )
    assert graph.type_of(graph.outputs[0]).shape == (2, 5, 6, 6)
    with pytest.raises(UnsupportedOpError, match="no static type"):
        read(tmp_path, 13, one("NonZero"))


def test_functions_are_inlined(tmp_path: Path) -> None:
    ids = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("own", 1)]
    function = onnx.helper.make_function(
        "own", "Twice", ["a"], ["b"], [onnx.helper.make_node("Add", ["a", "a"], ["b"])], ids[:1]
    )
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Twice", ["x"], ["y"], domain="own")
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, X)], [value("y", 1, X)])
    model = onnx.helper.make_model(graph, functions=[function], opset_imports=ids)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert hash_of(read_onnx(path)) == hash_of(built(lambda b, x: b.add(x, x)))


RELU = one("Relu")


def test_open_dimensions_are_bound(tmp_path: Path) -> None:
    expected = hash_of(built(lambda b, x: b.relu(x)))
    assert hash_of(read(tmp_path, 13, RELU, None, ("n", 4, 6, 6), batch=2)) == expected
    assert (
        hash_of(read(tmp_path, 13, RELU, None, ("n", 4, None, None), shapes={"x": X})) == expected
    )
    assert hash_of(read(tmp_path, 13, RELU, None, (1, 4, 6, 6), batch=2)) == expected
    assert hash_of(read(tmp_path, 13, RELU, None, (1, 4, 9, 9), shapes={"x": X})) == expected


@pytest.mark.parametrize(
    ("shape", "batch", "remedy"),
    [
        (("n", 4, 6, 6), None, "--batch 1"),
        ((None, 4, 6, 6), None, "--batch 1"),
        (("n", 4, "h", "w"), None, "--shape x:1,4,224,224"),
        (("n", 4, "h", 6), 2, "--shape x:2,4,224,6"),
        (None, 2, "--shape x:1,3,224,224"),
    ],
)
def test_open_dimensions_name_input_and_remedy(
    shape: Any, batch: int | None, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(DynamicShapeError) as caught:
        read(tmp_path, 13, RELU, None, shape, batch=batch)
    message = str(caught.value)
    assert remedy in message
    assert "'x'" in message
    assert "model.onnx" in message


def test_a_batch_written_into_a_reshape_is_replaced(tmp_path: Path) -> None:
    steps, weights = one("Reshape", "s"), {"s": i64(2, 144)}
    graph = read(tmp_path, 13, steps, weights, batch=5)
    assert graph.type_of(graph.outputs[0]).shape == (5, 144)
