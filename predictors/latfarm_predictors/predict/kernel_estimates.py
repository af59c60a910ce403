"""Estimates of a platform's kernels, by its regressors and by its measurements.

A kernel far larger than all measured ones, or of an element type that was never measured, is
predicted all the same. Its source says so ("fallback:beyond:conv", "fallback:dtype:float16"), and
its interval is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

import numpy as np

from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.features.table import as_table
from latfarm_predictors.kernels.context import Marks
from latfarm_predictors.kernels.reuse import Spills
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import KernelEstimates, KernelModels
from latfarm_predictors.learned.reuse_cost import ReuseCost, as_spills
from latfarm_predictors.samples import Measured

DTYPE_SIGMA = 0.7
"""Log-sigma added for an element type never measured, which hardware may support or emulate."""

FAR = 16.0
"""A kernel is beyond what was measured if its work, or its bytes, are larger than this many times
the largest ones measured of its family."""

_BEYOND_SIGMA = 0.15
"""Log-sigma added for each factor of e by which a kernel is larger than the largest measured."""
_MEASURED_SIGMA = 0.02
"""Log-sigma of a measurement besides its own: what another day and another board would give."""
_GROSS = 4.5
"""A measurement that is this many deviations from the regressors' latency is taken for a glitch."""


def estimate(models: KernelModels, measured: Measured, rows: Sequence[Workload]) -> KernelEstimates:
    """Estimates of kernels by regressors, combined with measurements of the same configuration.

    Args:
        models: the platform's regressors.
        measured: the configurations that were measured.
        rows: workloads of the kernels.

    Raises:
        GraphError: a kernel has a size that no board could run.
    """
    estimates = models.predict(as_table(rows))
    latency, sigma = estimates.latency_ms.copy(), estimates.sigma.copy()
    sources, labels = list(estimates.sources), list(estimates.labels)
    for index, row in enumerate(rows):
        found = measured.find(row)
        if found is None:
            if not sources[index].startswith("fallback:"):
                source, extra = strangeness(measured, row)
                if source:
                    sources[index], labels[index] = source, ""
                    sigma[index] = hypot(sigma[index], extra)
            continue
        ours, spread = log(latency[index]), float(sigma[index])
        theirs, doubt = log(found[0]), hypot(found[1], _MEASURED_SIGMA)
        if abs(theirs - ours) > _GROSS * hypot(spread, doubt):
            continue  # the measurement is a glitch
        trust = spread**2 / (spread**2 + doubt**2)
        latency[index] = exp(trust * theirs + (1.0 - trust) * ours)
        sigma[index] = spread * doubt / hypot(spread, doubt)
        sources[index] = "measured"
    return replace(
        estimates,
        latency_ms=latency,
        sigma=sigma,
        sources=tuple(sources),
        labels=tuple(labels),
    )


def estimate_placed(
    models: KernelModels,
    measured: Measured,
    context: ContextModel,
    rows: Sequence[Workload],
    marks: Sequence[Marks],
) -> KernelEstimates:
    """Estimates of kernels at their places in a network.

    Measurements of the same configuration are not used, because they were made at other places.

    Args:
        models: the platform's regressors.
        measured: what was measured, to find kernels that are unlike it.
        context: what neighbours change in a kernel's latency.
        rows: workloads of n kernels.
        marks: marks of their places.

    Raises:
        GraphError: a kernel has a size that no board could run.
    """
    estimates = placed(models.predict(as_table(rows)), context, marks)
    sigma = estimates.sigma.copy()
    sources, labels = list(estimates.sources), list(estimates.labels)
    for index, row in enumerate(rows):
        if not sources[index].startswith("fallback:"):
            source, doubt = strangeness(measured, row)
            if source:
                sources[index], labels[index] = source, ""
                sigma[index] = hypot(sigma[index], doubt)
    return replace(estimates, sigma=sigma, sources=tuple(sources), labels=tuple(labels))


def estimate_reused(
    models: KernelModels,
    measured: Measured,
    cost: ReuseCost,
    rows: Sequence[Workload],
    spills: Sequence[Spills],
) -> KernelEstimates:
    """Estimates of kernels at their places, where evicted data cost time.

    Args:
        models: the platform's regressors of kernels whose data are in caches.
        measured: the configurations that were measured, without what evicted data cost.
        cost: the cost of evicted data.
        rows: workloads of n kernels.
        spills: what caches have lost at their places.

    Raises:
        GraphError: a kernel has a size that no board could run.
    """
    return reused(estimate(models, measured, rows), cost, spills)


def reused(
    estimates: KernelEstimates, cost: ReuseCost, spills: Sequence[Spills]
) -> KernelEstimates:
    """Estimates of kernels at their places; a view takes no time at any place.

    Args:
        estimates: estimates of n kernels whose data are in caches.
        cost: the cost of evicted data.
        spills: what caches have lost at their places.
    """
    latency = cost.placed_ms(estimates.latency_ms, as_spills(spills))
    views = np.array([source == VIEW for source in estimates.sources], dtype=np.bool_)
    return replace(estimates, latency_ms=np.where(views, estimates.latency_ms, latency))


def placed(
    estimates: KernelEstimates,
    context: ContextModel,
    marks: Sequence[Marks],
    key: str | None = None,
) -> KernelEstimates:
    """Estimates of kernels at their places; a view takes no time at any place.

    Args:
        estimates: estimates of n kernels without their places.
        context: what neighbours change in a kernel's latency.
        marks: marks of the kernels' places.
        key: hash of the kernels' network, if `context` may have been fitted to it.
    """
    latency = context.latency_ms(estimates.table, marks, estimates.latency_ms, key)
    views = np.array([source == VIEW for source in estimates.sources], dtype=np.bool_)
    return replace(
        estimates,
        latency_ms=np.where(views, estimates.latency_ms, latency),
        sigma=estimates.sigma * context.shrink,
    )


def strangeness(measured: Measured, work: Workload) -> tuple[str, float]:
    """What makes a kernel unlike all measured ones of its family, and the log-sigma that it adds.

    Returns:
        A source for the answer and a log-sigma. The source is empty, and the log-sigma 0, if the
        kernel is like measured ones, or if nothing of its family was measured, for which
        `groups.Router` has sources of its own.
    """
    range_ = measured.ranges.get(work.family)
    if range_ is None:
        return "", 0.0
    if work.dtype not in range_.dtypes:
        return f"fallback:dtype:{work.dtype}", DTYPE_SIGMA
    times = max(
        work.macs / max(range_.most_macs, 1.0), work.moved_bytes / max(range_.most_bytes, 1.0)
    )
    if times <= FAR:
        return "", 0.0
    return f"fallback:beyond:{work.family}", _BEYOND_SIGMA * log(times)
