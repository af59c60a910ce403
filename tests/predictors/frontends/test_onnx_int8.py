"""Int8 files of onnxruntime's quantiser in both formats, and the float network of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from latfarm_predictors.errors import GraphError, UnsupportedOpError
from latfarm_predictors.frontends.onnx import read_onnx, read_onnx_weights
from latfarm_predictors.frontends.onnx_quantization import SCALING_OPS, dequantised, is_quantised
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.testing.onnx_files import model_of
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static


def network(*, relu: bool = True) -> Graph:
    """Conv, depthwise, residual, squeeze and excitation, pools, concat, a scalar, Gemm, MatMul."""
    b = GraphBuilder("small")
    act: Callable[[str], str] = b.relu if relu else b.sigmoid
    x = act(b.conv(b.input((1, 3, 16, 16)), 8, 3, 2, bias=True))
    y = b.add(x, b.conv(act(b.depthwise(x, 3, bias=True)), 8, 1, bias=True))
    gate = b.sigmoid(b.conv(b.global_avg_pool(y), 8, 1, bias=True))
    y = b.concat([b.max_pool(b.mul(y, gate), 2), b.avg_pool(x, 2)])
    y = b.mul(y, b.scalar_like(y, 0.3))
    y = b.resize(b.transpose(b.transpose(y, (0, 2, 3, 1)), (0, 3, 1, 2)), 2.0)
    y = b.fc(b.flatten(b.global_avg_pool(y)), 12)
    y = b.softmax(b.matmul(b.reshape(y, (3, 4)), b.weight((4, 5))))
    return b.build([y])


class Calibration:
    def __init__(self, graph: Graph) -> None:
        rng = np.random.default_rng(1)
        self.left: Iterator[dict[str, Any]] = iter(
            [
                {t: rng.standard_normal(graph.type_of(t).shape).astype("f4") for t in graph.inputs}
                for _ in range(2)
            ]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self.left, None)


def float_file(graph: Graph, folder: Path) -> Path:
    """The graph with random weights, as an exporter would write it."""
    model, rng = model_of(graph), np.random.default_rng(0)
    for proto in model.graph.initializer:
        if graph.weights[proto.name].values is None:
            array = rng.standard_normal(tuple(proto.dims)).astype(np.float32)
            proto.CopyFrom(onnx.numpy_helper.from_array(array, proto.name))
    path = folder / "float.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def quantised(graph: Graph, folder: Path, form: str, **options: Any) -> Path:
    path = folder / f"{form}.onnx"
    quantize_static(
        float_file(graph, folder),
        path,
        Calibration(graph),
        quant_format=QuantFormat[form],
        weight_type=QuantType.QInt8,
        extra_options={"QDQKeepRemovableActivations": True},
        **options,
    )
    return path


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_the_float_network_of_an_int8_file_is_recovered(
    form: str, activation: Any, per_channel: bool, tmp_path: Path
) -> None:
    # In the operator format, the quantiser removes every Relu, whatever its options are.
    graph = network(relu=form == "QDQ")
    path = quantised(graph, tmp_path, form, activation_type=activation, per_channel=per_channel)
    read = read_onnx(path)
    assert is_quantised(read)
    assert hash_of(read) != hash_of(graph)
    assert not any(node.op.startswith("QLinear") or node.op == "QGemm" for node in read.nodes)
    found = dequantised(read)
    assert not is_quantised(found)
    original = read_onnx(tmp_path / "float.onnx")
    assert Counter(n.op for n in found.nodes) == Counter(n.op for n in original.nodes)
    assert hash_of(found) == hash_of(original) == hash_of(graph)


def test_int8_weights_int32_biases_and_their_scales_are_in_the_graph(tmp_path: Path) -> None:
    read = read_onnx(quantised(network(), tmp_path, "QDQ", per_channel=True))
    conv = next(node for node in read.nodes if node.op == "Conv")
    _, weight, bias = (read.producers[tensor] for tensor in conv.inputs)
    assert [read.type_of(t).dtype for t in weight.inputs] == ["int8", "float32", "int8"]
    assert [read.type_of(t).shape for t in weight.inputs] == [(8, 3, 3, 3), (8,), (8,)]
    assert dict(weight.attrs) == {"axis": 0}
    assert [read.type_of(t).dtype for t in bias.inputs] == ["int32", "float32", "int32"]
    data = read.producers[conv.inputs[0]]
    assert [read.type_of(t).shape for t in data.inputs[1:]] == [(), ()]
    assert dict(data.attrs) == {}
    assert read.type_of(data.inputs[0]).dtype in ("int8", "uint8")


def test_scales_of_channels_zero_points_types_and_formats_make_hashes(tmp_path: Path) -> None:
    graph = network(relu=False)
    hashes = {}
    for form in ("QDQ", "QOperator"):
        for per_channel in (False, True):
            for activation in (QuantType.QUInt8, QuantType.QInt8):
                path = quantised(
                    graph, tmp_path, form, per_channel=per_channel, activation_type=activation
                )
                hashes[form, per_channel, activation] = hash_of(read_onnx(path))
                assert hash_of(read_onnx(path)) == hashes[form, per_channel, activation]
    assert len({found for key, found in hashes.items() if key[0] == "QDQ"}) == 4
    assert len({found for key, found in hashes.items() if key[0] == "QOperator"}) == 4


def test_a_quantiser_that_removes_relus_makes_another_network(tmp_path: Path) -> None:
    graph = network()
    found = dequantised(read_onnx(quantised(graph, tmp_path, "QOperator")))
    ops = Counter(node.op for node in graph.nodes)
    ops.subtract(node.op for node in found.nodes)
    assert +ops == {"Relu": 2}


def test_dynamic_quantisation_reads(tmp_path: Path) -> None:
    graph = network()
    path = tmp_path / "dynamic.onnx"
    quantize_dynamic(float_file(graph, tmp_path), path)
    read = read_onnx(path)
    assert is_quantised(read)
    ops = {node.op for node in read.nodes}
    assert {"ReduceMin", "ReduceMax", "QuantizeLinear", "MatMul"} <= ops
    assert not ops & {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
    assert read.type_of(read.outputs[0]) == graph.type_of(graph.outputs[0])


def test_a_float_network_is_returned_as_it_is(tmp_path: Path) -> None:
    graph = network()
    assert not is_quantised(graph)
    assert dequantised(graph) is graph


def test_int8_weights_come_with_their_values(tmp_path: Path) -> None:
    path = quantised(network(), tmp_path, "QDQ", per_channel=True)
    graph, weights = read_onnx_weights(path)
    conv = next(node for node in graph.nodes if node.op == "Conv")
    integers, scale, zero = (weights[t] for t in graph.producers[conv.inputs[1]].inputs)
    (weight,) = (
        onnx.numpy_helper.to_array(proto)
        for proto in onnx.load(tmp_path / "float.onnx").graph.initializer
        if tuple(proto.dims) == (8, 3, 3, 3)
    )
    assert integers.dtype == np.int8
    real = (integers.astype(np.float32) - zero.reshape(-1, 1, 1, 1)) * scale.reshape(-1, 1, 1, 1)
    assert np.abs(real - weight).max() < 0.51 * scale.max()


def written(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


HEAD = '<ir_version: 10, opset_import: ["" : {}]> g (float[1, 8] x) => (float[1, 8] y)'


def scaled(folder: Path, opset: int, attributes: str = "", zero: str = "uint8 z = {3}") -> Graph:
    zeros = f", {zero}" if zero else ""
    operands = "(x, s, z)" if zero else "(x, s)"
    text = f"""{HEAD.format(opset)} <float s = {{0.5}}{zeros}> {{
        q = QuantizeLinear {attributes} {operands}
        p = Relu (x)
        d = DequantizeLinear {operands.replace("x", "q")}
        y = Add (d, p)
    }}"""
    return read_onnx(written(folder, text))


def test_all_forms_of_a_single_scale_become_one(tmp_path: Path) -> None:
    plain = scaled(tmp_path, 13)
    assert hash_of(scaled(tmp_path, 13, "<axis: int = 1>")) == hash_of(plain)
    # An absent zero point means one of type uint8.
    assert hash_of(scaled(tmp_path, 13, zero="")) == hash_of(plain)
    assert hash_of(scaled(tmp_path, 21, "<output_dtype: int = 2>")) == hash_of(plain)
    assert hash_of(scaled(tmp_path, 13, zero="int8 z = {3}")) != hash_of(plain)
    assert [n.op for n in plain.nodes if n.op in SCALING_OPS] == [
        "QuantizeLinear",
        "DequantizeLinear",
    ]


@pytest.mark.parametrize(
    ("opset", "attributes", "zero", "message"),
    [
        (21, "<block_size: int = 4>", "uint8 z = {3}", "by blocks"),
        (21, "<output_dtype: int = 4>", "", "output_dtype 4"),
        (21, "<output_dtype: int = 17>", "", "output_dtype 17"),
        (21, "", "int16 z = {3}", "quantisation to int16; int8 and uint8 are"),
    ],
)
def test_unsupported_newer_forms_are_named_in_the_error(
    opset: int, attributes: str, zero: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        scaled(tmp_path, opset, attributes, zero)


def test_float8_is_named_in_the_error(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"{HEAD.format(19)} <float s = {{0.5}}, uint8 z = {{0}}>"
        " { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
    )
    model.graph.initializer[1].data_type = onnx.TensorProto.FLOAT8E4M3FN
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedOpError, match="float8e4m3fn"):
        read_onnx(path)


def test_a_network_of_scaling_ops_only_is_refused(tmp_path: Path) -> None:
    graph = read_onnx(
        written(
            tmp_path,
            f"{HEAD.format(13)} <float s = {{0.5}}, uint8 z = {{0}}>"
            " { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }",
        )
    )
    with pytest.raises(GraphError, match="no op is left"):
        dequantised(graph)
