"""Every published family, as built, has the parameters and multiply-adds of its publication.

Sources: [tv] torchvision's model documentation (parameters, GFLOPs as multiply-adds); [cv] the
tables and assertions of the imgclsmob/pytorchcv model zoo; otherwise the paper itself. Parameters
count what is trained: of a batch norm its scale and bias. Multiply-adds are those of convs and
matrix products; [cv] counts activations too, so there the paper's rounder number is compared.
"""

from __future__ import annotations

from math import prod

import pytest
from latfarm_controller import zoo
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.nasbench201 import cell_from_text, network
from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder

# family: (parameters, their tolerance, multiply-adds in millions, their tolerance)
PUBLISHED = {
    "mobilenet-v1": (4_231_976, 0, 569, 0.01),  # [cv]; Howard et al. 2017, table 4
    "mobilenet-v2": (3_504_872, 0, 300, 0.01),  # [tv]; Sandler et al. 2018, table 4
    "mobilenet-v3-large": (5_483_032, 0, 219, 0.02),  # [tv]; Howard et al. 2019, table 3
    "mobilenet-v3-small": (2_542_856, 0, 56, 0.02),  # [tv]; Howard et al. 2019, table 3
    "mobileone-s0": (2.1e6, 0.02, 275, 0.01),  # Vasu et al. 2023
    "mnasnet-a1": (3_887_038, 0, 312, 0.01),  # [cv]; Tan et al. 2019, table 1
    "mnasnet-b1": (4_383_312, 0, 315, 0.01),  # [tv]; Tan et al. 2019
    "proxyless-mobile": (4_080_512, 0, 320, 0.01),  # [cv]; Cai et al. 2019, repository
    "efficientnet-b0": (5_288_548, 0, 390, 0.02),  # [tv]; Tan and Le 2019, table 2
    "ghostnet": (5_180_840, 0.001, 141, 0.01),  # [cv]; Han et al. 2020
    "regnetx-400mf": (5_157_512, 0, 400, 0.01),  # [cv]; Radosavovic et al. 2020, appendix
    "resnet18": (11_689_512, 0, 1_814, 0.001),  # [tv]
    "xception": (22_855_952, 0, 8_400, 0.01),  # Chollet 2017, table 3; [cv]
    "nin-imagenet": (7.6e6, 0.01, 1_100, 0.01),  # 29 MB in Caffe's model zoo
    "nin-cifar": (966_986, 0, 222.97, 0.01),  # [cv]
    "darknet19": (20_842_376, 0, 5_580 / 2, 0.01),  # [cv]; 5.58 billion operations in the paper
    "repvgg-a0": (8.30e6, 0.01, 1_360, 0.01),  # Ding et al. 2021, table 4: 1.4 B
    "squeezenet": (1_235_496, 0, 349, 0.01),  # [tv]
    "shufflenet-v2": (2_278_604, 0, 146, 0.01),  # [tv]; Ma et al. 2018, table 8
    "vovnet39": (22_600_296, 0, 7_086, 0.01),  # [cv]
    "vovnet27-slim": (3_525_736, 0, None, 0),  # [cv] asserts parameters only
}


def parameters(graph: Graph) -> int:
    """Trained weights: without a batch norm's mean and variance, and without given values."""
    total = 0
    for node in graph.nodes:
        tensors = node.inputs[:3] if node.op == "BatchNormalization" else node.inputs
        for tensor in tensors:
            weight = graph.weights.get(tensor)
            if weight is not None and weight.values is None:
                total += weight.type.elements
    return total


def multiply_adds(graph: Graph) -> int:
    """Of convs and fully connected layers, from their shapes alone."""
    total = 0
    for node in graph.nodes:
        if node.op == "Conv":
            weight = graph.type_of(node.inputs[1]).shape
            total += graph.type_of(node.outputs[0]).elements * prod(weight[1:])
        elif node.op == "Gemm":
            total += prod(graph.type_of(node.inputs[1]).shape)
    return total


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_multiply_adds_are_as_published(name: str) -> None:
    wanted, tolerance, macs, macs_tolerance = PUBLISHED[name]
    graph = zoo.build(name)
    assert parameters(graph) == pytest.approx(wanted, rel=tolerance, abs=0)
    if macs is not None:
        assert multiply_adds(graph) / 1e6 == pytest.approx(macs, rel=macs_tolerance)


def test_every_family_but_the_drawn_is_checked() -> None:
    published = {name for name, family in zoo.families().items() if not family.drawn}
    assert published == set(PUBLISHED)


@pytest.mark.parametrize(
    ("text", "millions", "parameters_millions"),
    [
        # Benchmark's answer to index 1: FLOP=113.95 M, Params=0.802 MB.
        (
            "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|"
            "+|skip_connect~0|nor_conv_3x3~1|skip_connect~2|",
            113.95,
            0.802426,
        ),
        # The largest cell: 220.12 M, 1.531 MB.
        (
            "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|"
            "+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|",
            220.12,
            1.531546,
        ),
    ],
)
def test_nasbench201_cells_are_as_the_benchmark_says(
    text: str, millions: float, parameters_millions: float
) -> None:
    b = GraphBuilder("cell")
    x = b.input((1, 3, 32, 32))
    graph = b.build([network(b, x, Design(), cell_from_text(text))])
    assert parameters(graph) / 1e6 == pytest.approx(parameters_millions, rel=1e-5)
    assert multiply_adds(graph) / 1e6 == pytest.approx(millions, rel=0.02)
