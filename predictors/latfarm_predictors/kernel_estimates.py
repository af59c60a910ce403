"""Estimates of a platform's kernels: its models', its measurements', and doubt where neither knows.

A kernel of a size or an element type that was never measured is answered all the same; the answer
says so in its source ("fallback:beyond:conv", "fallback:dtype:float16") and its interval is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

from latfarm_predictors.kernel_models import KernelEstimates, KernelModels
from latfarm_predictors.samples import Measured
from latfarm_predictors.table import table_of_rows
from latfarm_predictors.workload_rows import Row

DTYPE_DOUBT = 0.7
"""Log-sigma of an element type never measured: units for it may be there, or be emulated."""

FAR = 16.0
"""How many times the largest measured work, or bytes, of its family a kernel has to be to count as
beyond what was measured."""

_BEYOND_DOUBT = 0.15
_MEASURED_DOUBT = 0.02
_GROSS = 4.5


def estimate(models: KernelModels, measured: Measured, rows: Sequence[Row]) -> KernelEstimates:
    """The models' estimates, and measurements where the very configuration was measured.

    Raises:
        GraphError: sizes beyond all that a board could ever run.
    """
    estimates = models.predict(table_of_rows(rows))
    latency, sigma = estimates.latency_ms.copy(), estimates.sigma.copy()
    sources, labels = list(estimates.sources), list(estimates.labels)
    for index, row in enumerate(rows):
        found = measured.find_row(row)
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


def strangeness(measured: Measured, row: Row) -> tuple[str, float]:
    """What makes a kernel unlike all measured of its family, and the log-sigma that it adds.

    Returns:
        A source for the answer; empty, with no doubt, where the kernel is like others or nothing
        of its family was measured (`groups.Router` tells that).
    """
    range_ = measured.ranges.get(row[0])
    if range_ is None:
        return "", 0.0
    if row[2] not in range_.dtypes:
        return f"fallback:dtype:{row[2]}", DTYPE_DOUBT
    macs, size_bytes = row[17], row[18] + row[19] + row[20]
    times = max(macs / max(range_.most_macs, 1.0), size_bytes / max(range_.most_bytes, 1.0))
    if times <= FAR:
        return "", 0.0
    return f"fallback:beyond:{row[0]}", _BEYOND_DOUBT * log(times)
