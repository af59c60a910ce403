"""TFLite models: they compute what the ONNX model of the same graph computes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.builders import build
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.builders.tflite.build import build_tflite, translate
from latfarm_controller.builders.tflite.file import TfliteModel, _schema, serialise
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules, with_units

Run = Callable[[bytes, Graph], list[Any]]

# One network for each kind of construction in the zoo.
NETWORKS = (
    *("alexnet", "squeezenet", "mobilenet-v2", "mobilenet-v3-small", "mobileone-s0", "mnasnet-a1"),
    *("efficientnet-b0", "ghostnet", "shufflenet-v2", "resnet50", "regnety-200mf", "nasbench201"),
    *("googlenet", "inception-v3", "densenet121", "xception", "repvgg-a0", "vovnet27-slim"),
    *("yolov5n", "yolov8n", "retinanet-r34", "vit-tiny", "mobilevit-xxs", "bert-tiny"),
    *("deit-tiny", "eva02-tiny", "swin-tiny", "convnext-atto", "efficientformer-l1", "t5-tiny"),
    "t5-v1.1-small",
)


def operators(model: TfliteModel) -> Counter[str]:
    return Counter(operator.code for operator in model.operators)


def worst(expected: list[Any], found: list[Any]) -> float:
    """Return the largest error of all outputs.

    The error of an output is divided by the largest absolute value that is expected in it.
    """
    return max(
        float(np.abs(e - f).max() / max(np.abs(e).max(), 1e-9))
        for e, f in zip(expected, found, strict=True)
    )


def test_every_op_agrees_with_onnxruntime(small_graph: Graph, run_onnx: Run, lite: Any) -> None:
    expected = run_onnx(build_onnx(small_graph), small_graph)
    found = lite(build_tflite(small_graph)).run(small_graph)
    assert worst(expected, found) < 1e-5


@pytest.mark.parametrize("name", [*NETWORKS, *(f"synthetic@{seed}" for seed in (3, 4, 9))])
def test_networks_agree_with_onnxruntime(
    name: str, small_network: Callable[[str], Graph], run_onnx: Run, lite: Any
) -> None:
    graph = small_network(name)
    expected = run_onnx(build_onnx(graph), graph)
    assert worst(expected, lite(build_tflite(graph)).run(graph)) < 1e-3


def test_real_networks_agree_with_onnxruntime(
    light_models: dict[str, Path], run_onnx: Run, lite: Any
) -> None:
    for name in ("inception_v2", "shufflenet"):
        graph = read_onnx(light_models[name])
        expected = run_onnx(build_onnx(graph), graph)
        assert worst(expected, lite(build_tflite(graph)).run(graph)) < 1e-3


def test_kernels_agree_with_onnxruntime(run_onnx: Run, lite: Any) -> None:
    for kernel in KernelPrior(seed=5, max_bytes=3_000_000).draw(60, with_units(FusionRules.none())):
        expected = run_onnx(build_onnx(kernel.graph), kernel.graph)
        found = lite(build_tflite(kernel.graph)).run(kernel.graph)
        assert worst(expected, found) < 1e-4, kernel.type


def test_batch_norms_behind_convs_are_folded() -> None:
    graph = zoo.build("resnet18", resolution=96)
    codes = operators(translate(graph))
    assert codes["CONV_2D"] == 20
    assert codes["ADD"] == 8  # only the additions of the residual connections are left
    assert codes["MUL"] == 0


def test_transposes_only_where_the_order_of_elements_matters() -> None:
    for name in ("mobilenet-v3-large", "resnet18", "vovnet27-slim", "efficientnet-b0"):
        assert operators(translate(zoo.build(name)))["TRANSPOSE"] == 0, name
    # A channel shuffle needs its own transpose and no other.
    shuffle = zoo.build("shufflenet-v2")
    wanted = sum(node.op == "Transpose" for node in shuffle.nodes)
    assert operators(translate(shuffle))["TRANSPOSE"] == wanted > 0


def test_flattening_an_image_needs_one_transpose() -> None:
    b = GraphBuilder("flat")
    graph = b.build([b.fc(b.flatten(b.conv(b.input((1, 3, 8, 8)), 4, 3)), 5)])
    codes = [operator.code for operator in translate(graph).operators]
    assert codes == ["CONV_2D", "TRANSPOSE", "RESHAPE", "FULLY_CONNECTED"]


@pytest.mark.parametrize(
    ("pads", "stride", "codes"),
    [
        ("same", 2, ["CONV_2D"]),
        ("valid", 2, ["CONV_2D"]),
        (1, 1, ["CONV_2D"]),
        (1, 2, ["PAD", "CONV_2D"]),  # with stride 2 and an even size, SAME pads one side only
    ],
)
def test_pads_become_an_operator_only_where_they_must(
    pads: Any, stride: int, codes: list[str]
) -> None:
    b = GraphBuilder("pads")
    graph = b.build([b.conv(b.input((1, 3, 8, 8)), 4, 3, stride, pads)])
    assert [operator.code for operator in translate(graph).operators] == codes


def test_hard_swish_and_gelu_are_single_operators() -> None:
    b = GraphBuilder("acts")
    graph = b.build([b.gelu(b.hard_swish(b.input((1, 3, 8, 8))))])
    assert [operator.code for operator in translate(graph).operators] == ["HARD_SWISH", "GELU"]


def test_buffers_are_aligned() -> None:
    """Runtimes map weights from the file: data must start at multiples of 16 bytes."""
    model = build_tflite(zoo.build("squeezenet", resolution=96))
    assert model[4:8] == b"TFL3"
    parsed = _schema().Model.GetRootAsModel(model, 0)
    checked = 0
    for index in range(1, parsed.BuffersLength()):
        buffer = parsed.Buffers(index)
        if buffer.DataLength():
            start = buffer._tab.Vector(buffer._tab.Offset(4))
            assert start % 16 == 0
            checked += 1
    assert checked > 50


def test_several_inputs_and_outputs(run_onnx: Run, lite: Any) -> None:
    b = GraphBuilder("many")
    x, y = b.input((1, 4, 6, 5)), b.input((1, 4, 6, 5))
    total = b.add(x, y)
    graph = b.build([total, b.relu(b.sub(y, x)), b.fc(b.flatten(total), 3)])
    expected = run_onnx(build_onnx(graph), graph)
    assert worst(expected, lite(build_tflite(graph)).run(graph)) < 1e-5


def test_batches_are_kept(run_onnx: Run, lite: Any) -> None:
    graph = zoo.build("shufflenet-v2", resolution=64, batch=3)
    expected = run_onnx(build_onnx(graph), graph)
    assert worst(expected, lite(build_tflite(graph)).run(graph)) < 1e-4


def test_the_same_graph_gives_the_same_bytes() -> None:
    graph = zoo.build("squeezenet", resolution=96)
    again = Graph.from_json(graph.to_json())
    for dtype in ("fp32", "int8"):
        assert build(graph, "tflite", dtype) == build(again, "tflite", dtype)


def test_what_tflite_cannot_say_is_refused_by_name() -> None:
    b = GraphBuilder("odd")
    x = b.input((1, 4, 8, 8))
    cases = {
        r"node 'erf_0' \(Erf\): TFLite has no operator": b.op("Erf", [x]),
        r"node 'lrn_1' \(LRN\): LRN over 4 channels": b.lrn(x, 4),
        r"node 'conv_2' \(Conv\): a window over 1 axes": b.conv(b.input((1, 4, 8)), 4, 3),
    }
    graph = b.build(list(cases.values()))
    for message, made in cases.items():
        node = graph.producers[made]
        used = tuple(t for t in graph.inputs if t in node.inputs)
        alone = Graph("one", used, (made,), (node,), graph.weights, graph.types)
        with pytest.raises(BuildError, match=message):
            build_tflite(alone)


def test_other_element_types_are_refused() -> None:
    b = GraphBuilder("half")
    graph = b.build([b.relu(b.input((1, 4), "float16"))])
    with pytest.raises(BuildError, match="float16; TFLite takes float32"):
        build_tflite(graph)
    with pytest.raises(BuildError, match="tflite is built as fp32, fp16 or int8"):
        build_tflite(graph, "int4")


def test_without_the_schema_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _schema.cache_clear()
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(BuildError, match="pip install ai-edge-litert"):
        serialise(TfliteModel("empty"))
    monkeypatch.undo()
    _schema.cache_clear()
    assert serialise(TfliteModel("empty"))[4:8] == b"TFL3"
