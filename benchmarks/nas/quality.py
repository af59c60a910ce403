"""How well predicted latencies serve a search among candidates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from latfarm_predictors.evaluate import (
    kendall_tau,
    kendall_within_bands,
    pareto_found,
    pareto_front,
)
from latfarm_predictors.features.table import Array

PAPER = {"tau": 0.92, "tau_of_equal_flops": 0.73}
"""NNLQP, section 8.6: Kendall's tau of NNLP, over all candidates and within a narrow FLOPs band."""
PAPER_FLOPS = {"tau": 0.87, "tau_of_equal_flops": 0.38}
"""The same of FLOPs."""
VALUE_NOISE = 0.5
"""Log-sigma of what the stand-in for accuracy has besides the amount of computation."""


def search_figures(
    predicted: npt.ArrayLike, measured_ms: npt.ArrayLike, flops: Array, value: Array
) -> dict[str, float]:
    """Figures of one ranking of candidates.

    Args:
        predicted: what ranks them: predicted latencies, or FLOPs; shape (n,).
        measured_ms: true latencies in milliseconds, shape (n,).
        flops: FLOPs up to a factor, shape (n,).
        value: what a search wants much of, shape (n,).

    Returns:
        Kendall's tau over all candidates and among those of about equal FLOPs, the share of the
        true Pareto front that is found, and the sizes of both fronts: a ranking that puts
        everything on its front would find all of the true one.
    """
    return {
        "tau": round(kendall_tau(predicted, measured_ms), 4),
        "tau_of_equal_flops": round(kendall_within_bands(predicted, measured_ms, flops), 4),
        "pareto_found": round(pareto_found(predicted, measured_ms, value), 4),
        "pareto_true": int(pareto_front(measured_ms, value).sum()),
        "pareto_predicted": int(pareto_front(predicted, value).sum()),
    }


def stand_in_value(flops: Array, seed: int) -> Array:
    """A stand-in for the accuracy of candidates, which no data here tell; shape (n,).

    More computation is better, but not by itself: noise decides as much as a factor of e of FLOPs.
    """
    rng = np.random.default_rng(seed)
    return np.asarray(np.log(flops) + VALUE_NOISE * rng.standard_normal(len(flops)))
