"""ONNX models are valid, run with finite results, and are the same bytes for the same graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from latfarm_controller import zoo
from latfarm_controller.builders import FORMATS, build
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules

Run = Callable[[bytes, Graph], list[Any]]


def test_every_op_is_valid_and_finite(small_graph: Graph, run_onnx: Run) -> None:
    model = build_onnx(small_graph)
    loaded = onnx.load_from_string(model)
    onnx.checker.check_model(loaded, full_check=True)
    assert loaded.ir_version == 8
    assert [(o.domain, o.version) for o in loaded.opset_import] == [("", 13)]
    for found, tensor in zip(run_onnx(model, small_graph), small_graph.outputs, strict=True):
        assert found.shape == small_graph.type_of(tensor).shape
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", zoo.families())
def test_networks_of_the_zoo_run_and_stay_in_range(
    name: str, small_network: Callable[[str], Graph], run_onnx: Run
) -> None:
    graph = small_network(name)
    for found in run_onnx(build_onnx(graph), graph):
        assert np.isfinite(found).all()
        assert 1e-3 < found.std() < 1e3


def test_the_real_networks_of_the_onnx_package(
    light_models: dict[str, Path], run_onnx: Run
) -> None:
    assert len(light_models) == 9
    # The large networks take a second each and test nothing that these three do not.
    for name in ("densenet121", "shufflenet", "squeezenet"):
        graph = read_onnx(light_models[name])
        model = build_onnx(graph)
        onnx.checker.check_model(model)
        assert np.isfinite(run_onnx(model, graph)[0]).all()


def test_what_is_built_reads_back_as_the_same_graph(tmp_path: Path) -> None:
    for name in ("squeezenet", "regnetx-400mf", "synthetic@5"):
        graph = zoo.build(name, resolution=96)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(build_onnx(graph))
        again = read_onnx(path)
        assert [n.op for n in again.nodes] == [n.op for n in graph.nodes]
        assert hash_of(again) == hash_of(graph)


def test_kernels_build_and_run(run_onnx: Run) -> None:
    for kernel in KernelPrior(seed=11, max_bytes=4_000_000).draw(60, FusionRules.none()):
        found = run_onnx(build_onnx(kernel.graph), kernel.graph)
        assert all(np.isfinite(result).all() for result in found), kernel.type


def test_the_same_graph_gives_the_same_bytes() -> None:
    graph = zoo.build("squeezenet", resolution=96)
    assert build(graph, "onnx", "fp32") == build(Graph.from_json(graph.to_json()), "onnx", "fp32")


def test_large_weights_are_written_in_place(run_onnx: Run) -> None:
    """The weights are longer than the noise pool, and their name shifts the data's alignment."""
    b = GraphBuilder("large")
    graph = b.build([b.fc(b.input((1, 3001)), 401, bias=True)])
    model = onnx.load_from_string(build_onnx(graph))
    onnx.checker.check_model(model)
    sizes = {i.name: len(i.raw_data) for i in model.graph.initializer}
    assert sizes == {k: w.type.size_bytes for k, w in graph.weights.items()}
    assert np.isfinite(run_onnx(model.SerializeToString(), graph)[0]).all()


def _one(op: str, **attrs: Any) -> Graph:
    kind = TensorType("float32", (1, 4, 6, 6))
    node = Node("odd", op, ("x",), ("y",), attrs)
    return Graph("one", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})


def test_unknown_ops_and_attributes_are_refused_by_name() -> None:
    with pytest.raises(BuildError, match=r"node 'odd' \(Frobnicate\): not in ONNX opsets 13 to 17"):
        build_onnx(_one("Frobnicate"))
    with pytest.raises(BuildError, match=r"node 'odd' \(Relu\): opset 13 has no attribute slope"):
        build_onnx(_one("Relu", slope=2))


def test_ops_of_later_opsets_raise_the_opset() -> None:
    model = onnx.load_from_string(build_onnx(_one("HardSwish")))
    assert model.opset_import[0].version == 14
    onnx.checker.check_model(model)


def test_more_than_two_gigabytes_are_refused() -> None:
    b = GraphBuilder("huge")
    graph = b.build([b.fc(b.input((1, 40_000)), 20_000)])
    with pytest.raises(BuildError, match="exceed ONNX's 2 GB"):
        build_onnx(graph)


def test_formats_and_types_that_do_not_exist_are_refused() -> None:
    graph = _one("Relu")
    with pytest.raises(BuildError, match="unknown model format 'caffe'; known: onnx, tflite, ncnn"):
        build(graph, "caffe", "fp32")
    with pytest.raises(BuildError, match="tflite is built as fp32 or fp16 or int8, not 'int4'"):
        build(graph, "tflite", "int4")
    with pytest.raises(BuildError, match="onnx is built as fp32, fp16 or int8, not 'int4'"):
        build_onnx(graph, "int4")


def test_every_format_has_a_builder_that_takes_weights() -> None:
    b = GraphBuilder("small")
    graph = b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3, bias=True))])
    kernel = graph.nodes[0].inputs[1]
    given = {kernel: np.full(graph.weights[kernel].type.shape, 0.25, np.float32)}
    for model_format in ("onnx", "tflite"):
        for dtype in FORMATS[model_format]:
            noise = build(graph, model_format, dtype)
            own = build(graph, model_format, dtype, given)
            assert own == build(graph, model_format, dtype, given) != noise
            with pytest.raises(BuildError, match="'other', which is no weight"):
                build(graph, model_format, dtype, {"other": given[kernel]})


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_the_users_own_weights_come_out(dtype: str, run_onnx: Run) -> None:
    b = GraphBuilder("own")
    graph = b.build([b.conv(b.input((1, 2, 4, 4)), 2, 1)])
    given = np.array([[0.5, -0.25], [1.0, 0.0]], np.float32).reshape(2, 2, 1, 1)
    model = build_onnx(graph, dtype, {graph.nodes[0].inputs[1]: given})
    plain = b.build([b.op("Identity", ["input"])])
    image = run_onnx(build_onnx(plain), plain)[0]
    expected = np.einsum("oi,nihw->nohw", given[:, :, 0, 0], image)
    assert np.allclose(run_onnx(model, graph)[0], expected, atol=0.04 if dtype == "int8" else 2e-3)


def test_graph_json_is_the_graph() -> None:
    import json

    graph = zoo.build("squeezenet")
    assert Graph.from_json(json.loads(build(graph, "graph-json", "fp32"))) == graph
