"""The nine real networks inside the onnx package are read like files of users."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.testing.onnx_files import model_of

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# By network: millions of multiply-adds, and ops that it must have.
NETWORKS: dict[str, tuple[int, dict[str, int]]] = {
    "bvlc_alexnet": (655, {"Conv": 5, "Gemm": 3, "LRN": 2, "MaxPool": 3}),
    "densenet121": (2834, {"Conv": 121, "BatchNormalization": 121, "Concat": 58}),
    "inception_v1": (1432, {"Conv": 57, "Concat": 9, "LRN": 2, "Gemm": 1}),
    "inception_v2": (2019, {"Conv": 69, "Concat": 10, "AveragePool": 8}),
    "resnet50": (4089, {"Conv": 53, "Add": 16, "Relu": 49, "Gemm": 1}),
    "shufflenet": (125, {"Conv": 49, "Transpose": 16, "Reshape": 33, "Add": 13}),
    "squeezenet": (349, {"Conv": 26, "Concat": 8, "GlobalAveragePool": 1}),
    "vgg19": (19632, {"Conv": 16, "Gemm": 3, "MaxPool": 5, "Relu": 18}),
    "zfnet512": (1482, {"Conv": 5, "Gemm": 3, "LRN": 2}),
}
GONE = {"ConstantOfShape", "Constant", "Dropout", "Identity", "Unsqueeze", "Sum"}


def path_of(name: str) -> Path:
    return FOLDER / f"light_{name}.onnx"


@cache
def graph_of(name: str) -> Graph:
    return read_onnx(path_of(name))


def test_all_networks_of_the_package_are_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == {f"light_{name}" for name in NETWORKS}


@pytest.mark.parametrize("name", NETWORKS)
def test_ops_macs_and_types(name: str) -> None:
    graph = graph_of(name)
    macs, expected = NETWORKS[name]
    assert round(graph_totals(graph).macs / 1e6) == macs
    ops = Counter(node.op for node in graph.nodes)
    assert {op: ops[op] for op in expected} == expected
    assert GONE.isdisjoint(ops)
    assert [graph.type_of(t).shape for t in graph.inputs] == [(1, 3, 224, 224)]
    assert [graph.type_of(t).elements for t in graph.outputs] == [1000]


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_agree_with_onnx(name: str) -> None:
    model = onnx.load(path_of(name))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True).graph
    known = {
        value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in [*inferred.value_info, *inferred.output]
    }
    kinds = {"Conv", "MaxPool", "AveragePool", "Concat", "LRN", "Gemm", "BatchNormalization"}
    theirs = [known[node.output[0]] for node in inferred.node if node.op_type in kinds]
    graph = graph_of(name)
    ours = [graph.type_of(n.outputs[0]).shape for n in graph.nodes if n.op in kinds]
    assert ours == theirs


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_changes_every_size_and_the_hash(name: str) -> None:
    graph, larger = graph_of(name), read_onnx(path_of(name), batch=4)
    assert graph_totals(larger).macs == 4 * graph_totals(graph).macs
    assert graph_totals(larger).weight_bytes == graph_totals(graph).weight_bytes
    assert hash_of(larger) != hash_of(graph)


def test_hashes_differ_and_are_stable() -> None:
    assert len({hash_of(graph_of(name)) for name in NETWORKS}) == len(NETWORKS)
    assert hash_of(read_onnx(path_of("resnet50"))) == hash_of(graph_of("resnet50"))


def test_weights_are_never_allocated() -> None:
    tracemalloc.start()
    try:
        graph = read_onnx(path_of("vgg19"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert graph_totals(graph).weight_bytes > 574e6
    assert peak < 20e6


def test_kernels_of_resnet50() -> None:
    pairs: Any = {("Conv", op): "fused" for op in ("BatchNormalization", "Relu", "Add")}
    rules = FusionRules(pairs, multi_inbound=1)
    kernels = split(graph_of("resnet50"), rules)
    assert Counter(kernel.type for kernel in kernels) == {
        "Conv+BatchNormalization+Relu": 33,
        "Conv+BatchNormalization+Add+Relu": 16,
        "Conv+BatchNormalization": 4,
        "MaxPool": 1,
        "AveragePool+Reshape": 1,
        "Gemm": 1,
        "Softmax": 1,
    }
    assert (
        sum(workload(kernel).macs for kernel in kernels) == graph_totals(graph_of("resnet50")).macs
    )


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_network_survives_writing_and_reading(name: str, tmp_path: Path) -> None:
    path = tmp_path / "again.onnx"
    path.write_bytes(model_of(graph_of(name)).SerializeToString())
    assert hash_of(read_onnx(path)) == hash_of(graph_of(name))
