"""Estimates of a platform's kernels: its models', its measurements', and doubt where neither knows.

A kernel of a size or an element type that was never measured is answered all the same; the answer
says so in its source ("fallback:beyond:conv", "fallback:dtype:float16") and its interval is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

import numpy as np

from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.features.table import as_table
from latfarm_predictors.kernels.context import Marks
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import KernelEstimates, KernelModels
from latfarm_predictors.samples import Measured

DTYPE_DOUBT = 0.7
"""Log-sigma of an element type never measured: units for it may be there, or be emulated."""

FAR = 16.0
"""How many times the largest measured work, or bytes, of its family a kernel has to be to count as
beyond what was measured."""

_BEYOND_DOUBT = 0.15
_MEASURED_DOUBT = 0.02
_GROSS = 4.5


def estimate(models: KernelModels, measured: Measured, rows: Sequence[Workload]) -> KernelEstimates:
    """The models' estimates, and measurements where the very configuration was measured.

    Raises:
        GraphError: sizes beyond all that a board could ever run.
    """
    estimates = models.predict(as_table(rows))
    latency, sigma = estimates.latency_ms.copy(), estimates.sigma.copy()
    sources, labels = list(estimates.sources), list(estimates.labels)
    for index, row in enumerate(rows):
        found = measured.find(row)
        if found is None:
            if not sources[index].startswith("fallback:"):
                source, doubt = strangeness(measured, row)
                if source:
                    sources[index], labels[index] = source, ""
                    sigma[index] = hypot(sigma[index], doubt)
            continue
        ours, spread = log(latency[index]), float(sigma[index])
        theirs, doubt = log(found[0]), hypot(found[1], _MEASURED_DOUBT)
        if abs(theirs - ours) > _GROSS * hypot(spread, doubt):
            continue  # a glitch of the measurement, as the fit found it to be
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
    """The models' estimates for where kernels stand; measurements of others' places count not.

    Args:
        models: of kernels.
        measured: what was measured, to tell what is unlike it.
        context: what neighbours add.
        rows: workloads of n kernels.
        marks: of their places.

    Raises:
        GraphError: sizes beyond all that a board could ever run.
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


def placed(
    estimates: KernelEstimates,
    context: ContextModel,
    marks: Sequence[Marks],
    key: str | None = None,
) -> KernelEstimates:
    """Estimates with what the neighbours add; views cost nothing anywhere.

    Args:
        estimates: of n kernels by themselves.
        context: what neighbours add.
        marks: of the kernels' places.
        key: hash of their network, where it may have been trained on.
    """
    latency = context.latency_ms(estimates.table, marks, estimates.latency_ms, key)
    views = np.array([source == VIEW for source in estimates.sources], dtype=np.bool_)
    return replace(
        estimates,
        latency_ms=np.where(views, estimates.latency_ms, latency),
        sigma=estimates.sigma * context.shrink,
    )


def strangeness(measured: Measured, work: Workload) -> tuple[str, float]:
    """What makes a kernel unlike all measured of its family, and the log-sigma that it adds.

    Returns:
        A source for the answer; empty, with no doubt, where the kernel is like others or nothing
        of its family was measured (`groups.Router` tells that).
    """
    range_ = measured.ranges.get(work.family)
    if range_ is None:
        return "", 0.0
    if work.dtype not in range_.dtypes:
        return f"fallback:dtype:{work.dtype}", DTYPE_DOUBT
    times = max(
        work.macs / max(range_.most_macs, 1.0), work.moved_bytes / max(range_.most_bytes, 1.0)
    )
    if times <= FAR:
        return "", 0.0
    return f"fallback:beyond:{work.family}", _BEYOND_DOUBT * log(times)
