"""Winograd's tiles by window, and the features that are made of them."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.features.table import as_table
from latfarm_predictors.features.tile_features import tile_features, transformed_weights
from latfarm_predictors.features.winograd import (
    INPUT_SIDES,
    admitted,
    larger_windows,
    square_windows,
    tile_work,
    tile_work_within,
    winograd,
    winograd_3x3,
    winograd_ratio,
)
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.testing.convolutions import conv_work


def conv(size: int, window: int, channels: int = 64, stride: int = 1) -> Workload:
    return conv_work(size, channels, channels, window, stride)


@pytest.mark.parametrize(
    ("window", "tiles"),
    [
        (2, [3, 5, 7]),
        (3, [2, 4, 6]),
        (4, [0, 3, 5]),
        (5, [0, 2, 4]),
        (6, [0, 0, 3]),
        (7, [0, 0, 2]),
        (8, [0, 0, 0]),
        (9, [0, 0, 0]),
    ],
)
def test_the_tiles_of_each_window(window: int, tiles: list[int]) -> None:
    assert [admitted(side, window) for side in INPUT_SIDES] == tiles
    work = tile_work(as_table([conv(60, window)]))[0]
    assert [value < 1.0 for value in work] == [tile > 0 for tile in tiles]


def test_the_work_of_a_tile_is_that_of_equation_2() -> None:
    table = as_table([conv(56, 5), conv(56, 7)])
    work = tile_work(table)
    # F(4 x 4, 5 x 5): 8 x 8 inputs; 14 x 14 tiles cover the map
    tile = 2 * 64 * 8**3 + 64 * 64 * 8**2 + 4 * 8 * (8 + 4) * 64
    assert work[0, 2] == pytest.approx(14 * 14 * tile / (56 * 56 * 64 * 64 * 25))
    assert work[1].tolist() == [1.0, 1.0, work[1, 2]]
    ratio, chosen = winograd(table)
    assert chosen.tolist() == [4.0, 2.0]
    np.testing.assert_array_equal(ratio, work.min(axis=1))


def test_small_maps_admit_small_tiles_only_where_a_library_limits_them() -> None:
    table = as_table([conv(6, 3), conv(14, 3), conv(15, 3), conv(30, 3), conv(15, 5)])
    free, limited = winograd(table)[1], winograd(table, 14)[1]
    assert free.max() == 6.0
    # the roots of 36, 196, 225, 900 and 225 fourteenths, rounded as MNN does, are 1, 3, 4, 8, 4
    assert limited.tolist() == [2.0, 2.0, 4.0, 6.0, 4.0]
    assert (winograd_ratio(table, positions=14) >= winograd_ratio(table)).all()
    columns = tile_features(table, 14)
    assert columns.shape == tile_features(table).shape
    np.testing.assert_array_equal(columns[3], tile_features(table)[3])


def test_a_table_keeps_the_work_of_each_limit_apart() -> None:
    table = as_table([conv(6, 3), conv(15, 3)])
    first = [table.once(tile_work_within, positions).tolist() for positions in (0, 8, 14)]
    again = [table.once(tile_work_within, positions).tolist() for positions in (0, 8, 14)]
    assert first == again
    assert first[0] != first[1]


def test_a_library_without_larger_windows_has_the_ratio_of_3_x_3_alone() -> None:
    table = as_table([conv(56, 3), conv(56, 5), conv(56, 9), conv(56, 3, stride=2)])
    only = winograd_ratio(table, larger=False)
    both = winograd_ratio(table)
    assert only[0] == both[0] < 1.0
    assert both[1] < only[1] == 1.0
    assert only[2:].tolist() == both[2:].tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(winograd_3x3(table).min(axis=1), only)
    assert larger_windows(table)[0].tolist() == [1.0, 1.0]


def test_edition_1_has_the_tiles_that_no_library_admits() -> None:
    table = as_table([conv(56, 9), conv(56, 7), conv(56, 3)])
    earlier, now = winograd_ratio(table, 1), winograd_ratio(table)
    assert earlier[0] < 0.5 < now[0] == 1.0
    assert earlier[1] < now[1]
    assert earlier[2] == now[2]


def test_a_tile_on_a_map_of_one_pixel_wastes_work() -> None:
    # F(6 x 6, 3 x 3) on one pixel: 64 products for 9
    work = tile_work(as_table([conv(1, 3, channels=512)]))[0]
    assert work[2] > 64 / 9
    columns = tile_features(as_table([conv(1, 3, channels=512), conv(1, 1), conv(56, 5)]))
    assert columns.shape == (3, 13)
    assert columns[0, 10] == pytest.approx(np.log(work[2]))
    assert not columns[1, 8:].any()
    assert (columns[2, 11:] < 0).all()


def test_transformed_weights_beyond_caches() -> None:
    table = as_table([conv(14, 3, 512), conv(14, 3, 32), conv(14, 5, 512), conv(14, 3, 512, 2)])
    beyond = transformed_weights(table)
    whole = 4 * 512 * 512 * 64
    assert beyond[0].tolist() == [whole - 1e6, whole - 4e6, whole - 24e6]
    assert not beyond[1:].any()


def test_windows_that_no_scheme_computes() -> None:
    assert square_windows(as_table([conv(8, 1), conv(8, 3, stride=2)])).tolist() == [0.0, 0.0]
