"""Recalibrates intervals of networks many times, and measures their coverage and width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from latfarm_predictors.confidence.layer_confidence import METRICS
from latfarm_predictors.confidence.measures import PlatformConfidence
from latfarm_predictors.intervals import conformal_quantile, normal_quantile
from latfarm_predictors.judging import binomial_interval
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import NetworkFigures
from latfarm_predictors.trust.network_trust import NAMES

RECALIBRATIONS, CALIBRATE_WITH, COVERAGE = 200, 20, 0.9
"""Number of recalibrations, number of networks in each, nominal coverage of intervals."""
MEAN_TARGET = (88.0, 92.0)
"""Range, in percent, in which the mean coverage over all recalibrations should lie."""
LEAST_OF_FAMILY, FAMILY_TARGET = 30, 0.85
"""A family with at least this many networks fails if its binomial interval is below the target."""


def coverage(
    figures: Sequence[NetworkFigures],
    measured: Sequence[float],
    families: Sequence[str],
    recalibrations: int = RECALIBRATIONS,
) -> dict[str, Any]:
    """Coverage and width of our intervals, and of those by independent errors of kernels.

    Args:
        figures: figures of n networks.
        measured: measured latency of each, in ms.
        families: family of each.
        recalibrations: number of times that 20 networks are drawn to calibrate intervals, which the
            others judge.
    """
    truth = np.array(measured)
    draw = np.random.default_rng(0)
    covered, widths = [], []
    by_family: dict[str, list[bool]] = defaultdict(list)
    for _ in range(recalibrations):
        order = draw.permutation(len(truth))
        train, test = order[:CALIBRATE_WITH], order[CALIBRATE_WITH:]
        model = NetworkCorrection().fit([figures[i] for i in train], truth[train])
        latency, sigma = model.predict([figures[i] for i in test])
        factor = conformal_quantile(model.scores, COVERAGE)
        inside = np.abs(np.log(truth[test] / latency)) <= factor * sigma
        covered.append(float(inside.mean()))
        widths.append(float(np.median(2 * np.sinh(factor * sigma))))
        for index, hit in zip(test, inside, strict=True):
            by_family[families[index]].append(bool(hit))
    sums = np.array([n.warm_ms for n in figures])
    alone = np.array([n.independent_ms for n in figures]) / sums * normal_quantile(COVERAGE)
    return {
        "recalibrations": recalibrations,
        "networks": CALIBRATE_WITH,
        "mean_percent": round(100 * float(np.mean(covered)), 1),
        "median_width_percent": round(100 * median(widths), 1),
        "by_family_percent": {
            name: round(100 * float(np.mean(hits)), 1) for name, hits in sorted(by_family.items())
        },
        "convolution_percent": round(
            100 * float(np.mean(np.abs(np.log(truth / sums)) <= alone)), 1
        ),
        "convolution_width_percent": round(100 * float(np.median(2 * np.sinh(alone))), 1),
    }


def judge_families(
    found: Mapping[str, float], counts: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The binomial interval of each family, and whether it misses the target.

    Families with few networks are not judged. A coverage is a mean over recalibrations of the same
    networks; more recalibrations do not make more networks.

    Args:
        found: coverage of each family, in percent.
        counts: number of networks of each family.
    """
    out: dict[str, dict[str, Any]] = {}
    for name, percent in found.items():
        low, high = binomial_interval(percent / 100.0, counts[name])
        out[name] = {
            "networks": counts[name],
            "percent": percent,
            "low": round(100 * low, 1),
            "high": round(100 * high, 1),
            "judged": counts[name] >= LEAST_OF_FAMILY,
            "miss": counts[name] >= LEAST_OF_FAMILY and high < FAMILY_TARGET,
        }
    return out


def papers(
    confidence: PlatformConfidence,
    networks: Sequence[Sequence[Workload]],
    measured: Sequence[float],
) -> dict[str, dict[str, float]]:
    """Coverage and median width, in percent, of the paper's intervals by metric."""
    out = {}
    for metric in METRICS:
        told = [confidence.network(works, metric, COVERAGE) for works in networks]
        held = [n.low_ms <= ms <= n.high_ms for n, ms in zip(told, measured, strict=True)]
        out[NAMES[metric]] = {
            "percent": round(100 * float(np.mean(held)), 1),
            "median_width_percent": round(100 * median(n.relative_width for n in told), 1),
        }
    return out


def misses(mean_percent: float, by_family: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether the mean misses its target, and the families that miss theirs."""
    low, high = MEAN_TARGET
    return {
        "mean_miss": not low <= mean_percent <= high,
        "family_misses": [name for name, row in by_family.items() if row["miss"]],
    }
