"""Variants: nn-Meter's rule draws what the paper says, the wide rule what it always drew."""

from __future__ import annotations

from collections import Counter

import pytest
from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.draws.variants import RESOLUTIONS, variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of


def convs(graph: Graph) -> list[tuple[int, int]]:
    """Output channels and kernel size of each convolution, in order."""
    found = []
    for node in graph.nodes:
        if node.op == "Conv":
            shape = graph.type_of(node.inputs[1]).shape
            found.append((shape[0], shape[2]))
    return found


def test_nn_meters_rule_keeps_224_pixels_and_its_ranges() -> None:
    published = convs(zoo.build("vgg11"))
    kernels: Counter[int] = Counter()
    for seed in range(60):
        graph = variant("vgg11", seed, rule="nn-meter")
        assert graph.type_of(graph.inputs[0]).shape == (1, 3, 224, 224)
        drawn = convs(graph)
        assert len(drawn) == len(published)
        for (channels, kernel), (base, _) in zip(drawn, published, strict=True):
            assert 0.2 * base - 1 <= channels <= 1.8 * base + 1
            kernels[kernel] += 1
    assert set(kernels) == {1, 3, 5, 7, 9}
    # All five equally often: 480 draws, so each lies well within 96 +- 40.
    assert all(56 <= count <= 136 for count in kernels.values())


def test_nn_meters_channels_are_spread_over_the_range_and_any_integer() -> None:
    factors = []
    odd = 0
    for seed in range(60):
        for channels, base in zip(
            (c for c, _ in convs(variant("vgg11", seed, rule="nn-meter"))),
            (c for c, _ in convs(zoo.build("vgg11"))),
            strict=True,
        ):
            factors.append(channels / base)
            odd += channels % 2
    thirds = Counter(min(int((factor - 0.2) / 1.6 * 3), 2) for factor in factors)
    assert min(thirds.values()) > len(factors) / 5
    assert odd > len(factors) / 4


@pytest.mark.parametrize("name", ["nasbench201", "nin-cifar"])
def test_families_of_small_images_keep_32_pixels(name: str) -> None:
    graph = variant(name, 3, rule="nn-meter")
    assert graph.type_of(graph.inputs[0]).shape == (1, 3, 32, 32)


def test_cells_are_taken_as_they_are() -> None:
    assert variant("nasbench201", 17, rule="nn-meter") == zoo.build("nasbench201@17")
    assert variant("nasbench201@17", 5, rule="nn-meter") == zoo.build("nasbench201@17")


def test_the_wide_rule_draws_resolutions() -> None:
    sizes = {variant("resnet18", seed).type_of("input").shape[2] for seed in range(40)}
    assert sizes == set(RESOLUTIONS)


def test_a_batch_and_a_label_and_a_resolution_are_heeded() -> None:
    graph = variant("mobilenet-v2", 1, rule="nn-meter", batch=4, label="mine", resolutions=(128,))
    assert graph.name == "mine"
    assert graph.type_of("input").shape == (4, 3, 128, 128)
    assert graph.type_of(graph.outputs[0]).shape[0] == 4
    assert hash_of(graph) != hash_of(
        variant("mobilenet-v2", 1, rule="nn-meter", resolutions=(128,))
    )


def test_variants_carry_no_weights() -> None:
    graph = variant("resnet18", 2, rule="nn-meter")
    assert all(weight.values is None for weight in graph.weights.values())


def test_unknown_rules_and_impossible_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="known: wide, nn-meter"):
        variant("resnet18", 1, rule="other")  # type: ignore[arg-type]
    with pytest.raises(GraphError):
        variant("alexnet", 1, rule="nn-meter", resolutions=(4,))
