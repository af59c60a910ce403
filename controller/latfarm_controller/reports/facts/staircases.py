"""Latency staircases of a platform: measured points, our prediction with its interval, a baseline.

Hardware computes in tiles, so latency rises in steps (nn-Meter, section 2.3; ANNETTE's Eq. 6).
The kernels shown are those in which networks spend most of their time. The baseline is a forest.

The prediction is that of a kernel inside a network. Where training corrected kernels that were
measured alone for that (`learned/isolation.py`), points are shown as it learned them: otherwise
they would all lie beside the band, although the prediction is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import ceil, gcd, log2
from statistics import median
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import NoBaselineError
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, configuration, workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.reports.facts.platform_record import PlatformRecord
from latfarm_controller.reports.facts.slices import (
    TOLERANCE,
    Axis,
    Row,
    Slice,
    axes,
    find_slices,
    moved,
    position,
)

if TYPE_CHECKING:
    from latfarm_predictors.features.table import Table
    from latfarm_predictors.predict.predictor import PlatformPredictor

MOST_FAMILIES = 4
"""Most families of kernels that have plots."""
MOST_PLOTS = 8
"""Most plots in a report."""
COVERAGE = 0.9
"""Coverage of the predicted intervals."""
_PLACES = 400
"""Most places along an axis at which a curve is computed."""
_SPARSE = 100
"""Most places of a curve, where the measured places have no common divisor."""
_FEWEST = 8
"""Fewest places of a curve."""
_MARGIN = 1.15
"""Factor by which a curve extends beyond the measured places."""
_SAME = 0.01
"""A latency that was learned and one that was measured are the same if they differ by this share at
most; medians are taken in another order."""
_FEW = 2
"""A slice with this number of points or fewer is not drawn."""


def rows_of(samples: Sequence[KernelSample], overhead_ms: float) -> list[Row]:
    """One row for each kernel, with medians over its samples.

    If a kernel was measured inside networks, its other samples are ignored, as in training.

    Args:
        samples: the samples of kernels.
        overhead_ms: latency of an empty model, which is taken off times of kernels alone.
    """
    pools: dict[str, list[KernelSample]] = {}
    for sample in samples:
        if sample.latency_ms > 0:
            pools.setdefault(sample.kernel.kernel_id, []).append(sample)
    rows = []
    for every in pools.values():
        pool = [sample for sample in every if sample.network] or every
        own = [s.latency_ms - (overhead_ms if s.insight == "single" else 0.0) for s in pool]
        latency_ms = median(own)
        if latency_ms > 0:
            spread = max(median(s.mad_ms for s in pool), median(abs(t - latency_ms) for t in own))
            work = workload(pool[0].kernel)
            rows.append(Row(work, latency_ms, spread, len(pool), pool[0].insight))
    return rows


def time_shares(record: PlatformRecord) -> dict[str, float]:
    """Share of networks' predicted time by kernel family; of kernels, if no network is known."""
    predictor = record.predictor
    shares: dict[str, float] = {}
    # A few networks of both kinds suffice: hundreds would give about the same shares as twenty.
    graphs = [network.graph for network in record.calibration or record.unseen]
    if predictor is not None and graphs:
        for answer in predictor.predict_many(graphs):
            total = sum(kernel.latency_ms for kernel in answer.kernels)
            for kernel in answer.kernels if total > 0 else ():
                family = str(kernel.configuration.get("family", "other"))
                shares[family] = shares.get(family, 0.0) + kernel.latency_ms / total / len(graphs)
    else:
        for sample in record.kernels:
            family = workload(Kernel(sample.kernel.graph)).family
            shares[family] = shares.get(family, 0.0) + 1.0 / len(record.kernels)
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def staircases(record: PlatformRecord) -> list[dict[str, Any]]:
    """The staircases of the families that matter most, as plain JSON types."""
    if record.predictor is None:
        return []
    rows = rows_of(record.kernels, record.call_overhead_ms)
    shares = time_shares(record)
    families = [name for name in shares if any(r.work.family == name for r in rows)]
    found = []
    for family in families[:MOST_FAMILIES]:
        mine = [row for row in rows if row.work.family == family]
        for axis in axes(mine[0].work):
            slices = find_slices(mine, axis)
            if slices and len(slices[0].exact) + len(slices[0].near) > _FEW:
                found.append(_facts(slices[0], record.predictor, shares[family]))
    return found[:MOST_PLOTS]


def _facts(chosen: Slice, predictor: PlatformPredictor, share: float) -> dict[str, Any]:
    axis, anchor = chosen.axis, chosen.anchor
    places = sorted({position(row.work, axis) for row in (*chosen.exact, *chosen.near)})
    curve = curve_of(predictor, anchor, axis, grid(places))
    return {
        "family": anchor.family,
        "type": anchor.type,
        "time_share": share,
        "axis": axis,
        "held": held_text(anchor, axis),
        "coverage": COVERAGE,
        "tolerance": TOLERANCE,
        "exact": len(chosen.exact),
        "near": len(chosen.near),
        "points": _exact_points(chosen, predictor) + _near_points(chosen, predictor),
        "step": int(curve["place"][-1] - curve["place"][-2]) if len(curve["place"]) > 1 else 1,
        "curve": curve,
    }


def _point(row: Row, axis: Axis, exact: bool) -> dict[str, Any]:
    return {
        "place": position(row.work, axis),
        "latency_ms": row.latency_ms,
        "shown_ms": row.latency_ms,
        "mad_ms": row.mad_ms,
        "measurements": row.measurements,
        "insight": row.insight,
        "exact": exact,
        "configuration": configuration(row.work),
    }


def _exact_points(chosen: Slice, predictor: PlatformPredictor) -> list[dict[str, Any]]:
    """Points on the slice, at the latencies that the predictor learned."""
    learned = learned_ms(predictor, chosen.exact)
    return [
        _point(row, chosen.axis, True) | {"shown_ms": shown_ms}
        for row, shown_ms in zip(chosen.exact, learned, strict=True)
    ]


def learned_ms(predictor: PlatformPredictor, rows: Sequence[Row]) -> list[float]:
    """The latency of each kernel in milliseconds as the predictor learned it.

    A kernel that the predictor did not learn from, or learned as it was measured, has the measured
    latency.
    """
    import numpy as np
    from latfarm_predictors.features.table import as_table
    from latfarm_predictors.kernels.reuse import spills_alone
    from latfarm_predictors.learned.reuse_cost import as_spills

    evidence = predictor.confidence
    if evidence is None:
        return [row.latency_ms for row in rows]
    known = dict(zip(_keys(evidence.table), evidence.latency_ms.tolist(), strict=True))
    found = []
    for row, key in zip(rows, _keys(as_table([row.work for row in rows])), strict=True):
        own_ms = known.get(key, row.latency_ms)
        if predictor.reuse is not None and key in known:  # the curve is of kernels that ran alone
            spills = as_spills([spills_alone(row.work)])
            own_ms = float(predictor.reuse.placed_ms(np.array([own_ms]), spills)[0])
        same = abs(own_ms / row.latency_ms - 1.0) <= _SAME
        found.append(row.latency_ms if same else own_ms)
    return found


def _keys(table: Table) -> list[tuple[object, ...]]:
    """What tells each kernel of a table from others: all of its columns."""
    columns = [getattr(table, column.name) for column in fields(table)]
    return list(zip(*(list(column) for column in columns), strict=True))


def _near_points(chosen: Slice, predictor: PlatformPredictor) -> list[dict[str, Any]]:
    """Points near the slice, moved onto it by the predicted ratio of the two latencies."""
    if not chosen.near:
        return []
    own = _predict(predictor, [row.work for row in chosen.near])["latency_ms"]
    there = [moved(chosen.anchor, chosen.axis, position(r.work, chosen.axis)) for r in chosen.near]
    on = _predict(predictor, there)["latency_ms"]
    points = []
    learned = learned_ms(predictor, chosen.near)
    for row, own_ms, before, after in zip(chosen.near, learned, own, on, strict=True):
        point = _point(row, chosen.axis, False)
        point["shown_ms"] = own_ms * after / before
        points.append(point)
    return points


def grid(places: Sequence[int]) -> list[int]:
    """The places of a curve: multiples of a step, from below the measured places to above them.

    Latency jumps between aligned and other sizes, and a line through all sizes would look like a
    block. So the step divides all measured places, or is a power of two if they have no common
    divisor.
    """
    first, last = int(min(places) / _MARGIN), int(max(places) * _MARGIN) + 1
    step = gcd(*places)
    if step == 1:
        step = 2 ** max(ceil(log2((last - first) / _SPARSE)), 0)
    while (last - first) / step > _PLACES:
        step *= 2
    while (last - first) / step < _FEWEST and step % 2 == 0:
        step //= 2
    found = [place for place in range(first - first % step, last + step, step) if place > 0]
    return found if found[0] <= min(places) else [min(places), *found]


def curve_of(
    predictor: PlatformPredictor, anchor: Workload, axis: Axis, places: Sequence[int]
) -> dict[str, list[float]]:
    """Predictions along an axis, as lists: place, latency_ms, low_ms, high_ms, forest_ms."""
    told = _predict(predictor, [moved(anchor, axis, place) for place in places])
    return {"place": [float(place) for place in places], **told}


def _predict(predictor: PlatformPredictor, works: Sequence[Workload]) -> dict[str, list[float]]:
    """Predictions by the models alone, even for kernels that were measured."""
    import numpy as np
    from latfarm_predictors.features.table import as_table
    from latfarm_predictors.kernels.reuse import spills_alone
    from latfarm_predictors.predict.kernel_estimates import reused

    table = as_table(list(works))
    estimates = predictor.models.predict(table)
    if predictor.reuse is not None:  # points are kernels that ran alone
        spills = [spills_alone(work) for work in works]
        estimates = reused(estimates, predictor.reuse, spills)
    scores = predictor.models.scores
    factors = {label: scores.multiplier(label, COVERAGE)[0] for label in set(estimates.labels)}
    reach = np.array([factors[label] for label in estimates.labels]) * estimates.sigma
    return {
        "latency_ms": estimates.latency_ms.tolist(),
        "low_ms": (estimates.latency_ms * np.exp(-reach)).tolist(),
        "high_ms": (estimates.latency_ms * np.exp(reach)).tolist(),
        "forest_ms": _forest(predictor, table),
    }


def _forest(predictor: PlatformPredictor, table: Table) -> list[float]:
    """Latencies by the baseline in milliseconds; empty for a bundle without it."""
    try:
        found: list[float] = predictor.baselines.kernel("forest").predict(table)[0].tolist()
    except NoBaselineError:
        return []
    return found


def held_text(work: Workload, axis: Axis) -> str:
    """The sizes that a slice does not vary, as text."""
    told: Mapping[str, Any] = configuration(work)
    parts = []
    if work.family == "fc":
        parts.append(f"{work.batch} row{'s' if work.batch > 1 else ''}")
    elif axis != "spatial":
        parts.append(f"map {work.in_h} x {work.in_w}")
    if work.family in ("conv", "fc"):
        if axis != "in_channels":
            parts.append(f"{work.in_channels} in")
        if axis != "out_channels":
            parts.append(f"{work.out_channels} out")
    elif axis == "spatial":
        parts.append(f"{work.out_channels} channels")
    window = [name for name in ("kernel", "stride", "dilation", "groups") if name in told]
    parts += [
        f"{name} {told[name]}"
        for name in window
        if work.family != "global_pool" and (name == "kernel" or told[name] not in ("1x1", 1))
    ]
    if work.batch != 1 and work.family != "fc":
        parts.append(f"batch {work.batch}")
    return ", ".join(parts)
