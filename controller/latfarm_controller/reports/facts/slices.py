"""Slices through the measured kernels: kernels that differ in one size only.

A slice is anchored at a measured kernel. Points on the slice have the same type and the same other
sizes, those of their operands included: a product of two maps is no point of a slice of products of
a map and a number for each channel. Points near the slice have other sizes within a factor of
`TOLERANCE`, or other ops after the main one; they are kept separate.
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
"""Largest factor between another size of a point near the slice and that size of the slice."""

AXES: Mapping[str, tuple[Axis, ...]] = MappingProxyType(
    {
        "conv": ("out_channels", "in_channels", "spatial"),
        "fc": ("out_channels", "in_channels"),
    }
)
"""Sizes that can be varied alone, by family of kernels."""
_OTHERS: tuple[Axis, ...] = ("out_channels", "spatial")
"""Sizes that can be varied alone, for all other families of kernels."""
_ALIKE = ("family", "dtype", "kernel_h", "kernel_w", "stride_h", "stride_w")
"""Fields of a workload with a window that are equal for all kernels near a slice."""
_SAME = ("dilation_h", "dilation_w", "inputs")
"""Further fields that are equal for all kernels near a slice."""
_NEAR_WORTH = 0.35
"""Value of a place with points near the slice, where a place with points on it has 1."""
_LEAST_SPAN = 1.5
"""Smallest factor between the first and the last place of a slice."""


@dataclass(frozen=True)
class Row:
    """A measured kernel.

    Attributes:
        work: its workload.
        latency_ms: its latency in milliseconds, without the overhead of the call.
        mad_ms: the median absolute deviation of the latency, in milliseconds.
        measurements: number of measurements.
        insight: how the latency was obtained.
    """

    work: Workload
    latency_ms: float
    mad_ms: float
    measurements: int
    insight: str


@dataclass(frozen=True)
class Slice:
    """A slice through the measured kernels.

    Attributes:
        anchor: the kernel that gives the sizes that do not vary.
        axis: the size that varies.
        exact: the kernels on the slice.
        near: the kernels near the slice.
    """

    anchor: Workload
    axis: Axis
    exact: tuple[Row, ...]
    near: tuple[Row, ...]

    @property
    def worth(self) -> float:
        """How well the points show the curve: the number of distinct places along the axis."""
        on = {position(row.work, self.axis) for row in self.exact}
        beside = {position(row.work, self.axis) for row in self.near} - on
        return len(on) + _NEAR_WORTH * len(beside)


def axes(work: Workload) -> tuple[Axis, ...]:
    """The sizes of a kernel that can be varied alone."""
    return AXES.get(work.family, _OTHERS)


def position(work: Workload, axis: Axis) -> int:
    """The place of a kernel along an axis."""
    if axis == "spatial":
        return work.in_w
    return work.out_channels if axis == "out_channels" else work.in_channels


def _held(work: Workload, axis: Axis) -> tuple[float, ...]:
    """The sizes that a slice does not vary, in a fixed order; sizes that vary together once."""
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
    if work.family not in AXES and work.inputs > 1:
        # How many operands are as large as the result, and how many are broadcast to it.
        sizes.append(round(work.input_bytes / max(work.output_bytes, 1), 1))
    return tuple(sizes)


def _kind(work: Workload, axis: Axis) -> tuple[object, ...]:
    window = axis != "spatial" or work.family != "global_pool"
    names = _ALIKE if window else _ALIKE[:2]
    return main_op(work.type), *(getattr(work, name) for name in (*names, *_SAME))


def find_slices(rows: Sequence[Row], axis: Axis) -> list[Slice]:
    """A slice for each distinct anchor that has two or more places, the best one first."""
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
    """Which rows of `sizes`, shape (n, d), equal `held`, shape (d,), within the tolerance."""
    larger, smaller = np.maximum(sizes, held), np.minimum(sizes, held)
    alike = np.where(smaller > 0, larger <= TOLERANCE * smaller, sizes == held)
    return np.asarray(alike.all(axis=1))


def moved(work: Workload, axis: Axis, place: int) -> Workload:
    """The same kernel at another place along an axis, with its new bytes and operations.

    The shape of the main op's weight tells which weights grow with the axis and which do not, such
    as a bias along input channels.
    """
    if axis == "spatial":
        return _resized(work, place)
    ratio = place / max(position(work, axis), 1)
    element = ELEMENT_BYTES.get(work.dtype, 1)
    main_in = element * work.batch * work.in_h * work.in_w * work.in_channels
    extra_in = max(work.input_bytes - main_in, 0)
    if work.family not in AXES:
        # All channels change together, so everything grows with them.
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
    """The same kernel on a square feature map of another size."""
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
