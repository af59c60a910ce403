"""int8 TFLite models: integers from end to end, close to the float ones, not saturated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.builders.onnx import build_onnx
from latfarm_controller.builders.quantize import SAME_SCALE, Scale, quantize, scale_for
from latfarm_controller.builders.tflite import build_tflite, translate
from latfarm_controller.builders.tflite_file import Model
from latfarm_controller.builders.tflite_moments import Moments
from latfarm_controller.zoo.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.fusion import FusionRules
from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder

Run = Callable[[bytes, Graph], list[Any]]

# Long chains of coarse steps, and ops that jump; others are within a quarter of the largest value.
COARSE = {"attention": 0.6, "floor": 0.6, "ceil": 0.6, "round": 0.6}


def test_every_op_runs_in_int8_and_is_near(small_graph: Graph, run_onnx: Run, lite: Any) -> None:
    model = lite(build_tflite(small_graph, "int8"))
    assert {detail["dtype"] for detail in (*model.inputs, *model.outputs)} == {np.int8}
    expected = run_onnx(build_onnx(small_graph), small_graph)
    for e, f in zip(expected, model.run(small_graph), strict=True):
        assert np.abs(e - f).max() <= COARSE.get(small_graph.name, 0.25) * np.abs(e).max()


@pytest.mark.parametrize("name", zoo.families())
def test_networks_run_in_int8(name: str, lite: Any) -> None:
    small = zoo.find(name)[0].resolution <= 64
    graph = zoo.build(name, width=0.5, resolution=32 if small else 96)
    model = lite(build_tflite(graph, "int8"))
    assert {detail["dtype"] for detail in (*model.inputs, *model.outputs)} == {np.int8}
    assert np.isfinite(model.run(graph)[0]).all()


# Networks that end in logits, where a correlation means something.
@pytest.mark.parametrize(
    "name", ["mobilenet-v2", "resnet18", "regnetx-400mf", "shufflenet-v2", "vovnet27-slim"]
)
def test_logits_follow_the_float_model(name: str, run_onnx: Run, lite: Any) -> None:
    graph = zoo.build(name, resolution=96)
    expected = run_onnx(build_onnx(graph), graph)[0].reshape(-1)
    model = lite(build_tflite(graph, "int8"))
    found = model.run(graph)[0].reshape(-1)
    assert np.corrcoef(expected, found)[0, 1] > 0.85
    raw = model.interpreter.get_tensor(model.outputs[0]["index"])
    assert np.mean((raw == -128) | (raw == 127)) < 0.05
    assert len(np.unique(raw)) > 20


def test_real_networks_run_in_int8(light_models: dict[str, Path], lite: Any) -> None:
    for name in ("inception_v1", "shufflenet", "squeezenet"):
        graph = read_onnx(light_models[name])
        lite(build_tflite(graph, "int8")).run(graph)


def test_kernels_run_in_int8(lite: Any) -> None:
    for kernel in KernelPrior(seed=6, max_bytes=3_000_000).draw(40, FusionRules.none()):
        assert lite(build_tflite(kernel.graph, "int8")).run(kernel.graph), kernel.type


def quantised(name: str) -> Model:
    return quantize(translate(zoo.build(name, resolution=96)))


def test_weights_are_symmetric_per_channel_and_biases_match() -> None:
    model = quantised("mobilenet-v2")
    seen: Counter[str] = Counter()
    for operator in model.operators:
        if operator.code not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            continue
        data, weight, bias = (model.tensors[index] for index in operator.inputs)
        assert weight.data is not None
        assert weight.scales is not None
        assert bias.scales is not None
        assert data.scales is not None
        assert weight.data.dtype == np.int8
        assert weight.data.min() >= -127
        assert weight.zero_point == 0
        assert bias.dtype == "int32"
        assert np.allclose(bias.scales, weight.scales * data.scales[0], rtol=1e-6)
        axis = 3 if operator.code == "DEPTHWISE_CONV_2D" else 0
        channels = 1 if operator.code == "FULLY_CONNECTED" else weight.shape[axis]
        assert len(weight.scales) == channels
        peaks = np.abs(weight.data.astype(int)).max(
            axis=tuple(a for a in range(weight.data.ndim) if a != axis)
        )
        assert (peaks == 127).all() or channels == 1
        seen[operator.code] += 1
    assert min(seen.values()) > 0
    assert len(seen) == 3


def test_no_float_is_left_where_integers_can_do() -> None:
    for name in ("mobilenet-v3-small", "efficientnet-b0", "shufflenet-v2", "vovnet27-slim"):
        model = quantised(name)
        assert {tensor.dtype for tensor in model.tensors} <= {"int8", "int32"}, name


def test_ops_without_integer_kernels_stay_float_between_conversions() -> None:
    b = GraphBuilder("lrn")
    graph = b.build([b.relu(b.lrn(b.conv(b.input((1, 4, 8, 8)), 8, 3), 5))])
    codes = [operator.code for operator in quantize(translate(graph)).operators]
    assert codes == [
        "CONV_2D",
        "DEQUANTIZE",
        "LOCAL_RESPONSE_NORMALIZATION",
        "QUANTIZE",
        "RELU",
    ]


def test_joins_and_pools_agree_on_one_scale() -> None:
    for name in ("vovnet27-slim", "squeezenet", "synthetic@9"):
        model = quantised(name)
        for operator in model.operators:
            if operator.code in SAME_SCALE:
                tensors = [model.tensors[i] for i in (*operator.inputs, *operator.outputs)]
                scales = {
                    (float(t.scales[0]), t.zero_point) for t in tensors if t.scales is not None
                }
                assert len(scales) == 1, operator.code


def test_prescribed_scales_are_converted_before_a_join(run_onnx: Run, lite: Any) -> None:
    b = GraphBuilder("join")
    x = b.input((1, 4, 6, 6))
    graph = b.build([b.concat([b.reshape(b.sigmoid(x), (1, 4, 6, 6)), b.mul(x, x)])])
    model = quantize(translate(graph))
    assert "QUANTIZE" in [operator.code for operator in model.operators]
    expected = run_onnx(build_onnx(graph), graph)[0]
    found = lite(build_tflite(graph, "int8")).run(graph)[0]
    assert np.abs(expected - found).max() < 0.05 * np.abs(expected).max()


def test_weights_are_in_the_file_once() -> None:
    graph = zoo.build("resnet18", resolution=96)
    parameters = sum(weight.type.elements for weight in graph.weights.values())
    assert len(build_tflite(graph, "int8")) < 1.1 * parameters


@given(st.floats(-50, 50), st.floats(0.01, 100))
def test_scales_hit_zero_exactly_and_span_the_range(low: float, width: float) -> None:
    found = scale_for(Moments(low + width / 2, width / 8, low, low + width))
    assert -128 <= found.zero <= 127
    assert found.integers(np.array([0.0]))[0] == found.zero
    for end in (low, low + width):
        back = found.value * (float(found.integers(np.array([end]))[0]) - found.zero)
        assert abs(back - end) <= 1.01 * found.value


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_rounding_is_within_half_a_step(values: list[float]) -> None:
    scale = Scale(6 / 255, 0)
    back = scale.value * scale.integers(np.array(values)).astype(np.float64)
    assert np.abs(back - np.array(values)).max() <= 0.5 * scale.value + 1e-9
