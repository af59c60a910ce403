"""ANNETTE's four layer models: peaks, par and alpha, forests of time per operation."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.costs import Tiles, utilisation
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.published.annette import (
    AnnetteRoofline,
    RefinedRoofline,
    Unrolling,
    operations,
    raw_features,
)
from latfarm_predictors.models.published.annette_forest import Mixed, Statistical
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernel

OPS_PER_MS = 4e7
BYTES_PER_MS = 4e8


def conv(
    c_in: int, c_out: int, size: int = 16, kernel: int = 3, stride: int = 1, groups: int = 1
) -> Workload:
    b = GraphBuilder("conv")
    x = b.input((1, c_in, size, size))
    graph = b.build([b.conv(x, c_out, kernel, stride=stride, groups=groups)])
    return workload(extract(graph, graph.nodes))


def convs(count: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    sizes = [(*rng.integers(8, 200, 2), rng.integers(5, 40)) for _ in range(count)]
    return as_table([conv(int(c_in), int(c_out), int(size)) for c_in, c_out, size in sizes])


def true_ms(table: Table, unrolling: Unrolling) -> Array:
    """Latencies of an array that does exactly what the refined roofline says."""
    compute = operations(table) / OPS_PER_MS / unrolling.utilisation(table)
    return np.maximum(compute, table.total_bytes / BYTES_PER_MS)


def test_operations_count_two_a_multiply_add_and_one_an_element() -> None:
    b = GraphBuilder("others")
    x = b.input((1, 6, 8, 8))
    graph = b.build([b.max_pool(b.relu(x), 2, stride=2)])
    relu, pool = (workload(extract(graph, (node,))) for node in graph.nodes)
    layer = conv(4, 5, size=6)
    counted = operations([layer, relu, pool])
    np.testing.assert_array_equal(counted, [2 * 5 * 36 * 4 * 9, 6 * 64, 6 * 16 * 4])


def test_raw_features_hold_configuration_and_derived_sizes() -> None:
    row = raw_features([conv(4, 5, size=6, stride=2)])[0]
    assert row.tolist() == [1, 6, 6, 4, 5, 3, 3, 2, 2, 1, 1, 1, 2 * 5 * 9 * 36, 144, 45, 180]


def test_utilisation_by_hand() -> None:
    layer = [conv(12, 20)]
    assert Unrolling(filters=16).utilisation(layer)[0] == pytest.approx(20 / 32)
    assert Unrolling(filters=16, channels=8).utilisation(layer)[0] == pytest.approx(
        20 / 32 * 12 / 16
    )
    # half of the loss counts: 1 / (0.5 + 0.5 * 32 / 20)
    assert Unrolling(filters=16, filters_alpha=0.5).utilisation(layer)[0] == pytest.approx(1 / 1.3)
    assert Unrolling(filters=16, filters_alpha=0.0).utilisation(layer)[0] == pytest.approx(1.0)


def test_a_depthwise_layer_unrolls_channels_and_a_grouped_one_its_groups() -> None:
    depthwise, grouped = conv(12, 12, groups=12), conv(12, 20, groups=4)
    assert Unrolling(filters=64).utilisation([depthwise])[0] == 1.0
    assert Unrolling(channels=8).utilisation([depthwise])[0] == pytest.approx(12 / 16)
    assert Unrolling(filters=8, channels=2).utilisation([grouped])[0] == pytest.approx(
        5 / 8 * 3 / 4
    )


def test_a_matrix_has_no_height_and_width() -> None:
    b = GraphBuilder("fc")
    graph = b.build([b.fc(b.input((1, 20)), 10)])
    matrix = [workload(extract(graph, graph.nodes))]
    assert Unrolling(height=16, width=16).utilisation(matrix)[0] == 1.0
    assert Unrolling(filters=16, channels=16).utilisation(matrix)[0] == pytest.approx(
        10 / 16 * 20 / 32
    )


def test_the_refined_roofline_is_the_analytic_one_where_alphas_are_one() -> None:
    table = convs(40, 0)
    ours = RefinedRoofline()
    ours.ops_per_ms, ours.bytes_per_ms = 2 * 3e7, 5e6
    ours.unrolling = Unrolling(filters=24, channels=4, height=3, width=3)
    compute_ms = table.macs / 3e7 / utilisation(table, Tiles(24, 4, rows=3))
    theirs = np.maximum(compute_ms, table.total_bytes / 5e6)
    np.testing.assert_allclose(ours.latency_ms(table), theirs, rtol=1e-12)


def test_peaks_are_the_largest_seen_so_nothing_was_faster_than_its_roof() -> None:
    table = convs(60, 1)
    latency = true_ms(table, Unrolling()) * np.random.default_rng(0).uniform(1.0, 3.0, 60)
    model = AnnetteRoofline().fit(table, latency)
    assert model.ops_per_ms == pytest.approx((operations(table) / latency).max())
    assert model.bytes_per_ms == pytest.approx((table.total_bytes / latency).max())
    assert (model.predict(table)[0] <= latency * (1 + 1e-12)).all()


def test_a_compute_bound_board_is_recovered() -> None:
    table = convs(200, 2)
    truth = Unrolling(filters=24, channels=10, height=4, width=4)
    rng = np.random.default_rng(0)
    latency = true_ms(table, truth) * np.exp(0.01 * rng.standard_normal(200))
    model = RefinedRoofline().fit(table, latency)
    found = model.unrolling
    assert (found.filters, found.channels, found.height, found.width) == (24, 10, 4, 4)
    assert found.filters_alpha > 0.95
    judged = convs(100, 3)
    truth_ms = true_ms(judged, truth)
    refined = evaluate(model.predict(judged)[0], truth_ms)
    plain = evaluate(AnnetteRoofline().fit(table, latency).predict(judged)[0], truth_ms)
    assert refined.within10 > 0.9
    assert plain.within10 < 0.3


def test_alpha_is_found_on_a_sweep_of_one_dimension() -> None:
    table = as_table([conv(32, c_out) for c_out in range(4, 132)])
    truth = Unrolling(filters=32, filters_alpha=0.6)
    model = RefinedRoofline().fit(table, true_ms(table, truth) + 0.002)
    assert model.unrolling.filters == 32
    assert model.unrolling.filters_alpha == pytest.approx(0.6, abs=0.05)
    assert model.unrolling.channels == model.unrolling.height == 1  # these never varied


def test_few_compute_bound_rows_refine_nothing() -> None:
    table = convs(20, 4)
    assert RefinedRoofline().fit(table, true_ms(table, Unrolling(16))).unrolling == Unrolling()


@pytest.mark.parametrize("throughput", [False, True])
def test_constant_time_per_operation_is_learned_exactly(throughput: bool) -> None:
    table = convs(40, 5)
    latency = operations(table) / 3e7
    model = Statistical(trees=20, throughput=throughput).fit(table, latency)
    judged = convs(30, 6)
    np.testing.assert_allclose(model.predict(judged)[0], operations(judged) / 3e7, rtol=1e-9)
    again = Statistical.from_state(model.state())
    assert again.throughput is throughput
    np.testing.assert_array_equal(again.tree_latency_ms(judged), model.tree_latency_ms(judged))


def test_the_mean_over_trees_is_the_prediction() -> None:
    table = convs(60, 7)
    latency = true_ms(table, Unrolling(16)) + 0.01
    for model in (Statistical(trees=20), Mixed(trees=20)):
        model.fit(table, latency)
        np.testing.assert_allclose(
            model.tree_latency_ms(table).mean(axis=0), model.predict(table)[0], rtol=1e-12
        )


def test_out_of_bag_latencies_are_worse_than_those_of_trees_that_saw_the_row() -> None:
    board, rng = SyntheticBoard(), np.random.default_rng(0)
    works = [workload(random_kernel(rng, "conv")) for _ in range(120)]
    latency = np.array([board.kernel_true_ms(work) for work in works])
    model = Statistical(trees=60).fit(works, latency)
    unseen, variance = model.out_of_bag(works)
    seen_error = evaluate(model.predict(works)[0], latency).mean_ape
    assert evaluate(unseen, latency).mean_ape > 1.3 * seen_error
    assert (variance >= 0).all()
    with pytest.raises(ValueError, match="rows of the fit"):
        model.out_of_bag(works[:-1])
    with pytest.raises(ValueError, match="rows of the fit"):
        Statistical.from_state(model.state()).out_of_bag(works)
    with pytest.raises(ValueError, match="time per operation"):
        Statistical(trees=20, throughput=True).fit(works, latency).out_of_bag(works)


def test_the_mixed_model_leaves_the_staircase_to_the_array() -> None:
    truth = Unrolling(filters=48, channels=20)
    table, judged = convs(150, 8), convs(150, 9)
    latency, truth_ms = true_ms(table, truth), true_ms(judged, truth)
    mixed = Mixed(trees=60).fit(table, latency)
    assert (mixed.analytic.unrolling.filters, mixed.analytic.unrolling.channels) == (48, 20)
    share = {
        name: evaluate(model.predict(judged)[0], truth_ms).within10
        for name, model in {
            "mixed": mixed,
            "statistical": Statistical(trees=60).fit(table, latency),
        }.items()
    }
    assert share["mixed"] > 0.95
    assert share["mixed"] > share["statistical"] + 0.2
