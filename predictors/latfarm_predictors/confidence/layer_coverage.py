"""What a set of measurements covers, which layers it does not, and what to measure about it.

CM_O (`confidence.py`) tells in milliseconds how far a layer is from what was measured; the paper
leaves to future work to choose measurements by it. Coverage is the same idea as a share that can
be compared between platforms and over time: distances are octaves of the layer's sizes, hence do
not depend on the measurements, and a further measurement never lowers it.
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
)
"""What makes a layer's configuration. A depthwise layer's groups are its channels: not counted."""

_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Gap:
    """A layer that is not fully covered.

    Attributes:
        layer: its place in the network.
        coverage: 0 to 1.
        lost: its share of the network's weight times what is not covered; gaps add up to what
            the network's coverage lacks.
        outside: sizes beyond everything measured of its kind; "family" where nothing was.
        nearest: the row of the nearest measurement; None where there is none of its kind.
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
        workload: what to measure.
        gain: by how much it raises the coverage, after the ones before it.
        coverage: what is then reached.
        layers: places of the layers that it helps.
    """

    workload: Workload
    gain: float
    coverage: float
    layers: tuple[int, ...]

    @property
    def configuration(self) -> dict[str, int | str]:
        """The configuration in the words that people use."""
        return configuration(self.workload)


def layer_coverage(
    measured: Sequence[Workload] | Table, layers: Sequence[Workload] | Table
) -> Array:
    """Coverage of each layer, shape (n,): 2^-d, d the distance to the nearest of its kind.

    A kind is a family, a main op and an element size. d is Euclidean, in octaves of `SIZES`: a
    layer measured as it is has 1, one of twice the channels than any 1/2, one of a kind never
    measured 0.
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
    """For each layer, the sizes that lie outside the range measured of its kind."""
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
        measured: what was measured.
        layers: the network's layers.
        weights: how much each counts, best its predicted latency; equal where None.

    Raises:
        ValueError: no layers, or weights that are negative, not finite, all zero or too few.
    """
    share = _shares(len(layers), weights)
    return min(float(share @ layer_coverage(measured, layers)), 1.0)


def family_coverage(
    measured: Sequence[Workload] | Table, layers: Sequence[Workload] | Table
) -> dict[str, float]:
    """Mean coverage of the layers of each family that occurs."""
    table = as_table(layers)
    found = layer_coverage(measured, table)
    families = np.array(table.families)
    return {name: float(found[families == name].mean()) for name in sorted(set(table.families))}


def platform_coverage(
    measured: Sequence[Workload] | Table, networks: Sequence[Sequence[Workload] | Table]
) -> float:
    """Mean coverage of the networks of interest, each counting the same.

    Raises:
        ValueError: no networks, or one without layers.
    """
    if not networks:
        raise ValueError("coverage of no networks")
    return float(np.mean([network_coverage(measured, network) for network in networks]))


def gaps(
    measured: Sequence[Workload] | Table,
    layers: Sequence[Workload] | Table,
    weights: npt.ArrayLike | None = None,
) -> tuple[Gap, ...]:
    """The layers that are not fully covered, the ones that cost the network most first.

    Raises:
        ValueError: see `network_coverage`.
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

    Candidates are the layers themselves. Greedy, and coverage is submodular: no choice of as many
    gains more than e / (e - 1) times as much. Ends early where everything is covered.

    Args:
        measured: what was measured.
        layers: layers of one network, or of several together.
        count: how many to choose.
        weights: how much each layer counts, best its predicted latency; equal where None.

    Raises:
        ValueError: see `network_coverage`.
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
    given = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.shape != (count,):
        raise ValueError(f"{count} layers, but weights of shape {given.shape}")
    if not (np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        raise ValueError("weights must be finite, not negative and not all zero")
    return np.asarray(given / given.sum())


def _rows(table: Table) -> Mapping[tuple[str, str, float], Rows]:
    """Rows of each kind."""
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
    """2^-distance of each layer to each measurement, 0 to another kind's, shape (n, m)."""
    from scipy.spatial.distance import cdist

    out = np.zeros((len(layers), len(measured)))
    known, sizes, asked = _rows(measured), _sizes(measured), _sizes(layers)
    for kind, rows in _rows(layers).items():
        if kind not in known:
            continue
        gap = cdist(asked[rows], sizes[known[kind]])
        out[np.ix_(rows, known[kind])] = np.exp2(-gap)
    return out
