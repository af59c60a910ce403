"""Scores that calibrate the intervals of networks of a family that was not measured.

Each score is |error of the logarithm| / sigma of a network by a fit that did not see its family.
Networks of one family err alike. So the quantile of all scores holds fewer networks of a further
family than it promises, the more so the fewer families there are: with nine families and 90 %, up
to a tenth less. The remedy of Dunn, Wasserman and Ramdas (2022, "Distribution-free prediction sets
for two-layer hierarchical models") would take the largest score of nine families. Here the families
themselves tell how much is missing: each in turn plays the further one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.intervals import widened_quantile

COVERAGE = 0.9
"""The coverage for which the widening is found; it serves for others, too."""
LEAST_FAMILIES = 3
"""With fewer families, one that plays the further one leaves no quantile of several others."""


def scores_of_new_families(scores: Mapping[str, Array]) -> Array:
    """All scores in ascending order, widened so that they hold for a further family.

    They are multiplied with the least factor, never below 1, with which the 90 % quantile of the
    other families' scores holds 90 % of a family's networks in the mean over the families.

    Args:
        scores: for each family the scores of its networks, by fits that did not see the family.
    """
    told = {name: np.asarray(own, dtype=np.float64) for name, own in scores.items() if len(own)}
    if not told:
        return np.zeros(0)
    return np.sort(np.concatenate(list(told.values()))) * _factor(told)


def _factor(scores: Mapping[str, Array]) -> float:
    """The factor on the quantile of the others that holds the share `COVERAGE` of a family."""
    if len(scores) < LEAST_FAMILIES:
        return 1.0
    needed, weight = [], []
    for name, own in scores.items():
        others = np.concatenate([each for other, each in scores.items() if other != name])
        reach, _ = widened_quantile(others, COVERAGE)
        if reach > 0:
            needed.append(own / reach)
            weight.append(np.full(len(own), 1.0 / len(own)))
    if not needed:
        return 1.0
    ratios, weights = np.concatenate(needed), np.concatenate(weight)
    order = np.argsort(ratios)
    held = np.cumsum(weights[order]) / weights.sum()
    return max(float(ratios[order][np.searchsorted(held, COVERAGE - 1e-9)]), 1.0)
