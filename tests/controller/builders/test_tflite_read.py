"""TFLite files that the builder writes are read as the networks that they were built from."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.tflite.build import build_tflite, tflite_report
from latfarm_predictors.errors import ModelFileError, PredictorsError, UnsupportedOpError
from latfarm_predictors.frontends.model_file import read_model, read_model_weights
from latfarm_predictors.frontends.onnx_quantization import dequantised, is_quantised
from latfarm_predictors.frontends.tflite import schema
from latfarm_predictors.frontends.tflite.read import read_tflite
from latfarm_predictors.graph.batch_norm import fold_batch_norms
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import workload

Run = Callable[[bytes, Graph], list[Any]]
Feeds = Callable[[Graph], dict[str, Any]]

EXACT = (
    *("alexnet", "squeezenet", "mobilenet-v2", "mobilenet-v3-small", "mobileone-s0", "mnasnet-a1"),
    *("ghostnet", "shufflenet-v2", "resnet50", "regnety-200mf", "googlenet", "xception"),
    *("densenet121", "vovnet27-slim", "vit-tiny", "convnext-atto", "efficientformer-l1"),
)
"""Networks whose file has the hash of the network; others differ in constants or in views."""


def session(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def test_every_op_computes_the_same_after_reading(
    small_graph: Graph, run_onnx: Run, feeds: Feeds
) -> None:
    expected = run_onnx(build_onnx(small_graph), small_graph)
    data = build_tflite(small_graph)
    if small_graph.name == "identity":  # what only copies its input is no network
        with pytest.raises(ModelFileError, match="no op is left"):
            read_model(data)
        return
    graph, weights = read_model_weights(data)
    # without an op on images, tensors of rank 4 have the axis order of the file
    layouts = tflite_report(small_graph, "fp32").layouts

    def stored(tensor: str, array: Any, shape: tuple[int, ...]) -> Any:
        return array if array.shape == shape else array.transpose(layouts[tensor])

    feed = {
        ours: stored(theirs, array, graph.type_of(ours).shape)
        for ours, (theirs, array) in zip(graph.inputs, feeds(small_graph).items(), strict=True)
    }
    found = session(build_onnx(graph, weights=weights)).run(None, feed)
    for tensor, wanted, made in zip(small_graph.outputs, expected, found, strict=True):
        wanted = stored(tensor, wanted, made.shape)
        assert np.abs(wanted - made).max() <= 1e-5 * max(np.abs(wanted).max(), 1.0)


@pytest.mark.parametrize("name", EXACT)
def test_a_network_keeps_its_hash_and_its_work(
    name: str, small_network: Callable[[str], Graph]
) -> None:
    graph = fold_batch_norms(small_network(name))[0]
    found = read_tflite(build_tflite(graph))
    assert network_hash_of(found) == network_hash_of(graph)
    assert graph_totals(found).macs == graph_totals(graph).macs


def kernels_of(graph: Graph) -> Counter[Any]:
    rules = FusionRules(pairs={("Conv", "Relu"): "fused", ("Conv", "Clip"): "fused"})
    found = Counter(workload(kernel) for kernel in split(graph, rules))
    return Counter({row: n for row, n in found.items() if row.macs})


@pytest.mark.parametrize("name", ["mobilenet-v2", "squeezenet", "resnet50"])
def test_a_platform_sees_the_same_kernels(name: str, small_network: Callable[[str], Graph]) -> None:
    graph = fold_batch_norms(small_network(name))[0]
    assert {
        (row.type, row.macs, row.in_h, row.out_channels, row.kernel_h)
        for row in kernels_of(read_tflite(build_tflite(graph)))
    } == {
        (row.type, row.macs, row.in_h, row.out_channels, row.kernel_h) for row in kernels_of(graph)
    }


def test_an_int8_file_is_the_network_that_was_quantised() -> None:
    b = GraphBuilder("small")
    x = b.relu(b.conv(b.input((1, 8, 13, 11)), 12, 3, 2, "same", bias=True))
    x = b.add(b.conv(x, 12, 1, bias=True), x)
    x = b.flatten(b.global_avg_pool(b.relu6(b.depthwise(x, 3, bias=True))))
    graph = b.build([b.fc(x, 10)])
    found = read_tflite(build_tflite(graph, "int8"))
    assert is_quantised(found)
    assert found.type_of(found.inputs[0]).dtype == "int8"
    assert network_hash_of(dequantised(found)) == network_hash_of(graph)
    weights = {w.type.dtype for w in found.weights.values()}
    assert {"int8", "int32"} <= weights


def test_an_int8_network_keeps_its_work(small_network: Callable[[str], Graph]) -> None:
    graph = small_network("squeezenet")
    found = read_tflite(build_tflite(graph, "int8"))
    assert graph_totals(dequantised(found)).macs == graph_totals(graph).macs


def sample() -> bytes:
    b = GraphBuilder("sample")
    x = b.relu(b.conv(b.input((1, 3, 16, 16)), 8, 3, 2, 1, bias=True))
    left, right = b.split(b.max_pool(x, 2), (4, 4))
    x = b.flatten(b.concat([left, b.sigmoid(right)]))
    return build_tflite(b.build([b.softmax(b.fc(x, 10))]))


def test_the_bytes_tell_the_format(tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(sample())
    with path.open("rb") as opened:
        graphs = [read_model(path), read_model(str(path)), read_model(opened)]
    assert {network_hash_of(graph) for graph in graphs} == {network_hash_of(read_model(sample()))}


def test_batch_and_shapes_replace_those_of_the_file() -> None:
    name = read_tflite(sample()).inputs[0]
    wide = read_tflite(sample(), batch=4)
    assert wide.type_of(wide.inputs[0]).shape == (4, 3, 16, 16)
    assert wide.type_of(wide.outputs[0]).shape == (4, 10)
    same = read_tflite(sample(), shapes={name: (2, 16, 16, 3)})
    assert same.type_of(same.outputs[0]).shape == (2, 10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 0}, "--batch 1"),
        ({"shapes": {"nothing": (1, 2)}}, "no input 'nothing'"),
        ({"shapes": {"input": (1, 2)}}, "--shape"),
        ({"shapes": {"input": (1, 20, 16, 3)}}, "convert the model again"),
    ],
)
def test_wrong_batches_and_shapes_are_told(given: Any, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_tflite(sample(), **given)


def test_a_tflite_model_is_not_optimised() -> None:
    with pytest.raises(ModelFileError, match="leave --optimise out"):
        read_model(sample(), optimise=True)


def test_an_unknown_operator_is_named() -> None:
    whole = sample()
    flat = bytearray(whole)
    # operator code 25 is SOFTMAX; 35 is an RNN, which no Graph can express
    at = whole.index(bytes([25, 0, 0, 0]))
    flat[at] = 35
    with pytest.raises(UnsupportedOpError, match="builtin operator 35"):
        read_tflite(bytes(flat))


def test_damaged_files_raise_our_errors_alone() -> None:
    whole = sample()
    draw = random.Random(7)
    structure = len(whole) - 2000
    values = (0, 1, 127, 128, 255)
    told: list[str] = []
    for _ in range(600):
        flat = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 8))):
            flat[draw.randrange(structure)] = draw.choice((*values, draw.randrange(256)))
        with suppress_ours(told):
            read_tflite(bytes(flat))
    assert len(told) > 100
    assert all(text.isprintable() for text in told)


@contextmanager
def suppress_ours(told: list[str]) -> Iterator[None]:
    """Note the texts of our own errors; others are raised."""
    try:
        yield
    except PredictorsError as error:
        told.append(str(error))


def test_files_that_are_cut_off_are_told() -> None:
    whole = sample()
    for size in range(8, len(whole) - 1, 97):
        with pytest.raises(PredictorsError):
            read_tflite(whole[:size])
    for data in (b"", b"TFL3", b"\0\0\0\0TFL3", whole[:8]):
        with pytest.raises(ModelFileError):
            read_tflite(data)


OPTION_TABLES = {
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"), "ReducerOptions"),
    "L2_NORMALIZATION": "L2NormOptions",
}
"""Names of the options of operators that do not follow from the operator's name."""


def test_the_numbers_are_those_of_the_published_schema() -> None:
    from ai_edge_litert import schema_py_generated as published

    for number, name in schema.OPERATORS.items():
        assert getattr(published.BuiltinOperator, name) == number
    for number, name in schema.DTYPES.items():
        assert getattr(published.TensorType, name.upper()) == number
    kinds = {v: k for k, v in vars(published.BuiltinOptions).items() if isinstance(v, int)}
    for name, table in schema.OPTIONS.items():
        kind = kinds[table.kind]
        usual = name.replace("_", "") + "OPTIONS"
        assert OPTION_TABLES.get(name, usual).upper() == kind.upper()
        for option, (number, _) in table.fields.items():
            member = accessor_at(getattr(published, kind), number).lower()
            assert all(word in member for word in option.split("_")), f"{kind}.{option}: {member}"


def accessor_at(options: Any, number: int) -> str:
    """Name of the method that reads the field of this number."""
    place = f"_tab.Offset({4 + 2 * number}))"
    methods = {str(name): member for name, member in vars(options).items() if callable(member)}
    found = (name for name, member in methods.items() if place in inspect.getsource(member))
    return next(found)
