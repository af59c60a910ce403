"""Accuracy of predictions of kernels, by models that did not see them, by family of kernels.

Our own predictions are the out-of-fold estimates that a bundle keeps. The baselines are those of
`kernel_baselines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from typing import TYPE_CHECKING, Any

from latfarm_predictors.measurement import Measurement

from latfarm_controller.reports.facts.accuracy import (
    COVERAGE,
    OURS,
    interval_scores,
    leads,
    perfect_scores,
    repeat_scores,
    scores,
)
from latfarm_controller.reports.facts.platform_record import PlatformRecord

if TYPE_CHECKING:
    from latfarm_controller.reports.facts.kernel_baselines import FittedKernelBaseline


def kernel_accuracy(
    record: PlatformRecord, baselines: Sequence[FittedKernelBaseline]
) -> dict[str, Any] | None:
    """Out-of-fold accuracy and intervals of kernels; None if the bundle has no measurements."""
    predictor = record.predictor
    evidence = None if predictor is None else predictor.confidence
    if predictor is None or evidence is None or not len(evidence):
        return None
    import numpy as np

    table, latency = evidence.table, evidence.latency_ms
    labels = predictor.models.predict(table).labels
    factors = {name: predictor.models.scores.multiplier(name, COVERAGE)[0] for name in set(labels)}
    rows = [
        {
            "family": table.families[row],
            "measured_ms": float(latency[row]),
            "predicted_ms": float(evidence.unseen_ms[row]),
            "interval_ms": _interval(
                float(evidence.unseen_ms[row]),
                factors[labels[row]] * float(evidence.unseen_sigma[row]),
            ),
        }
        for row in range(len(table))
    ]
    others = {baseline.name: baseline.unseen_ms for baseline in baselines}
    passes = _passes(map(predictor.slow_core.settled, record.measured.get("kernel", ())))
    families = sorted(set(table.families), key=lambda n: (-table.families.count(n), n))
    of = np.array(table.families)
    return {
        "coverage": COVERAGE,
        "methods": {
            OURS: scores(evidence.unseen_ms.tolist(), latency.tolist()),
            **{n: scores(found.tolist(), latency.tolist()) for n, found in others.items()},
        },
        "leads": leads(
            evidence.unseen_ms.tolist(),
            {name: found.tolist() for name, found in others.items()},
            latency.tolist(),
        ),
        "perfect": perfect_scores(_without_call(passes, record.call_overhead_ms)),
        "repeat": repeat_scores(passes),
        **interval_scores(rows),
        "families": [
            {
                "family": family,
                **scores(evidence.unseen_ms[of == family].tolist(), latency[of == family].tolist()),
                **interval_scores(row for row in rows if row["family"] == family),
                "baseline_within10": {
                    name: scores(found[of == family].tolist(), latency[of == family].tolist())[
                        "within10"
                    ]
                    for name, found in others.items()
                },
            }
            for family in families
        ],
    }


def _interval(middle_ms: float, reach: float) -> list[float]:
    return [middle_ms * exp(-reach), middle_ms * exp(reach)]


def _passes(measurements: Iterable[Measurement]) -> list[list[float]]:
    """Latencies of each kernel in milliseconds, one for each pass, oldest first."""
    found: dict[str, list[float]] = {}
    for m in measurements:
        if m.ok and m.latency_ms is not None:
            found.setdefault(m.graph_hash, []).append(m.latency_ms)
    return list(found.values())


def _without_call(kernels: Iterable[Sequence[float]], overhead_ms: float) -> list[list[float]]:
    """The passes of kernels measured alone, in milliseconds, less the overhead of the call."""
    return [
        [latency_ms - overhead_ms for latency_ms in passes]
        for passes in kernels
        if min(passes) > overhead_ms
    ]
