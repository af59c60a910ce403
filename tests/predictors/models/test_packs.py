"""Libraries whose matrix products have loops for each combination of packs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.packed_products import (
    costs_of_pairs,
    pack_features,
    packed,
    packs_of,
    pairs_of,
)
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP

MACS_PER_MS = {16: 45e6, 8: 29e6, 4: 15e6, 1: 20e6}
"""Multiply-adds in a millisecond by the pack of outputs, with single rows."""
GAIN = {16: 2.2, 8: 1.8, 4: 1.4, 1: 1.0}
"""How many times as fast whole packs of rows are."""
CACHE_BYTES, BEYOND_PER_MS = 1e6, 6e7
"""Weights beyond the cache are read again for each pack of rows, at this rate."""


def product(rows: int, inner: int, outputs: int, family: str = "fc") -> Workload:
    """Rows times constant weights, with a bias."""
    return Workload(
        family=family,
        type="MatMul+Add",
        dtype="float32",
        batch=rows,
        in_h=1,
        in_w=1,
        in_channels=inner,
        out_h=1,
        out_w=1,
        out_channels=outputs,
        kernel_h=1,
        kernel_w=1,
        stride_h=1,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
        groups=1,
        macs=rows * inner * outputs,
        input_bytes=4 * rows * inner,
        output_bytes=4 * rows * outputs,
        weight_bytes=4 * (inner + 1) * outputs,
        inputs=1,
        fused_ops=1,
    )


def drawn(count: int, seed: int) -> list[Workload]:
    """Products with rows and outputs of all packs."""
    draw = np.random.default_rng(seed)
    works = []
    for _ in range(count):
        rows_of, outputs_of = draw.choice([1, 2, 4, 8, 16], 2)
        rows = int(draw.integers(3, 17) * rows_of + rows_of)
        works.append(
            product(rows, int(draw.integers(64, 513)), int(outputs_of * draw.integers(5, 60)))
        )
    return works


def measured(works: list[Workload], seed: int) -> tuple[Table, Array]:
    """Products and their latencies on the board, with 2 % of noise."""
    table = as_table(works)
    rows, outputs = packs_of(table, 16)
    rate = np.array(
        [GAIN[int(r)] * MACS_PER_MS[int(o)] for r, o in zip(rows, outputs, strict=True)]
    )
    again = np.maximum(table.weight_bytes - CACHE_BYTES, 0.0) * table.batch / rows
    noise = np.exp(0.02 * np.random.default_rng(seed).standard_normal(len(works)))
    return table, (0.002 + table.macs / rate + again / BEYOND_PER_MS) * noise


def error(told_ms: Array, latency_ms: Array) -> float:
    """The share beyond 10 % of the latency."""
    return float(np.mean(np.abs(told_ms / latency_ms - 1.0) > 0.1))


def test_packs_are_the_largest_that_divide() -> None:
    table = as_table([product(96, 64, 944), product(145, 64, 936), product(4, 64, 1362)])
    rows, outputs = packs_of(table, 16)
    assert (rows.tolist(), outputs.tolist()) == ([16, 1, 4], [16, 8, 1])
    rows, outputs = packs_of(table, 4)
    assert (rows.tolist(), outputs.tolist()) == ([4, 1, 4], [4, 4, 1])


def test_single_rows_and_products_of_activations_are_not_packed() -> None:
    activations = product(96, 64, 96, "matmul")._replace(weight_bytes=0)
    table = as_table([product(1, 64, 96), activations, product(96, 64, 96)])
    assert packed(table).tolist() == [False, False, True]
    assert pack_features(table, 16).tolist() == [[0, 0], [0, 0], [4, 4]]


def test_a_board_with_packs_is_learned_as_one() -> None:
    table, latency_ms = measured(drawn(160, 0), 1)
    judged, judged_ms = measured(drawn(120, 2), 3)
    roofline = Roofline().fit(table, latency_ms)
    assert roofline.packs == 16
    assert error(roofline.latency_ms(judged), judged_ms) < 0.3
    told_ms, _ = RooflineGP().fit(table, latency_ms).predict(judged)
    assert error(told_ms, judged_ms) < 0.1


def test_pairs_of_packs_that_were_never_measured_are_told_by_their_rows_and_outputs() -> None:
    table, latency_ms = measured(drawn(260, 0), 1)
    rows, outputs = packs_of(table, 16)
    unseen = (rows == 16) & (outputs < 8)
    assert unseen.sum() > 20
    model = RooflineGP().fit(table.take(np.flatnonzero(~unseen)), latency_ms[~unseen])
    told_ms, _ = model.predict(table.take(np.flatnonzero(unseen)))
    # told as the fastest pair, they would all be wrong by 0.6 or more
    assert np.quantile(np.abs(np.log(told_ms / latency_ms[unseen])), 0.9) < 0.3


def test_costs_of_pairs_that_were_seen_stay() -> None:
    pairs = pairs_of(4)
    assert pairs == [(4, 4), (4, 1), (1, 4), (1, 1)]
    told = costs_of_pairs(4, np.array([1.0, 0.0, 2.0, 6.0]), np.array([5, 0, 3, 2]))
    assert told.tolist() == pytest.approx([1.0, 3.0, 2.0, 6.0])
    # tiny kernels alone have the third pair: a fit tells their cost by other terms
    tiny = costs_of_pairs(4, np.array([1.0, 3.0, 1e-6, 6.0]), np.array([5, 4, 3, 2]))
    assert tiny.tolist() == pytest.approx([1.0, 3.0, 2.0, 6.0])
    nothing = costs_of_pairs(4, np.zeros(4), np.zeros(4))
    assert nothing.tolist() == [0.0] * 4


def test_a_board_without_packs_has_no_rates_for_them() -> None:
    works = drawn(160, 0)
    table = as_table(works)
    noise = np.exp(0.02 * np.random.default_rng(4).standard_normal(len(works)))
    latency_ms = (0.002 + table.macs / 4e7 + table.output_bytes / 8e6) * noise
    assert Roofline().fit(table, latency_ms).packs == 0


def test_packs_stay_when_a_bundle_is_read_and_when_it_is_fitted_again() -> None:
    table, latency_ms = measured(drawn(160, 0), 1)
    judged, _ = measured(drawn(40, 2), 3)
    fitted = RooflineGP().fit(table, latency_ms)
    told_ms, sigma = fitted.predict(judged)
    again_ms, again_sigma = RooflineGP.from_state(fitted.state()).predict(judged)
    assert again_ms == pytest.approx(told_ms)
    assert again_sigma == pytest.approx(sigma)
    noise = np.zeros(len(table))
    assert fitted.refit(table, 2 * latency_ms, noise).predict(judged)[0] == pytest.approx(
        2 * told_ms, rel=0.05
    )


def test_a_roofline_of_an_older_bundle_has_no_packs() -> None:
    works = drawn(60, 0)
    table = as_table(works)
    latency_ms = 0.002 + table.macs / 4e7
    state = Roofline().fit(table, latency_ms).state()
    values = {name: value for name, value in state.values.items() if name != "packs"}
    told_ms = Roofline.from_state(replace(state, values=values)).latency_ms(table)
    assert told_ms == pytest.approx(latency_ms, rel=0.05)
