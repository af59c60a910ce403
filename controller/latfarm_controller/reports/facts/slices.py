"""Slices through what was measured: all sizes of a kernel held but one, where most points lie.

A slice is anchored at a measured kernel. Points on it share its type and all its other sizes;
points near it have other sizes within a factor of `TOLERANCE`, or other ops behind the main one,
and are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt
from latfarm_predictors.features.table import ELEMENT_BYTES, main_op
from latfarm_predictors.kernels.workload import Workload

Axis = Literal["out_channels", "in_channels", "spatial"]

TOLERANCE = 1.3
"""How far, as a factor, the other sizes of a point near the slice may lie from the slice's."""

AXES: Mapping[str, tuple[Axis, ...]] = MappingProxyType(
    {
        "conv": ("out_channels", "in_channels", "spatial"),
        "fc": ("out_channels", "in_channels"),
    }
)
"""What can be varied alone, by family; of all others, channels (in step) and the map's side."""
_OTHERS: tuple[Axis, ...] = ("out_channels", "spatial")
_ALIKE = ("family", "dtype", "kernel_h", "kernel_w", "stride_h", "stride_w")
_SAME = ("dilation_h", "dilation_w", "inputs")
_NEAR_WORTH = 0.35
_LEAST_SPAN = 1.5


@dataclass(frozen=True)
class Row:
    """A measured kernel: its workload and its latency in ms, call overhead taken off."""

    work: Workload
    latency_ms: float
    mad_ms: float
    measurements: int
    insight: str


@dataclass(frozen=True)
class Slice:
    """A slice: the anchor, what varies, and the rows on it and near it."""

    anchor: Workload
    axis: Axis
    exact: tuple[Row, ...]
    near: tuple[Row, ...]

    @property
    def worth(self) -> float:
        """How well measured points show the curve: by distinct places along the axis."""
        on = {position(row.work, self.axis) for row in self.exact}
        beside = {position(row.work, self.axis) for row in self.near} - on
        return len(on) + _NEAR_WORTH * len(beside)


def axes(work: Workload) -> tuple[Axis, ...]:
    """What of a kernel can be varied alone."""
    return AXES.get(work.family, _OTHERS)


def position(work: Workload, axis: Axis) -> int:
    """Where a kernel lies along an axis."""
    if axis == "spatial":
        return work.in_w
    return work.out_channels if axis == "out_channels" else work.in_channels


def _held(work: Workload, axis: Axis) -> tuple[float, ...]:
    """The sizes that a slice holds, in one order; tied ones once."""
    sizes: list[float] = [work.batch]
    if axis != "spatial":
        sizes += [work.in_h, work.in_w]
    if work.family in AXES:
        sizes += [work.in_channels] if axis != "in_channels" else []
        sizes += [work.out_channels] if axis != "out_channels" else []
    elif axis == "spatial":
        sizes += [work.in_channels, work.out_channels]
    else:
        sizes.append(work.in_channels / max(work.out_channels, 1))
    if work.family == "grouped_conv":
        sizes.append(work.groups)
    return tuple(sizes)


def _kind(work: Workload, axis: Axis) -> tuple[object, ...]:
    window = axis != "spatial" or work.family != "global_pool"
    names = _ALIKE if window else _ALIKE[:2]
    return main_op(work.type), *(getattr(work, name) for name in (*names, *_SAME))


def find_slices(rows: Sequence[Row], axis: Axis) -> list[Slice]:
    """A slice for each distinct anchor among `rows` that has two places or more, best first."""
    groups: dict[tuple[object, ...], list[tuple[tuple[float, ...], Row]]] = {}
    for row in rows:
        if axis not in axes(row.work) or (axis == "spatial" and row.work.in_h != row.work.in_w):
            continue
        groups.setdefault(_kind(row.work, axis), []).append((_held(row.work, axis), row))
    found = []
    for members in groups.values():
        sizes = np.array([held for held, _ in members], dtype=np.float64)
        for held, kind in sorted({(held, row.work.type) for held, row in members}):
            near_all = [members[at] for at in np.flatnonzero(_close(sizes, np.array(held)))]
            exact = [r for other, r in near_all if other == held and r.work.type == kind]
            near = [r for other, r in near_all if other != held or r.work.type != kind]
            places = {position(row.work, axis) for row in (*exact, *near)}
            if len(places) >= 2 and max(places) >= _LEAST_SPAN * min(places):
                anchor = max(exact, key=lambda row: position(row.work, axis)).work
                found.append(Slice(anchor, axis, tuple(exact), tuple(near)))
    return sorted(found, key=lambda s: (-s.worth, -len(s.exact), _sort_key(s.anchor)))


def _sort_key(work: Workload) -> tuple[float, ...]:
    return (work.in_w, work.in_channels, work.out_channels)


def _close(sizes: npt.NDArray[np.float64], held: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which rows of `sizes`, of shape (n, d), are those of `held` within the tolerance."""
    larger, smaller = np.maximum(sizes, held), np.minimum(sizes, held)
    alike = np.where(smaller > 0, larger <= TOLERANCE * smaller, sizes == held)
    return np.asarray(alike.all(axis=1))


def moved(work: Workload, axis: Axis, place: int) -> Workload:
    """The same kernel at another place along an axis; bytes and operations follow.

    Weights that do not grow with the axis (a bias along input channels) are told from those that do
    by the shape of the main op's weight.
    """
    if axis == "spatial":
        return _resized(work, place)
    ratio = place / max(position(work, axis), 1)
    element = ELEMENT_BYTES.get(work.dtype, 1)
    main_in = element * work.batch * work.in_h * work.in_w * work.in_channels
    extra_in = max(work.input_bytes - main_in, 0)
    if work.family not in AXES:
        # Channels go in step: everything grows with them.
        return work._replace(
            in_channels=max(round(work.in_channels * ratio), 1),
            out_channels=place,
            groups=place if work.family == "dwconv" else work.groups,
            macs=round(work.macs * ratio),
            input_bytes=round(work.input_bytes * ratio),
            output_bytes=round(work.output_bytes * ratio),
            weight_bytes=round(work.weight_bytes * ratio),
        )
    if axis == "out_channels":
        return work._replace(
            out_channels=place,
            macs=round(work.macs * ratio),
            input_bytes=round(min(main_in, work.input_bytes) + extra_in * ratio),
            output_bytes=round(work.output_bytes * ratio),
            weight_bytes=round(work.weight_bytes * ratio),
        )
    window = work.kernel_h * work.kernel_w * work.in_channels * work.out_channels
    growing = min(element * window, work.weight_bytes)
    return work._replace(
        in_channels=place,
        macs=round(work.macs * ratio),
        input_bytes=round(min(main_in, work.input_bytes) * ratio + extra_in),
        weight_bytes=round(work.weight_bytes + growing * (ratio - 1.0)),
    )


def _resized(work: Workload, side: int) -> Workload:
    """The same kernel on a square map of another side."""
    pooled = work.family == "global_pool"
    gap = work.in_w - work.out_w * work.stride_w
    out = work.out_w if pooled or work.out_w == 1 else max((side - gap) // work.stride_w, 1)
    ratio_in = side * side / max(work.in_h * work.in_w, 1)
    ratio_out = out * out / max(work.out_h * work.out_w, 1)
    return work._replace(
        in_h=side,
        in_w=side,
        out_h=out,
        out_w=out,
        kernel_h=side if pooled else work.kernel_h,
        kernel_w=side if pooled else work.kernel_w,
        macs=round(work.macs * ratio_out),
        input_bytes=round(work.input_bytes * ratio_in),
        output_bytes=round(work.output_bytes * ratio_out),
    )
