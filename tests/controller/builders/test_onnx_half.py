"""float16 ONNX models: they are float16 inside, float32 at the ends, and near the float32 model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.onnx.half import half
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from onnx import TensorProto

Run = Callable[[bytes, Graph], list[Any]]


def sqnr_db(expected: Any, found: Any) -> float:
    """Return the signal-to-quantisation-noise ratio in decibels."""
    signal, noise = (np.square(x, dtype=np.float64).sum() for x in (expected, expected - found))
    return float(10 * np.log10(signal / max(noise, 1e-30)))


def test_every_op_is_near_in_float16(small_graph: Graph, run_onnx: Run) -> None:
    model = build_onnx(small_graph, "fp16")
    loaded = onnx.load_from_string(model)
    onnx.checker.check_model(loaded, full_check=True)
    assert loaded.ir_version == 8
    ends = (*loaded.graph.input, *loaded.graph.output)
    assert {end.type.tensor_type.elem_type for end in ends} == {TensorProto.FLOAT}
    expected = run_onnx(build_onnx(small_graph), small_graph)
    for e, f in zip(expected, run_onnx(model, small_graph), strict=True):
        assert sqnr_db(e, f) > 55


@pytest.mark.parametrize(
    "name", ["mobilenet-v3-small", "shufflenet-v2", "bert-tiny", "yolov5n", "regnety-200mf"]
)
def test_networks_are_near_in_float16(
    name: str, small_network: Callable[[str], Graph], run_onnx: Run
) -> None:
    graph = small_network(name)
    expected = run_onnx(build_onnx(graph), graph)
    for e, f in zip(expected, run_onnx(build_onnx(graph, "fp16"), graph), strict=True):
        assert sqnr_db(e, f) > 40


def test_a_real_network_is_near_in_float16(light_models: dict[str, Path], run_onnx: Run) -> None:
    graph = read_onnx(light_models["squeezenet"])
    expected = run_onnx(build_onnx(graph), graph)[0]
    assert sqnr_db(expected, run_onnx(build_onnx(graph, "fp16"), graph)[0]) > 50


def test_weights_are_halved_and_scales_of_resize_are_not() -> None:
    b = GraphBuilder("scales")
    graph = b.build([b.resize(b.conv(b.input((1, 4, 6, 6)), 8, 3, bias=True), 2)])
    loaded = onnx.load_from_string(build_onnx(graph, "fp16"))
    kinds = {i.name: i.data_type for i in loaded.graph.initializer}
    conv, resize = (next(n for n in loaded.graph.node if n.op_type == op) for op in _TWO)
    assert [kinds[name] for name in conv.input[1:]] == [TensorProto.FLOAT16] * 2
    assert kinds[resize.input[2]] == TensorProto.FLOAT
    assert [n.op_type for n in loaded.graph.node] == ["Cast", "Conv", "Resize", "Cast"]


_TWO = ("Conv", "Resize")


def test_ops_without_float16_stay_float32_between_casts(run_onnx: Run) -> None:
    b = GraphBuilder("sums")
    x = b.relu(b.input((2, 9)))
    graph = b.build([b.relu(b.op("CumSum", [x, b.weight((), "int64", (1,))]))])
    model = build_onnx(graph, "fp16")
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    ops = [node.op_type for node in onnx.load_from_string(model).graph.node]
    assert ops == ["Cast", "Relu", "Cast", "CumSum", "Cast", "Relu", "Cast"]
    assert np.allclose(run_onnx(model, graph)[0], run_onnx(build_onnx(graph), graph)[0], atol=0.02)


def test_an_output_that_is_read_inside_too(run_onnx: Run) -> None:
    b = GraphBuilder("inside")
    x = b.conv(b.input((1, 3, 6, 6)), 4, 3)
    graph = b.build([x, b.relu(x)])
    found = run_onnx(build_onnx(graph, "fp16"), graph)
    assert np.array_equal(np.maximum(found[0], 0), found[1])


@given(st.floats(width=32, allow_nan=False))
def test_halves_are_finite_and_zero_only_where_the_value_is(value: float) -> None:
    found = float(half(np.array([value], np.float32))[0])
    assert np.isfinite(found)
    assert (found == 0) == (value == 0)
    if 1e-4 < abs(value) < 6e4:
        assert found == pytest.approx(value, rel=1e-3)
