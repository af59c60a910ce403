"""Moves that copy elements one by one pay for each piece."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP

PIECE_MS = 8e-6
"""What a piece takes here."""
BYTES_PER_MS = 8e6


def joined(size: int, channels: int, contiguous: int) -> Workload:
    """Two tensors of half the channels that become one."""
    moved = 4 * size * size * channels
    return Workload(
        family="concat",
        type="Concat",
        dtype="float32",
        batch=1,
        in_h=size,
        in_w=size,
        in_channels=channels // 2,
        out_h=size,
        out_w=size,
        out_channels=channels,
        kernel_h=1,
        kernel_w=1,
        stride_h=1,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
        groups=1,
        macs=0,
        input_bytes=moved,
        output_bytes=moved,
        weight_bytes=0,
        inputs=2,
        fused_ops=0,
        contiguous=contiguous,
    )


def measured(works: list[Workload], seed: int) -> tuple[Table, Array]:
    """Concatenations and their latencies, with 2 % of noise."""
    table = as_table(works)
    moved_ms = (table.input_bytes + table.output_bytes) / BYTES_PER_MS
    pieces_ms = PIECE_MS * table.output_bytes / 4 / table.contiguous
    noise = np.exp(0.02 * np.random.default_rng(seed).standard_normal(len(works)))
    return table, (0.002 + moved_ms + pieces_ms) * noise


def board() -> tuple[Table, Array]:
    """Forty concatenations of whole maps, and two that interleave single elements."""
    draw = np.random.default_rng(1)
    works = []
    for _ in range(40):
        size, channels = int(draw.integers(7, 57)), 2 * int(draw.integers(8, 129))
        works.append(joined(size, channels, size * size * channels // 2))
    return measured([*works, joined(16, 72, 1), joined(11, 120, 1)], 0)


def test_two_shapes_tell_what_a_piece_takes() -> None:
    table, latency_ms = board()
    judged, judged_ms = measured([joined(18, 104, 1), joined(14, 96, 1), joined(12, 128, 4)], 3)
    roofline = Roofline().fit(table, latency_ms)
    assert np.abs(roofline.latency_ms(judged) / judged_ms - 1.0).max() < 0.15
    told_ms, _ = RooflineGP().fit(table, latency_ms).predict(judged)
    assert np.abs(told_ms / judged_ms - 1.0).max() < 0.25


def test_a_roofline_of_an_older_bundle_has_no_pieces() -> None:
    table, latency_ms = board()
    state = Roofline().fit(table, latency_ms).state()
    older = replace(state, arrays={"coefficients": state.arrays["coefficients"][:-1]})
    plain = table.take(np.arange(40))
    told_ms = Roofline.from_state(older).latency_ms(plain)
    assert np.abs(told_ms / latency_ms[:40] - 1.0).max() < 0.15
