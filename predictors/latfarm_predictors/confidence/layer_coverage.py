"""How well measurements cover layers, which layers they do not cover, and what to measure next.

CM_O (`measures.py`) says in milliseconds how far a layer is from the measured layers; the paper
leaves choosing measurements by it to future work. Coverage is the same idea as a share between 0
and 1, which can be compared between platforms and over time. Distances are octaves of the layer's
sizes, so they do not depend on the measurements, and a further measurement never lowers a coverage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Rows, Table, as_table
from latfarm_predictors.kernels.workload import Workload, configuration

SIZES = (
    "batch",
    "in_h",
    "in_w",
    "in_channels",
    "out_channels",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "dilation_h",
    "dilation_w",
    "groups",
    "inputs",
    "contiguous",
)
"""The sizes by which distances are measured.

The groups of a depthwise layer are its channels, so they do not count.
"""

_LEAST_GAIN = 1e-9
"""A measurement that raises the coverage by less than this is not worth making."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A layer that is not fully covered.

    Attributes:
        layer: place of the layer in the network.
        coverage: coverage of the layer, from 0 to 1.
        lost: what the layer takes off the network's coverage.
        outside: the layer's sizes outside the range that was measured of its kind; "family" where
            nothing of its kind was measured.
        nearest: row of the nearest measured layer; None where there is none of its kind.
    """

    layer: int
    coverage: float
    lost: float
    outside: tuple[str, ...]
    nearest: int | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """A measurement to make.

    Attributes:
        workload: the layer to measure.
        gain: how much it raises the network's coverage, after the remedies before it.
        coverage: the network's coverage after it.
        layers: places of the layers whose coverage it raises.
    """

    workload: Workload
    gain: float
    coverage: float
    layers: tuple[int, ...]

    @property
    def configuration(self) -> dict[str, int | str]:
        """The sizes of the layer to measure, by the names that reports show."""
        return configuration(self.workload)


def layer_coverage(
    measured: Sequence[Workload] | Table, layers: Sequence[Workload] | Table
) -> Array:
    """Coverage of each layer, shape (n,): 2^-d with d the distance to the nearest measured layer.

    Only layers of the same kind are compared: of the same family, main op and element size. d is
    Euclidean, in octaves of `SIZES`. So a layer that was measured as it is has coverage 1, one with
    twice the channels of any measured layer has 1/2, and one of a kind never measured has 0.
    """
    closeness = _closeness(as_table(measured), as_table(layers))
    return np.asarray(closeness.max(axis=1, initial=0.0))


def own_coverage(measured: Sequence[Workload] | Table) -> Array:
    """Coverage of each measured layer by the others, shape (n,)."""
    table = as_table(measured)
    closeness = _closeness(table, table)
    np.fill_diagonal(closeness, 0.0)
    return np.asarray(closeness.max(axis=1, initial=0.0))


def outside(
    measured: Sequence[Workload] | Table, layers: Sequence[Workload] | Table
) -> tuple[tuple[str, ...], ...]:
    """For each layer, the sizes that lie outside the range that was measured of its kind."""
    table, asked = as_table(measured), as_table(layers)
    known, wanted = _rows(table), _rows(asked)
    sizes, asked_sizes = _sizes(table), _sizes(asked)
    out: list[tuple[str, ...]] = [("family",)] * len(asked)
    for kind, rows in wanted.items():
        if kind not in known:
            continue
        low, high = sizes[known[kind]].min(axis=0), sizes[known[kind]].max(axis=0)
        for row in rows:
            beyond = (asked_sizes[row] < low) | (asked_sizes[row] > high)
            out[row] = tuple(name for name, is_out in zip(SIZES, beyond, strict=True) if is_out)
    return tuple(out)


def network_coverage(
    measured: Sequence[Workload] | Table,
    layers: Sequence[Workload] | Table,
    weights: npt.ArrayLike | None = None,
) -> float:
    """Mean coverage of a network's layers.

    Args:
        measured: the measured layers.
        layers: the network's layers.
        weights: weight of each layer, best its predicted latency; None means equal weights.

    Raises:
        ValueError: there are no layers, or weights are negative, not finite, all zero or too few.
    """
    share = _shares(len(layers), weights)
    return min(float(share @ layer_coverage(measured, layers)), 1.0)


def gaps(
    measured: Sequence[Workload] | Table,
    layers: Sequence[Workload] | Table,
    weights: npt.ArrayLike | None = None,
) -> tuple[Gap, ...]:
    """The layers that are not fully covered, those that lower the network's coverage most first.

    Arguments and errors are those of `network_coverage`.
    """
    share = _shares(len(layers), weights)
    closeness = _closeness(as_table(measured), as_table(layers))
    covered = closeness.max(axis=1, initial=0.0)
    beyond = outside(measured, layers)
    found = [
        Gap(
            row,
            float(covered[row]),
            float(share[row] * (1.0 - covered[row])),
            beyond[row],
            int(closeness[row].argmax()) if covered[row] > 0 else None,
        )
        for row in range(len(covered))
        if covered[row] < 1.0
    ]
    return tuple(sorted(found, key=lambda gap: (-gap.lost, gap.coverage, gap.layer)))


def remedies(
    measured: Sequence[Workload] | Table,
    layers: Sequence[Workload],
    count: int,
    weights: npt.ArrayLike | None = None,
) -> tuple[Remedy, ...]:
    """At most `count` measurements that raise the coverage of `layers` most, best first.

    Candidates are the layers themselves. They are picked greedily; since coverage is submodular, no
    other choice of as many raises it by more than e / (e - 1) times as much. There are fewer than
    `count` where everything is covered before.

    Args:
        measured: the measured layers.
        layers: the layers of one network, or of several together.
        count: number of measurements to choose.
        weights: weight of each layer, best its predicted latency; None means equal weights.

    Raises:
        ValueError: there are no layers, or weights are negative, not finite, all zero or too few.
    """
    share = _shares(len(layers), weights)
    covered = layer_coverage(measured, layers)
    between = _closeness(as_table(layers), as_table(layers))
    np.fill_diagonal(between, 1.0)
    chosen: list[Remedy] = []
    for _ in range(count):
        gained = np.maximum(between - covered[:, None], 0.0)
        gains = share @ gained
        best = int(gains.argmax())
        if gains[best] <= _LEAST_GAIN:
            break
        covered = np.maximum(covered, between[:, best])
        helped = tuple(int(row) for row in np.flatnonzero(gained[:, best] > 0))
        chosen.append(
            Remedy(layers[best], float(gains[best]), min(float(share @ covered), 1.0), helped)
        )
    return tuple(chosen)


def _shares(count: int, weights: npt.ArrayLike | None) -> Array:
    """Weights that add up to 1, shape (count,)."""
    given = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.shape != (count,):
        raise ValueError(f"{count} layers, but weights of shape {given.shape}")
    if not (np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        raise ValueError("weights must be finite, not negative and not all zero")
    return np.asarray(given / given.sum())


def _rows(table: Table) -> Mapping[tuple[str, str, float], Rows]:
    """The rows of each kind: family, main op and element size."""
    found: dict[tuple[str, str, float], list[int]] = {}
    element = table.element_bytes.tolist()
    for row, kind in enumerate(zip(table.families, table.main_ops, element, strict=True)):
        found.setdefault(kind, []).append(row)
    return {kind: np.array(rows, dtype=np.intp) for kind, rows in found.items()}


def _sizes(table: Table) -> Array:
    """Log2 of `SIZES`, shape (n, len(SIZES))."""
    depthwise = np.array([family == "dwconv" for family in table.families], dtype=np.bool_)
    columns = [getattr(table, name) for name in SIZES]
    columns[SIZES.index("groups")] = np.where(depthwise, 1.0, table.groups)
    return np.asarray(np.log2(np.maximum(np.stack(columns, axis=1), 1.0)))


def _closeness(measured: Table, layers: Table) -> Array:
    """2^-distance of each layer to each measured one, 0 to one of another kind, shape (n, m)."""
    out = np.zeros((len(layers), len(measured)))
    known, sizes, asked = _rows(measured), _sizes(measured), _sizes(layers)
    for kind, rows in _rows(layers).items():
        if kind not in known:
            continue
        out[np.ix_(rows, known[kind])] = np.exp2(-_distances(asked[rows], sizes[known[kind]]))
    return out


def _distances(first: Array, second: Array) -> Array:
    """Euclidean distances between rows of two arrays, shapes (n, k) and (m, k), as (n, m).

    scipy has the same, but every prediction needs it, and to import scipy takes half a second.
    """
    squares = np.zeros((len(first), len(second)))
    for one, other in zip(first.T, second.T, strict=True):
        squares += np.subtract.outer(one, other) ** 2
    return np.asarray(np.sqrt(squares))
