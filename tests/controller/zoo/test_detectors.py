"""YOLOv5, YOLOv8 and RetinaNet: sizes, decoding, shared heads, widths and variants."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.builders import build
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.detectors.catalogue import ALL
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from numpy.typing import NDArray

from tests.controller.zoo.kernel_sums import check_kernel_sums

NAMES = [family.name for family in ALL]
SMALL = ("yolov5n", "yolov8n", "retinanet-r34")


def run(graph: Graph, seed: int = 0) -> list[NDArray[Any]]:
    """The outputs of the graph as an ONNX model with random weights, for a random image."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        build(graph, "onnx", "fp32"), options, providers=["CPUExecutionProvider"]
    )
    image = np.random.default_rng(seed).standard_normal(graph.type_of("input").shape)
    found: list[NDArray[Any]] = session.run(None, {"input": image.astype(np.float32)})
    return found


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))


def batch_norm_channels(graph: Graph) -> int:
    return sum(
        graph.type_of(node.outputs[0]).shape[1]
        for node in graph.nodes
        if node.op == "BatchNormalization"
    )


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        # As the summary says after "Fusing layers...": a bias for each batch norm's two vectors.
        ("yolov5n", 1_867_405),
        ("yolov5s", 7_225_885),
        ("yolov5m", 21_172_173),
        ("yolov5l", 46_533_693),
        # Without the fixed weights of the distribution's mean.
        ("yolov8n", 3_151_904 - 16),
        ("yolov8s", 11_156_544 - 16),
        ("yolov8m", 25_886_080 - 16),
        ("yolov8l", 43_668_288 - 16),
        ("yolov8x", 68_200_608 - 16),
    ],
)
def test_folding_batch_norms_leaves_the_parameters_of_the_fused_summary(
    name: str, folded: int
) -> None:
    published = zoo.families()[name].published
    assert published is not None
    assert published.parameters - batch_norm_channels(zoo.build(name, resolution=32)) == folded


@pytest.mark.parametrize("name", NAMES)
def test_the_workloads_of_all_kernels_sum_to_that_of_the_network(name: str) -> None:
    check_kernel_sums(zoo.build(name, width=0.25, resolution=64))


@pytest.mark.parametrize("name", NAMES)
def test_multiply_adds_are_proportional_to_pixels(name: str) -> None:
    small, large = (macs_of(zoo.build(name, width=0.25, resolution=side)) for side in (256, 512))
    assert large == pytest.approx(4 * small, rel=0 if name.startswith("yolo") else 0.001)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_finite_on_any_batch(name: str) -> None:
    graph = zoo.build(name, width=0.25, resolution=64, batch=2)
    for output, made in zip(graph.outputs, run(graph), strict=True):
        assert made.shape == graph.type_of(output).shape
        assert np.isfinite(made).all()
        assert made.std() > 0


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("seed", range(3))
def test_variants_run(name: str, seed: int) -> None:
    graph = variant(name, seed, scale=(0.1, 0.5), resolutions=(64,))
    assert graph == variant(name, seed, scale=(0.1, 0.5), resolutions=(64,))
    assert all(np.isfinite(made).all() for made in run(graph))


@pytest.mark.parametrize("name", SMALL)
def test_the_number_of_classes_can_be_changed(name: str) -> None:
    family = zoo.families()[name]
    graph = family.build(resolution=64, design=Design(0.25, classes=3))
    shapes = [graph.type_of(output).shape for output in graph.outputs]
    assert (
        shapes
        == {
            "yolov5n": [(1, 252, 8)],
            "yolov8n": [(1, 7, 84)],
            "retinanet-r34": [(1, 774, 3), (1, 774, 4)],
        }[name]
    )


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("side", [100, 48])
def test_sizes_that_are_not_a_multiple_of_32_are_refused(name: str, side: int) -> None:
    with pytest.raises(GraphError, match=f"{side}x{side} is no multiple of 32"):
        zoo.build(name, resolution=side)


def test_yolov5_decodes_cells_and_anchors_to_pixels() -> None:
    graph = zoo.build("yolov5n", width=0.25, resolution=96)
    raw = [node.outputs[0] for node in graph.nodes if node.op == "Conv"][-3:]
    made, *maps = run(replace(graph, outputs=(*graph.outputs, *raw)))
    anchors = [[(10, 13), (16, 30), (33, 23)], [(30, 61), (62, 45), (59, 119)]]
    anchors.append([(116, 90), (156, 198), (373, 326)])
    row = 0
    for level, (found, shapes) in enumerate(zip(maps, anchors, strict=True)):
        stride = 8 << level
        side = 96 // stride
        assert found.shape == (1, 255, side, side)
        for number, (width, height) in enumerate(shapes):
            for y in range(side):
                for x in range(side):
                    told = sigmoid(found[0, 85 * number : 85 * (number + 1), y, x])
                    wanted = [
                        (2 * told[0] - 0.5 + x) * stride,
                        (2 * told[1] - 0.5 + y) * stride,
                        (2 * told[2]) ** 2 * width,
                        (2 * told[3]) ** 2 * height,
                        *told[4:],
                    ]
                    np.testing.assert_allclose(made[0, row], wanted, rtol=1e-3, atol=1e-4)
                    row += 1
    assert row == made.shape[1]


def test_yolov8_decodes_distances_from_centres_to_pixels() -> None:
    graph = zoo.build("yolov8n", width=0.25, resolution=96)
    raw = [node.outputs[0] for node in graph.nodes if node.op == "Concat"][-6:-3]
    made, *maps = run(replace(graph, outputs=(*graph.outputs, *raw)))
    cell = 0
    for level, found in enumerate(maps):
        stride = 8 << level
        side = 96 // stride
        assert found.shape == (1, 144, side, side)
        for y in range(side):
            for x in range(side):
                spread = np.exp(found[0, :64, y, x].astype(np.float64).reshape(4, 16))
                left, top, right, bottom = spread @ np.arange(16) / spread.sum(axis=1)
                wanted = [
                    (x + 0.5 + (right - left) / 2) * stride,
                    (y + 0.5 + (bottom - top) / 2) * stride,
                    (left + right) * stride,
                    (top + bottom) * stride,
                    *sigmoid(found[0, 64:, y, x]),
                ]
                np.testing.assert_allclose(made[0, :, cell], wanted, rtol=1e-3, atol=1e-3)
                cell += 1
    assert cell == made.shape[2]


def test_retinanet_has_the_published_anchors_and_multiply_adds() -> None:
    """Counted from the layers' shapes: 76,725 anchors and their multiply-adds at 640 pixels."""
    graph = zoo.build("retinanet-r34")
    cells = [side**2 for side in (80, 40, 20, 10, 5)]
    assert [graph.type_of(output).shape for output in graph.outputs] == [
        (1, 9 * sum(cells), 80),
        (1, 9 * sum(cells), 4),
    ]
    head = sum(cells) * 9 * 256 * (8 * 256 + 9 * 80 + 9 * 4)
    sides = sum(cells[:3]) * 9 * 256 * 256 + cells[3] * 9 * 512 * 256 + cells[4] * 9 * 256 * 256
    laterals = 256 * (cells[0] * 128 + cells[1] * 256 + cells[2] * 512)
    backbone = 320**2 * 49 * 3 * 64
    for number, (channels, before, blocks) in enumerate(
        ((64, 64, 3), (128, 64, 4), (256, 128, 6), (512, 256, 3))
    ):
        area = (160 >> number) ** 2
        backbone += area * channels * 9 * (before + (2 * blocks - 1) * channels)
        backbone += area * channels * before * (before != channels)
    assert macs_of(graph) == head + sides + laterals + backbone


def test_retinanet_levels_share_the_heads() -> None:
    graph = zoo.build("retinanet-r34", width=0.25, resolution=64)
    readers = Counter(node.inputs[1] for node in graph.nodes if node.op == "Conv")
    assert Counter(readers.values()) == {5: 10, 1: 36 + 3 + 3 + 2}
    scores, boxes = run(graph)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert boxes.min() < 0 < boxes.max()
