"""Convolutions whose channels do not fill the blocks of a library's layout have their own rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.tile_features import unaligned
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.testing.convolutions import conv_work

SLOWER = 9.0
"""How much longer the work of an unaligned convolution takes here."""


def depthwise(size: int, channels: int, window: int) -> Workload:
    work = conv_work(size, channels, channels, window, 1)
    return work._replace(
        family="dwconv",
        groups=channels,
        macs=work.macs // channels,
        weight_bytes=work.weight_bytes // channels,
    )


def board(count: int, seed: int, *, lanes: int) -> tuple[Table, Array, Array]:
    """Depthwise convolutions, their measured latencies and the true ones.

    Half of them have any number of channels, the others one that 8 divides.
    """
    rng = np.random.default_rng(seed)
    works = []
    for number in range(count):
        channels = int(np.exp(rng.uniform(2.5, 6.5)))
        channels = channels if number % 2 else 8 * (channels // 8 + 1)
        works.append(
            depthwise(int(rng.integers(7, 80)), channels, int(rng.choice([3, 3, 5, 7, 9])))
        )
    table = as_table(works)
    apart = np.mod(table.out_channels, lanes) > 0 if lanes else np.zeros(count, dtype=bool)
    true = 0.004 + table.macs / 2e7 * np.where(apart, SLOWER, 1.0) + table.total_bytes / 2e7
    return table, true * np.exp(0.02 * rng.standard_normal(count)), true


@pytest.mark.parametrize("lanes", [4, 8])
def test_measurements_tell_which_channels_a_library_keeps_together(lanes: int) -> None:
    table, measured, _ = board(80, 1, lanes=lanes)
    roofline = Roofline().fit(table, measured)
    assert roofline.lanes == lanes
    judged, _, judged_ms = board(200, 2, lanes=lanes)
    assert evaluate(RooflineGP().fit(table, measured).predict(judged)[0], judged_ms).within10 > 0.9
    again = Roofline.from_state(roofline.state())
    np.testing.assert_array_equal(again.latency_ms(judged), roofline.latency_ms(judged))
    other = roofline.refit(table, measured, np.zeros(len(table)))
    assert other.lanes == lanes


def test_a_library_without_such_blocks_has_one_rate() -> None:
    table, measured, _ = board(80, 1, lanes=0)
    roofline = Roofline().fit(table, measured)
    assert roofline.lanes == 0
    state = roofline.state()
    older = {name: value for name, value in state.values.items() if name != "lanes"}
    again = Roofline.from_state(replace(state, values=older))
    np.testing.assert_array_equal(again.latency_ms(table), roofline.latency_ms(table))


def test_channels_of_a_group_count_and_those_of_images_do_not() -> None:
    image = conv_work(32, 3, 64, 3)
    odd, even = conv_work(32, 30, 64, 3), conv_work(32, 64, 64, 3)
    grouped = even._replace(family="grouped_conv", groups=32)  # two channels a group
    wide = even._replace(family="grouped_conv", groups=2)
    pool = odd._replace(family="pool", type="MaxPool")
    table = as_table([image, odd, even, grouped, wide, pool, depthwise(32, 30, 3)])
    assert unaligned(table, 4).tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert not unaligned(table, 0).any()
