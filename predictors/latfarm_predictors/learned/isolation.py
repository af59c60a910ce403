"""What isolation hides: times of kernels measured alone, put to where networks run them.

Even a profiler tells of a kernel's own model something else than of the same kernel inside a
network, where its input lies in the caches as its neighbour left it, or no longer. Where both kinds
of times are known, the difference is a fixed effect in the process that models the group: it is
estimated by generalised least squares (Rasmussen and Williams, Gaussian Processes for Machine
Learning, section 2.7), as a factor that may grow with the kernel's time, and taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.features.table_features import distances
from latfarm_predictors.models.gaussian.posterior import matern
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.samples import Training

Flags = npt.NDArray[np.bool_]

LEAST_ROWS = 15
"""Of each kind, alone and inside networks; with fewer a group's times stay as they are."""

_MOST_ROWS = 500
_STEPS = 15
_ROUNDS = 2
"""A process fitted across both kinds takes a part of the effect for noise: a second look finds what
the first left."""
_PRIOR = np.diag([1 / 0.3**2, 1 / 0.15**2])
"""Precision of the effect, in logarithms, and of its growth over one deviation of the times."""


def settled(training: Training, seed: int = 0) -> Training:
    """The same kernels, with times of isolated ones as if they had been inside networks.

    Args:
        training: kernels, some of them measured inside networks.
        seed: of the rows that large groups are judged by.
    """
    inside = training.in_network
    if inside.all() or not inside.any():
        return training
    _, groups = Router.of(training.table, training.devices)
    found = training
    for rows in _both_kinds(groups, inside).values():
        alone = ~inside[rows]
        for _ in range(_ROUNDS):
            factor, variance = _effect(found, rows, seed)
            latency = found.latency_ms.copy()
            latency[rows[alone]] *= np.exp(-factor[alone])
            found = replace(found, latency_ms=latency)
        noise = found.noise.copy()
        noise[rows[alone]] += variance[alone]
        found = replace(found, noise=noise)
    return found


def _both_kinds(groups: Mapping[str, list[int]], inside: Flags) -> dict[str, Rows]:
    """Rows of the groups that have enough of both kinds."""
    found = {}
    for name, members in groups.items():
        rows = np.array(members, dtype=np.intp)
        count = int(inside[rows].sum())
        if min(count, len(rows) - count) >= LEAST_ROWS:
            found[name] = rows
    return found


def _effect(training: Training, rows: Rows, seed: int) -> tuple[Array, Array]:
    """Logarithm of what the time of each row is divided by for being alone, and its variance."""
    from scipy.linalg import cho_factor, cho_solve

    judged = _some(rows, training.in_network, seed)
    table = training.table.take(judged)
    noise = training.noise[judged]
    log_latency = np.log(training.latency_ms[judged])
    process = RooflineGP(steps=_STEPS, seed=seed).fit(table, np.exp(log_latency), noise)
    log_roofline = np.log(process.roofline.latency_ms(table))
    residual = log_latency - log_roofline
    residual -= np.median(residual)
    places = process.places(table)
    covariance = process.signal * matern(distances(places, places))
    covariance[np.diag_indices(len(judged))] += process.variance_of(noise)
    alone = (~training.in_network[judged]).astype(np.float64)
    # no larger and no smaller than kernels that networks were seen to run: beyond, nothing is known
    low, high = np.quantile(log_roofline[alone == 0.0], (0.05, 0.95))
    centre, spread = log_roofline.mean(), max(float(log_roofline.std()), 1e-9)
    design = np.column_stack([alone, alone * (np.clip(log_roofline, low, high) - centre) / spread])
    factor = cho_factor(covariance, lower=True, check_finite=False)
    weighted = cho_solve(factor, design, check_finite=False)
    precision = design.T @ weighted + _PRIOR
    effect = np.linalg.solve(precision, weighted.T @ residual)
    own = np.log(process.roofline.latency_ms(training.table.take(rows)))
    size = (np.clip(own, low, high) - centre) / spread
    columns = np.column_stack([np.ones(len(rows)), size])
    variance = np.einsum("ij,jk,ik->i", columns, np.linalg.inv(precision), columns)
    return columns @ effect, variance


def _some(rows: Rows, inside: Flags, seed: int) -> Rows:
    """At most `_MOST_ROWS` of the rows, as many of either kind as there are."""
    if len(rows) <= _MOST_ROWS:
        return rows
    random = np.random.default_rng(seed)
    kinds = [rows[inside[rows]], rows[~inside[rows]]]
    kinds.sort(key=len)
    few = random.permutation(kinds[0])[: _MOST_ROWS // 2]
    many = random.permutation(kinds[1])[: _MOST_ROWS - len(few)]
    return np.sort(np.concatenate([few, many]))
