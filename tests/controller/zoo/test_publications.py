"""Every family, as built, has the parameters and multiply-adds that its catalogue row cites."""

from __future__ import annotations

import pytest
from latfarm_controller import zoo
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.nasbench201 import cell_from_text, network
from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder

PUBLISHED = {name: found.published for name, found in zoo.families().items() if found.published}


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_multiply_adds_are_as_published(name: str) -> None:
    wanted = PUBLISHED[name]
    graph = zoo.build(name)
    assert parameters(graph) == pytest.approx(
        wanted.parameters, rel=wanted.parameters_tolerance, abs=0
    )
    if wanted.macs is not None:
        assert graph.macs == pytest.approx(wanted.macs, rel=wanted.macs_tolerance)


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
    assert graph.macs / 1e6 == pytest.approx(millions, rel=0.02)
