"""Tables of workloads, features and analytic costs."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_predictors.features.costs import (
    TILE_MOVES,
    Tiles,
    roofline_ms,
    tiled_work,
    utilisation,
)
from latfarm_predictors.features.table import Table, appended_ops, as_table, main_op
from latfarm_predictors.features.table_features import (
    Vocabulary,
    engineered,
    indicator,
    quantise,
    residual_features,
    scheme_features,
    table6,
    two_adic,
    window_features,
)
from latfarm_predictors.features.tile_features import tile_features, transformed_weights
from latfarm_predictors.features.winograd import winograd, winograd_3x3, winograd_ratio
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.testing.synthetic import USUAL_COUNTS, random_kernel, random_kernels

ALL_FAMILIES = {**USUAL_COUNTS, "grouped_conv": 4, "norm": 3, "lrn": 3, "softmax": 3}


def survey(seed: int = 0) -> list[Workload]:
    rng = np.random.default_rng(seed)
    return [workload(kernel) for kernel in random_kernels(rng, ALL_FAMILIES)]


def conv(
    size: int = 14, c_in: int = 32, c_out: int = 64, window: int = 3, stride: int = 1
) -> Workload:
    b = GraphBuilder("conv")
    x = b.input((1, c_in, size, size))
    graph = b.build([b.conv(x, c_out, window, stride=stride)])
    return workload(extract(graph, graph.nodes))


def test_a_table_has_the_values_of_its_workloads() -> None:
    works = survey()
    table = as_table(works)
    assert len(table) == len(works)
    assert table.types == tuple(w.type for w in works)
    assert table.macs.tolist() == [w.macs for w in works]
    assert table.out_channels.tolist() == [w.out_channels for w in works]
    assert as_table(table) is table


def test_taking_rows_keeps_every_column_aligned() -> None:
    works = survey()
    rows = np.array([5, 0, 5, 2])
    taken, made = as_table(works).take(rows), as_table([works[i] for i in rows])
    assert taken.families == made.families
    for name in ("macs", "in_h", "element_bytes", "groups"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(made, name))


def everything(table: Table) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """All features that regressors use of a table, side by side."""
    base, ratio = np.log(roofline_ms(table)), np.log(winograd_ratio(table))
    return np.concatenate(
        [
            engineered(table, base, ratio),
            residual_features(table, base, ratio, (24.0, 4.0, 3.0)),
            scheme_features(table, table.once(winograd_3x3)),
            window_features(table),
            table.once(tile_features),
            table.once(transformed_weights),
            np.stack(tiled_work(table, Tiles(24, 20, rows=5)), axis=1),
            Vocabulary(("Conv", "Relu"), ("Relu", "Add")).columns(table),
        ],
        axis=1,
    )


def test_rows_taken_from_a_table_have_the_features_that_they_have_alone() -> None:
    works = survey()
    whole = as_table(works)
    rng = np.random.default_rng(0)
    for known in (False, True):  # whether columns were already computed for the whole table
        if known:
            everything(whole)
        rows = rng.integers(0, len(works), 40)
        again = rng.permutation(40)[:25]
        alone = everything(as_table([works[row] for row in rows]))
        assert everything(whole.take(rows)).tobytes() == alone.tobytes()
        assert everything(whole.take(rows).take(again)).tobytes() == alone[again].tobytes()
    assert everything(whole.take(rows[:0])).shape == (0, alone.shape[1])


def test_a_changed_type_of_taken_rows_changes_their_features() -> None:
    works = [workload(k) for k in random_kernels(np.random.default_rng(1), {"conv": 6})]
    whole = as_table(works)
    everything(whole)
    taken = whole.take(np.arange(3))
    turned = replace(taken, types=("ConvTranspose",) * 3)
    np.testing.assert_array_equal(turned.positions, taken.batch * taken.in_h * taken.in_w)
    assert Vocabulary(("Conv",)).columns(turned).tolist() == [[0.0]] * 3


def test_a_copied_table_holds_its_columns_and_no_more() -> None:
    whole = as_table(survey())
    everything(whole)
    rows = np.arange(4)
    kept = pickle.loads(pickle.dumps(whole.take(rows)))
    assert len(pickle.dumps(kept)) < 5000
    assert everything(kept).tobytes() == everything(whole.take(rows)).tobytes()


def test_an_empty_table_is_a_table() -> None:
    table = as_table([])
    assert len(table) == 0
    assert table.positions.shape == (0,)
    assert tiled_work(table, Tiles())[0].shape == (0,)


def test_workloads_are_compared_by_value() -> None:
    assert conv() == conv()
    assert conv() != conv(c_out=65)


def test_features_of_every_family_are_finite() -> None:
    table = as_table(survey())
    base = np.log(roofline_ms(table))
    ratio = np.log(winograd(table)[0])
    for made in (
        table6(table),
        engineered(table, base, ratio),
        residual_features(table, base, ratio, (24.0, 4.0, 1.0)),
    ):
        assert made.shape[0] == len(table)
        assert np.isfinite(made).all()


def test_main_and_appended_ops_follow_the_workload() -> None:
    assert main_op("Conv+BatchNormalization+Relu") == "Conv"
    assert main_op("Flatten+Gemm+Relu") == "Gemm"
    assert main_op("Dropout+Relu") == "Relu"
    assert main_op("Reshape") == "Reshape"
    assert main_op("Transpose+Reshape") == "Transpose"
    assert main_op("Transpose+Add") == "Transpose"
    assert main_op("Transpose+LayerNorm+Mul+Add") == "LayerNorm"
    assert main_op("Transpose+MatMul+Softmax") == "MatMul"
    assert main_op("Add+LayerNorm") == "Add"
    assert appended_ops("Flatten+Gemm+Relu") == ("Relu",)
    assert appended_ops("Conv+Add+Relu") == ("Add", "Relu")


def test_work_without_tiles_is_the_multiply_adds() -> None:
    table = as_table([w for w in survey() if w.family in ("conv", "grouped_conv", "dwconv", "fc")])
    work, _ = tiled_work(table, Tiles(1, 1, 1, 1))
    np.testing.assert_allclose(work, table.macs)


def test_a_transposed_convolution_counts_positions_of_its_input() -> None:
    b = GraphBuilder("up")
    graph = b.build([b.conv_transpose(b.input((1, 8, 7, 7)), 16, 4, stride=2, pads=1)])
    table = as_table([workload(extract(graph, graph.nodes))])
    np.testing.assert_allclose(tiled_work(table, Tiles(1, 1, 1, 1))[0], table.macs)


@given(
    st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 3, 5]), st.sampled_from([1, 2])
)
def test_tiles_never_lower_the_work(c_in: int, c_out: int, window: int, stride: int) -> None:
    table = as_table([conv(10, c_in, c_out, window, stride)])
    for tiles in (Tiles(24, 4), Tiles(8, 8, rows=6), Tiles(16, 32, positions=24), Tiles(1, 1)):
        share = utilisation(table, tiles)[0]
        assert 0.0 < share <= 1.0


def test_a_channel_beyond_the_tile_costs_a_whole_tile() -> None:
    full, over = (tiled_work(as_table([conv(c_out=n)]), Tiles(24, 4))[0][0] for n in (48, 49))
    assert over / full == pytest.approx(72 / 48)


def test_changed_tiles_never_have_both_rows_and_positions() -> None:
    tiles = Tiles()
    for name, size in TILE_MOVES:
        tiles = tiles.moved(name, size)
        assert tiles.rows == 1 or tiles.positions == 1


def test_winograd_is_chosen_for_large_3x3_and_not_for_strides_windows_of_1_or_groups() -> None:
    wide = conv(56, 128, 128, 3)
    ratio, chosen = winograd([wide, conv(56, 128, 128, 1), conv(56, 128, 128, 3, stride=2)])
    assert ratio[0] < 0.6
    assert chosen[0] in (2, 4, 6)
    assert ratio[1:].tolist() == [1.0, 1.0]
    assert chosen[1:].tolist() == [1.0, 1.0]
    # few channels: transforming costs more than it saves
    assert winograd([conv(3, 1, 2, 3)])[0][0] == 1.0


def test_the_roofline_is_bound_by_compute_or_traffic() -> None:
    table: Table = as_table([conv(56, 256, 256, 3), conv(56, 1, 1, 1)])
    latency = roofline_ms(table, macs_per_ms=1e7, bytes_per_ms=1e6, overhead_ms=0.5)
    assert latency[0] == pytest.approx(0.5 + table.macs[0] / 1e7)
    assert latency[1] == pytest.approx(0.5 + table.total_bytes[1] / 1e6)


@given(st.integers(1, 10_000), st.integers(1, 200))
def test_quantise_rounds_up_to_the_next_multiple(value: int, tile: int) -> None:
    rounded = quantise(np.array([float(value)]), tile)[0]
    assert rounded % tile == 0
    assert 0 <= rounded - value < tile


def test_larger_windows_have_different_features() -> None:
    rng = np.random.default_rng(5)
    work = workload(random_kernel(rng, "conv"))
    sides = (1, 3, 5, 7, 8, 9, 11)
    found = window_features(as_table([work._replace(kernel_h=s, kernel_w=s) for s in sides]))
    marked = [(sides[row], column) for row, column in np.argwhere(found == 1.0).tolist()]
    assert marked == [(5, 0), (7, 1), (9, 2), (11, 3)]
    assert found.sum() == 4


def test_two_adic_counts_factors_of_two() -> None:
    assert two_adic(np.array([1.0, 2.0, 12.0, 32.0, 64.0])).tolist() == [0, 1, 2, 5, 5]
    assert two_adic(np.array([2.5, 4.5, 1e18, 96.0]), cap=18).tolist() == [0, 0, 18, 5]


def test_a_vocabulary_leaves_out_ops_that_all_or_few_rows_have() -> None:
    names = ["Conv+Relu"] * 5 + ["Conv"] * 4 + ["ConvTranspose"]
    table = as_table([conv()] * len(names))
    table = Table(tuple(names), table.families, *_columns(table))
    found = Vocabulary.of(table)
    assert found.appended == ("Relu",)
    assert found.main == ("Conv",)
    columns = found.columns(table)
    assert columns[0].tolist() == [1.0, 1.0]
    assert columns[-1].tolist() == [0.0, 0.0]
    assert indicator([("Never",)], found.main).tolist() == [[0.0]]


def _columns(table: Table) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    skip = ("types", "families")
    return [getattr(table, name) for name in table.__dataclass_fields__ if name not in skip]
