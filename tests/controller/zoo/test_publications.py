"""Every family, as built, has the parameters and multiply-adds that its catalogue row cites."""

from __future__ import annotations

import pytest
from latfarm_controller import zoo
from latfarm_controller.zoo.cnn import catalogue as catalogue_cnn
from latfarm_controller.zoo.cnn.nasbench201 import cell_from_text, network
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.mobile import catalogue as catalogue_mobile
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.totals import macs_of, trained_parameters

PUBLISHED = {name: found.published for name, found in zoo.families().items() if found.published}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_multiply_adds_are_as_published(name: str) -> None:
    wanted = PUBLISHED[name]
    graph = zoo.build(name)
    assert trained_parameters(graph) == pytest.approx(
        wanted.parameters, rel=wanted.parameters_tolerance, abs=0
    )
    if wanted.macs is not None:
        assert macs_of(graph) == pytest.approx(wanted.macs, rel=wanted.macs_tolerance)


def rounding(figure: float) -> float:
    """Half a unit in the last digit of a figure that is not 0, relative to it."""
    digits, exponent = f"{figure:.6e}".split("e")
    unit = 10.0 ** (int(exponent) - len(digits.rstrip("0").replace(".", "")) + 1)
    return unit / 2 / figure


def test_figures_are_rounded_as_they_look() -> None:
    assert rounding(2.1e6) == pytest.approx(0.05 / 2.1)
    assert rounding(825e6) == pytest.approx(0.5 / 825)
    assert rounding(4_383_312) == pytest.approx(0.5 / 4_383_312)


# No source has their multiply-adds alone.
COUNTED_WITH_NORMS = {"proxyless-cpu", "proxyless-gpu"}


@pytest.mark.parametrize(
    "name", [f.name for f in (*catalogue_cnn.ALL, *catalogue_mobile.ALL) if not f.drawn]
)
def test_tolerances_are_one_percent_or_the_rounding(name: str) -> None:
    said = PUBLISHED[name]
    assert said.source
    if said.parameters_tolerance:
        allowed = max(0.01, rounding(said.parameters))
        assert said.parameters_tolerance <= allowed
    if said.macs is not None and name not in COUNTED_WITH_NORMS:
        assert 0 < said.macs_tolerance <= max(0.01, rounding(said.macs)) + 1e-9


def test_a_parameter_is_what_is_trained_and_counts_once() -> None:
    b = GraphBuilder("shared")
    x = b.input((1, 4, 8, 8))
    kernel = b.weight((4, 4, 3, 3))
    attrs = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    y = b.op("Conv", [b.op("Conv", [x, kernel], attrs), kernel], attrs)
    graph = b.build([b.reshape(b.clip(b.batch_norm(y), 0.0, 6.0), (1, -1))])
    assert trained_parameters(graph) == 4 * 4 * 3 * 3 + 2 * 4


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
    assert trained_parameters(graph) / 1e6 == pytest.approx(parameters_millions, rel=1e-5)
    assert macs_of(graph) / 1e6 == pytest.approx(millions, rel=0.02)
