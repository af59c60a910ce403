"""int8 ONNX models: onnxruntime computes with integers, and results are near the float model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from latfarm_controller.builders.noise import Weights, inputs
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.onnx.int8_plan import scale_for
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.frontends.onnx_quantization import is_quantised
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from onnx import TensorProto, numpy_helper

Run = Callable[[Graph, bytes], list[Any]]

# Smallest accepted signal-to-noise ratio, in decibels, of graphs that quantise badly: functions
# with steps, and an attention that does not divide its scores by sqrt(d). Others must keep 30 dB.
COARSE = {"floor": 15.0, "ceil": 15.0, "round": 15.0, "attention": 10.0}


@pytest.fixture
def fused(tmp_path: Path) -> Callable[[bytes], Counter[str]]:
    """Return a function that counts the ops of a model after onnxruntime has optimised it."""

    def optimise(model: bytes) -> Counter[str]:
        path = tmp_path / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(path).graph.node)

    return optimise


def run(graph: Graph, model: bytes) -> list[Any]:
    """Run a model in onnxruntime on one thread; return its outputs for standard normal inputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # Without it, sums of products of 8 bits are cut on x86 processors without dot products.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(None, inputs(graph, 3))]


def sqnr_db(graph: Graph, ranges: dict[str, tuple[float, float]] | None = None) -> float:
    """Return the signal-to-quantisation-noise ratio of the worst output, in decibels."""
    expected = run(graph, build_onnx(graph))
    found = run(graph, build_onnx(graph, "int8", ranges=ranges))
    return min(
        float(10 * np.log10(np.square(e, dtype=np.float64).sum() / max(noise, 1e-30)))
        for e, f in zip(expected, found, strict=True)
        for noise in (np.square(e - f, dtype=np.float64).sum(),)
    )


def test_every_op_is_valid_and_near_in_int8(small_graph: Graph) -> None:
    model = onnx.load_from_string(build_onnx(small_graph, "int8"))
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 8
    assert "QuantizeLinear" in {node.op_type for node in model.graph.node}
    assert sqnr_db(small_graph) > COARSE.get(small_graph.name, 30.0)


@pytest.mark.parametrize(
    "name",
    [
        *("squeezenet", "mobilenet-v2", "mobilenet-v3-small", "shufflenet-v2", "ghostnet"),
        *("efficientnet-b0", "resnet18", "densenet121", "googlenet", "mobileone-s0", "repvgg-a0"),
        *("regnety-200mf", "nasbench201", "yolov5n", "yolov8n", "vit-tiny", "mobilevit-xxs"),
        *("bert-tiny", "deit-tiny", "eva02-tiny", "swin-tiny", "convnext-atto"),
    ],
)
def test_logits_keep_twenty_decibels(name: str, small_network: Callable[[str], Graph]) -> None:
    assert sqnr_db(small_network(name)) > 20


def test_real_networks_keep_twenty_decibels(light_models: dict[str, Path]) -> None:
    for name in ("inception_v1", "squeezenet"):
        assert sqnr_db(read_onnx(light_models[name])) > 20


def test_onnxruntime_fuses_all_of_a_convolutional_network(
    small_network: Callable[[str], Graph], fused: Callable[[bytes], Counter[str]]
) -> None:
    for name in ("mobilenet-v2", "resnet18", "efficientnet-b0"):
        graph = small_network(name)
        ops = fused(build_onnx(graph, "int8"))
        assert ops["QLinearConv"] == sum(node.op == "Conv" for node in graph.nodes)
        assert ops["QGemm"] == 1
        assert (ops["QuantizeLinear"], ops["DequantizeLinear"]) == (1, 1)
        assert not {"Conv", "Gemm", "Relu", "Clip", "Add", "Mul", "BatchNormalization"} & {*ops}


def test_float_parts_lie_between_conversions(fused: Callable[[bytes], Counter[str]]) -> None:
    """A hard swish is computed in float; a gate is multiplied in integers."""
    b = GraphBuilder("parts")
    x = b.hard_swish(b.conv(b.input((1, 8, 9, 9)), 16, 3))
    gate = b.hard_sigmoid(b.conv(b.global_avg_pool(x), 16, 1))
    graph = b.build([b.conv(b.mul(x, gate), 8, 1)])
    ops = fused(build_onnx(graph, "int8"))
    assert ops["QLinearConv"] == 3
    assert ops["QLinearMul"] == ops["QLinearGlobalAveragePool"] == 1
    assert ops["Mul"] == 1
    assert ops["HardSigmoid"] == 2
    assert ops["QuantizeLinear"] == 3
    assert ops["DequantizeLinear"] == 4  # the swish reads its operand twice


def test_transformers_multiply_integers(
    small_network: Callable[[str], Graph], fused: Callable[[bytes], Counter[str]]
) -> None:
    graph = small_network("bert-tiny")
    ops = fused(build_onnx(graph, "int8"))
    assert ops["QLinearMatMul"] == sum(node.op == "MatMul" for node in graph.nodes)
    assert ops["MatMul"] == 0


def test_an_op_without_integer_kernel_is_built_with_its_conversions() -> None:
    b = GraphBuilder("tanh")
    graph = b.build([b.tanh(b.input((1, 8)))])
    ops = [n.op_type for n in onnx.load_from_string(build_onnx(graph, "int8")).graph.node]
    pair = ["QuantizeLinear", "DequantizeLinear"]
    assert ops == [*pair, "Tanh", *pair]


def initializers(graph: Graph) -> dict[str, Any]:
    model = onnx.load_from_string(build_onnx(graph, "int8"))
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    made = {tensor: node for node in model.graph.node for tensor in node.output}
    found: dict[str, Any] = {}
    for node in model.graph.node:
        if node.op_type == "Conv":
            parts = [made[name] for name in node.input]
            found["input"], found["weight"], found["bias"] = (
                [arrays[name] for name in part.input if name in arrays] for part in parts
            )
    return found


def test_weights_are_symmetric_by_channel_and_biases_match() -> None:
    b = GraphBuilder("conv")
    graph = b.build([b.relu(b.batch_norm(b.conv(b.input((1, 8, 9, 9)), 16, 3, bias=True)))])
    found = initializers(graph)
    whole, scales, zeros = found["weight"]
    assert not zeros.any()
    assert whole.dtype == np.int8
    assert scales.shape == (16,)
    assert (np.abs(whole).max((1, 2, 3)) == 127).all()
    bias, products = found["bias"]
    assert bias.dtype == np.int32
    step, _ = found["input"]
    assert np.allclose(products, scales * step, rtol=1e-6)
    weights = Weights(graph)
    kernel, shift = (weights.array(t) for t in graph.nodes[0].inputs[1:])
    scale, offset, mean, variance = (weights.array(t) for t in graph.nodes[1].inputs[1:])
    factor = scale / np.sqrt(variance + 1e-5)
    real = kernel * factor[:, None, None, None]
    assert np.abs(whole * scales[:, None, None, None] - real).max() <= scales.max() / 2 + 1e-6
    assert np.allclose(bias * products, (shift - mean) * factor + offset, atol=products.max())


def test_activations_are_unsigned_and_zero_is_exact() -> None:
    assert scale_for(0.0, 5.1).zero == 0
    found = scale_for(-1.0, 3.0)
    assert found.zero == 64
    assert found.value == pytest.approx(4 / 255)
    assert scale_for(2.0, 3.0) == scale_for(0.0, 3.0)
    assert scale_for(0.0, 0.0).value > 0
    b = GraphBuilder("zero")
    graph = b.build([b.relu(b.conv(b.input((1, 8, 9, 9)), 16, 3, bias=True))])
    model = onnx.load_from_string(build_onnx(graph, "int8"))
    zeros = {i.name: i for i in model.graph.initializer if i.data_type == TensorProto.UINT8}
    last = [n for n in model.graph.node if n.op_type == "QuantizeLinear"][-1]
    # A zero point of 0 clips negative values, and so it takes the place of the Relu.
    assert int(numpy_helper.to_array(zeros[last.input[2]])) == 0


def test_measured_ranges_take_the_place_of_estimates() -> None:
    b = GraphBuilder("ranges")
    graph = b.build([b.conv(b.input((1, 8, 9, 9)), 16, 3, bias=True)])
    good = sqnr_db(graph)
    assert sqnr_db(graph, {graph.outputs[0]: (-100.0, 100.0)}) < good - 15
    assert sqnr_db(graph, {graph.outputs[0]: (-0.2, 0.2)}) < 3
    found = run(graph, build_onnx(graph))[0]
    assert sqnr_db(graph, {graph.outputs[0]: (found.min(), found.max())}) > good - 1


def test_a_quantised_graph_stays_as_it_is(tmp_path: Path) -> None:
    b = GraphBuilder("twice")
    graph = b.build([b.relu(b.conv(b.input((1, 8, 9, 9)), 16, 3, bias=True))])
    path = tmp_path / "int8.onnx"
    path.write_bytes(build_onnx(graph, "int8"))
    again = read_onnx(path)
    assert is_quantised(again)
    model = build_onnx(again, "int8")
    assert model == build_onnx(again, "fp32")
    assert float(run(again, model)[0].std()) > 0.01


def test_kernels_build_and_run_in_int8() -> None:
    for kernel in KernelPrior(seed=7, max_bytes=3_000_000).draw(40, FusionRules.none()):
        assert run(kernel.graph, build_onnx(kernel.graph, "int8")), kernel.type


def test_the_same_graph_gives_the_same_bytes(small_network: Callable[[str], Graph]) -> None:
    graph = small_network("mobilenet-v3-small")
    assert build_onnx(graph, "int8") == build_onnx(Graph.from_json(graph.to_json()), "int8")
