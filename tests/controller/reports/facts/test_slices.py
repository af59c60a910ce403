"""Slices through measured kernels, and kernels that are moved along an axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from latfarm_controller.reports.facts import slices
from latfarm_controller.reports.facts.slices import Axis, Row, find_slices, moved
from latfarm_controller.reports.facts.staircases import grid
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload

Build = Callable[[GraphBuilder, int], str]


def work(build: Build, place: int) -> Workload:
    b = GraphBuilder("k")
    return workload(Kernel(b.build([build(b, place)])))


def conv_out(b: GraphBuilder, place: int) -> str:
    return b.relu(b.conv(b.input((1, 16, 14, 14)), place, 3, stride=2))


def conv_in(b: GraphBuilder, place: int) -> str:
    return b.conv(b.input((1, place, 14, 14)), 24, 1)


def conv_side(b: GraphBuilder, place: int) -> str:
    return b.conv(b.input((1, 8, place, place)), 24, 3)


def with_add(b: GraphBuilder, place: int) -> str:
    return b.add(b.conv(b.input((1, 8, 14, 14)), place, 3), b.input((1, place, 14, 14)))


def depthwise(b: GraphBuilder, place: int) -> str:
    return b.depthwise(b.input((1, place, 14, 14)), 3)


def dense_out(b: GraphBuilder, place: int) -> str:
    return b.fc(b.input((4, 64)), place)


def dense_in(b: GraphBuilder, place: int) -> str:
    return b.fc(b.input((4, place)), 32)


def pool(b: GraphBuilder, place: int) -> str:
    return b.max_pool(b.input((1, place, 14, 14)), 2)


def pool_side(b: GraphBuilder, place: int) -> str:
    return b.max_pool(b.input((1, 8, place, place)), 2)


def global_pool(b: GraphBuilder, place: int) -> str:
    return b.global_avg_pool(b.input((1, 8, place, place)))


@pytest.mark.parametrize(
    ("build", "axis"),
    [
        (conv_out, "out_channels"),
        (conv_in, "in_channels"),
        (conv_side, "spatial"),
        (with_add, "out_channels"),
        (depthwise, "out_channels"),
        (dense_out, "out_channels"),
        (dense_in, "in_channels"),
        (pool, "out_channels"),
        (pool_side, "spatial"),
        (global_pool, "spatial"),
    ],
)
@pytest.mark.parametrize("place", [8, 20, 36])
def test_a_moved_kernel_is_the_one_built_there(build: Build, axis: Axis, place: int) -> None:
    assert moved(work(build, 24), axis, place) == work(build, place)


def conv(inside: int, outside: int, *, relu: bool = True) -> Graph:
    b = GraphBuilder("c")
    x = b.conv(b.input((1, inside, 14, 14)), outside, 3)
    return b.build([b.relu(x) if relu else x])


def row(graph: Graph) -> Row:
    return Row(workload(Kernel(graph)), 1.0, 0.01, 2, "single")


def test_the_densest_slice_comes_first() -> None:
    rows = [row(conv(16, n)) for n in (8, 16, 32, 64)] + [row(conv(100, n)) for n in (8, 16)]
    best, *others = find_slices(rows, "out_channels")
    assert best.anchor.in_channels == 16
    assert len(best.exact) == 4
    assert best.near == ()
    assert [s.anchor.in_channels for s in others] == [100]


def test_near_is_within_the_tolerance_or_of_another_type() -> None:
    rows = [row(conv(16, n)) for n in (8, 32)]
    rows += [row(conv(16, 20, relu=False)), row(conv(18, 24)), row(conv(30, 28))]
    best = find_slices(rows, "out_channels")[0]
    assert best.anchor.in_channels == 16
    assert sorted(r.work.out_channels for r in best.exact) == [8, 32]
    assert sorted(r.work.out_channels for r in best.near) == [20, 24]
    limit = slices.TOLERANCE * 16
    assert all(r.work.in_channels <= limit for r in best.near)


def product(channels: int, *, broadcast: bool, size: int = 14) -> Graph:
    """A product of a map with another map, or with a number for each channel."""
    b = GraphBuilder("m")
    shape = (1, channels, 1, 1) if broadcast else (1, channels, size, size)
    return b.build([b.mul(b.input((1, channels, size, size)), b.input(shape))])


def test_products_with_a_map_and_with_a_number_for_each_channel_are_apart() -> None:
    maps = [row(product(n, broadcast=False)) for n in (16, 32, 64)]
    scales = [row(product(n, broadcast=True)) for n in (24, 48, 96, 192)]
    best, other = find_slices([*maps, *scales], "out_channels")
    assert [len(each.exact) for each in (best, other)] == [4, 3]
    assert best.near == other.near == (), "a map moves twice the bytes"
    assert {r.work.input_bytes // r.work.output_bytes for r in best.exact} == {1}
    sizes = [row(product(32, broadcast=True, size=size)) for size in (7, 14, 28, 56)]
    (spatial,) = find_slices(sizes, "spatial")
    assert len(spatial.exact) == 4


def test_one_place_or_a_short_span_is_no_slice() -> None:
    assert find_slices([row(conv(16, 8))], "out_channels") == []
    assert find_slices([row(conv(16, 8)), row(conv(16, 9))], "out_channels") == []
    assert find_slices([], "spatial") == []


def test_the_curve_is_drawn_at_places_like_the_measured_ones() -> None:
    assert grid([8, 32, 96])[:3] == [8, 16, 24]
    assert all(place % 8 == 0 for place in grid([8, 32, 96]))
    wide = grid([7, 64, 900])
    step = wide[-1] - wide[-2]
    assert (step & (step - 1)) == 0
    assert 50 <= len(wide) <= 130
    assert grid([7, 14])[0] > 0
    for places in ([8, 32, 96], [7, 64, 900], [7, 14], [1, 2], [16, 2048]):
        drawn = grid(places)
        assert drawn == sorted(set(drawn))
        assert drawn[0] <= min(places)
        assert drawn[-1] >= max(places)
        assert len(drawn) <= 403
