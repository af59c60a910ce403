"""int8 TFLite models compute in integers, are close to the float models, and do not saturate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.builders.noise import Weights
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.tflite.build import build_tflite, translate
from latfarm_controller.builders.tflite.file import TfliteModel, serialise
from latfarm_controller.builders.tflite.moments import Moments
from latfarm_controller.builders.tflite.quantize import SAME_SCALE, quantize
from latfarm_controller.builders.tflite.ranges import measured_ranges, sample
from latfarm_controller.builders.tflite.scales import QuantizationScale, scale_for
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules

Run = Callable[[bytes, Graph], list[Any]]

# Largest accepted error, relative to the largest value, of the graphs that quantise badly: a long
# chain of roundings (attention), and functions with steps. All other graphs must stay within 0.25.
COARSE = {"attention": 0.6, "floor": 0.6, "ceil": 0.6, "round": 0.6}


def test_every_op_runs_in_int8_and_is_near(small_graph: Graph, run_onnx: Run, lite: Any) -> None:
    model = lite(build_tflite(small_graph, "int8"))
    assert {detail["dtype"] for detail in (*model.inputs, *model.outputs)} == {np.int8}
    expected = run_onnx(build_onnx(small_graph), small_graph)
    for e, f in zip(expected, model.run(small_graph), strict=True):
        assert np.abs(e - f).max() <= COARSE.get(small_graph.name, 0.25) * np.abs(e).max()


def decibels(expected: list[Any], found: list[Any]) -> float:
    """Return the signal-to-quantisation-noise ratio over all outputs, in decibels."""
    y, q = (
        np.concatenate([x.reshape(-1).astype(np.float64) for x in xs]) for xs in (expected, found)
    )
    return float(10 * np.log10(np.square(y).sum() / np.square(y - q).sum()))


NETWORKS = (
    *("alexnet", "mobilenet-v2", "mobilenet-v3-large", "efficientnet-b0", "shufflenet-v2"),
    *("resnet50", "regnety-200mf", "googlenet", "densenet121", "xception", "vovnet27-slim"),
    *("retinanet-r34", "vit-tiny", "mobilevit-xxs", "bert-tiny"),
    *("deit-tiny", "swin-tiny", "convnext-atto", "efficientformer-l1", "t5-tiny"),
)


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_networks_keep_twenty_decibels(
    name: str, small_network: Callable[[str], Graph], run_onnx: Run, lite: Any
) -> None:
    graph = small_network(name)
    expected = run_onnx(build_onnx(graph), graph)
    model = lite(build_tflite(graph, "int8"))
    assert decibels(expected, model.run(graph)) >= 20
    raw = model.interpreter.get_tensor(model.outputs[0]["index"])
    assert raw.dtype == np.int8
    if zoo.find(name)[0].task == "classification":  # outputs of a sigmoid may well be 0 or 1
        assert np.mean((raw == -128) | (raw == 127)) < 0.05
    assert len(np.unique(raw)) > 20


def norm_behind(graph: Graph, tensor: str) -> bool:
    """Return whether a batch norm comes after this tensor, directly or behind other nodes."""
    return any(
        reader.op == "BatchNormalization" or any(norm_behind(graph, t) for t in reader.outputs)
        for reader in graph.consumers.get(tensor, ())
    )


@pytest.mark.parametrize("name", ["yolov5n", "yolov8n"])
def test_heads_of_detectors_keep_twenty_decibels(
    name: str, small_network: Callable[[str], Graph], run_onnx: Run, lite: Any
) -> None:
    """Compare the tensors before they are decoded.

    After decoding, boxes and scores share one scale of 640 pixels.
    """
    graph = small_network(name)
    convs = (node.outputs[0] for node in graph.nodes if node.op == "Conv")
    last = [t for t in convs if not norm_behind(graph, t)]
    # The convolution in the decoding of YOLOv8 has one channel; it is no head.
    heads = [t for t in last if graph.type_of(t).shape[1] > 1]
    assert len(heads) == (3 if name == "yolov5n" else 6)
    graph = replace(graph, outputs=tuple(heads))
    expected = run_onnx(build_onnx(graph), graph)
    for y, q in zip(expected, lite(build_tflite(graph, "int8")).run(graph), strict=True):
        assert decibels([y], [q]) >= 20


@pytest.mark.parametrize("gain", [0.1, 30.0])
def test_ranges_come_from_the_users_own_weights(gain: float, run_onnx: Run, lite: Any) -> None:
    b = GraphBuilder("own")
    x = b.relu(b.conv(b.input((1, 3, 24, 24)), 16, 3, 2, bias=True))
    graph = b.build([b.fc(b.flatten(b.global_avg_pool(x)), 10)])
    noise = Weights(graph)
    kernel = next(node for node in graph.nodes if node.op == "Conv").inputs[1]
    own = {kernel: noise.array(kernel) * np.float32(gain)}
    expected = run_onnx(build_onnx(graph, "fp32", own), graph)
    assert decibels(expected, lite(build_tflite(graph, "int8", own)).run(graph)) > 25
    assert decibels(expected, lite(build_tflite(graph, "int8")).run(graph)) < 5
    with pytest.raises(BuildError, match="is no weight of it"):
        build_tflite(graph, "int8", {"elsewhere": own[kernel]})


def test_real_networks_run_in_int8(light_models: dict[str, Path], lite: Any) -> None:
    for name in ("inception_v1", "shufflenet", "squeezenet"):
        graph = read_onnx(light_models[name])
        lite(build_tflite(graph, "int8")).run(graph)


def test_kernels_run_in_int8(lite: Any) -> None:
    for kernel in KernelPrior(seed=6, max_bytes=3_000_000).draw(40, FusionRules.none()):
        assert lite(build_tflite(kernel.graph, "int8")).run(kernel.graph), kernel.type


def quantised(name: str) -> TfliteModel:
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
        assert len(weight.scales) == weight.shape[axis]
        peaks = np.abs(weight.data.astype(int)).max(
            axis=tuple(a for a in range(weight.data.ndim) if a != axis)
        )
        assert (peaks == 127).all()
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


def test_a_range_that_grew_beyond_float32_is_taken_for_its_whole() -> None:
    for low, high in ((0.0, float("inf")), (float("-inf"), float("inf")), (-1e300, 0.0)):
        found = scale_for(Moments(0.0, 1.0, low, high))
        assert 1e35 < found.value < 1e37
        assert found.zero == pytest.approx(-128 if low == 0 else 127 if high == 0 else 0, abs=3)


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
    scale = QuantizationScale(6 / 255, 0)
    back = scale.value * scale.integers(np.array(values)).astype(np.float64)
    assert np.abs(back - np.array(values)).max() <= 0.5 * scale.value + 1e-9


def test_what_a_rectifier_cuts_off_takes_no_part_of_the_range() -> None:
    b = GraphBuilder("cut")
    graph = b.build([b.relu6(b.conv(b.input((1, 3, 8, 8)), 8, 3))])
    model = quantize(translate(graph))
    before, after = (model.tensors[operator.outputs[0]] for operator in model.operators)
    assert before.scales == after.scales
    assert before.zero_point == after.zero_point == -128


def test_masks_made_from_integers_stay_exact() -> None:
    b = GraphBuilder("mask")
    x, mask = b.input((1, 4, 16)), b.input((1, 1, 16), "int64")
    away = b.mul(
        b.sub(b.scalar_like(x, 1.0), b.op("Cast", [mask], {"to": 1})), b.scalar_like(x, -1e4)
    )
    model = quantize(translate(b.build([b.softmax(b.add(x, away))])))
    assert [operator.code for operator in model.operators] == [
        "CAST",
        "SUB",
        "MUL",
        "QUANTIZE",
        "ADD",
        "SOFTMAX",
    ]


def test_measured_ranges_hold_what_activations_reach(lite: Any) -> None:
    b = GraphBuilder("ranges")
    graph = b.build([b.fc(b.flatten(b.relu(b.conv(b.input((1, 3, 16, 16)), 8, 3))), 40)])
    model = translate(graph)
    inputs = [data.transpose(0, 2, 3, 1) for data in sample(graph).values()]
    found = measured_ranges(model, inputs, skipped={"RESHAPE"})
    spans = {model.tensors[i].name: span for i, span in enumerate(found) if span is not None}
    assert spans["input"] == (-3.0, 3.0)
    assert spans[graph.nodes[1].outputs[0]][0] == 0.0
    assert not any(name.startswith("flatten") for name in spans)
    y = lite(serialise(model)).run(graph)[0]
    low, high = spans[graph.outputs[0]]
    assert low < y.min() < y.max() < high


def test_a_model_that_does_not_run_is_named() -> None:
    broken = TfliteModel("broken")
    broken.inputs = [broken.tensor("x", (1, 4), "float32")]
    broken.outputs = [broken.tensor("y", (1, 4), "float32")]
    broken.operator("LOGICAL_NOT", broken.inputs, broken.outputs)
    with pytest.raises(BuildError, match="broken: ranges cannot be measured"):
        measured_ranges(broken, [np.zeros((1, 4), np.float32)])
