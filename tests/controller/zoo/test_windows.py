"""Windows that are too large for their map to be used are in no network that is drawn."""

from __future__ import annotations

from itertools import islice

import pytest
from latfarm_controller import zoo
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_controller.zoo.draws.variants import variant
from latfarm_controller.zoo.draws.windows import has_idle_windows, has_wide_window, wide_windows
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph


def one(kernel: int | tuple[int, int], side: int, stride: int = 1, dilation: int = 1) -> Graph:
    b = GraphBuilder("one")
    x = b.input((1, 8, side, side))
    return b.build([b.conv(x, 8, kernel, stride=stride, dilation=dilation)])


@pytest.mark.parametrize(
    ("kernel", "side", "stride", "dilation", "idle"),
    [
        (3, 2, 1, 1, False),
        (3, 1, 1, 1, True),
        (5, 3, 1, 1, False),
        (9, 2, 1, 1, True),
        (9, 4, 1, 1, True),
        (9, 5, 1, 1, False),
        (9, 7, 1, 1, False),
        (9, 5, 2, 1, False),
        (9, 4, 2, 1, True),
        (3, 2, 1, 2, True),
        (3, 3, 1, 2, False),
        ((1, 7), 4, 1, 1, False),
        ((1, 9), 4, 1, 1, True),
        (1, 1, 1, 1, False),
    ],
)
def test_a_window_is_idle_if_an_end_of_it_never_meets_the_map(
    kernel: int | tuple[int, int], side: int, stride: int, dilation: int, idle: bool
) -> None:
    assert has_idle_windows(one(kernel, side, stride, dilation)) is idle


def test_pools_have_windows_too() -> None:
    b = GraphBuilder("pool")
    x = b.input((1, 8, 4, 4))
    assert not has_idle_windows(b.build([b.max_pool(x, 3, stride=2)]))
    b = GraphBuilder("matrix")
    assert not has_idle_windows(b.build([b.fc(b.input((1, 8)), 4)]))


def test_wide_windows_are_beyond_3_x_3_and_move_by_one_element() -> None:
    found = [has_wide_window(one(k, 28, s).nodes[0]) for k, s in ((3, 1), (5, 1), (5, 2), (1, 1))]
    assert found == [False, True, False, False]
    assert [wide_windows(one(k, 28)) for k in (3, 7)] == [0, 1]


def test_networks_that_are_profiled_have_no_idle_windows() -> None:
    found = list(islice(KernelPrior(seed=5).networks(macs=(3e7, 2e9), wide=0.25), 40))
    assert len(found) == 40
    assert not any(has_idle_windows(graph) for graph in found)


def test_networks_of_left_out_lineages_are_never_profiled() -> None:
    barred = {"resnet", "vgg", "mobilenet"}
    prior = KernelPrior(zoo.calibration_families(barred), seed=5)
    names = {graph.name for graph in islice(prior.networks(macs=(3e7, 2e9), wide=0.25), 25)}
    related = {name for name, each in zoo.families().items() if each.lineage & barred}
    assert not any(name.startswith(tuple(related)) for name in names)


def test_variants_have_no_idle_windows_where_the_rule_is_ours() -> None:
    drawn = [variant("densenet121", seed) for seed in range(12)]
    assert not any(has_idle_windows(graph) for graph in drawn)
    published = [variant("resnet18", seed, rule="nn-meter", resolutions=[96]) for seed in range(8)]
    assert any(has_idle_windows(graph) for graph in published)
