"""Corrects the latencies of kernels that were measured alone to what they are inside networks.

Even a profiler shows another latency for a kernel in a model of its own than for the same kernel
inside a network, where its neighbour has left its input in the caches, or not. Where both kinds of
latencies are known, the difference is a fixed effect in the Gaussian process of the group. It is a
factor that may grow with the kernel's latency. Generalised least squares estimates it (Rasmussen
and Williams, Gaussian Processes for Machine Learning, section 2.7); latencies are divided by it.

A family with few kernels shares the group of another, whose effect says nothing of it as a factor:
what an Add takes longer inside a network is the time to fetch its data, and a local response
normalisation of as many bytes takes as many milliseconds longer, but twenty times as long in all.
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
from latfarm_predictors.optional_libraries import library
from latfarm_predictors.samples import Training

Flags = npt.NDArray[np.bool_]

LEAST_ROWS = 15
"""A group is corrected if it has this many kernels measured alone and this many inside networks. It
shows its effect by families that have as many themselves, if there are any."""

_MOST_ROWS = 500
"""The effect is estimated on at most this many kernels of a group."""
_STEPS = 15
"""Largest number of gradient steps on the hyperparameters of a group's process."""
_ROUNDS = 2
"""Number of estimates; each corrects what the one before left.

A process that is fitted to both kinds takes part of the effect for noise.
"""
_PRIOR = np.diag([1 / 0.3**2, 1 / 0.15**2])
"""Prior precision of the effect, in logarithms, and of its growth over one deviation of latency."""


def corrected_for_isolation(training: Training, seed: int = 0) -> Training:
    """The same kernels, with latencies as if all of them had been measured inside networks.

    Args:
        training: kernels, of which some were measured alone and others inside networks.
        seed: random seed of the choice of kernels on which large groups are judged.
    """
    inside = training.in_network
    if inside.all() or not inside.any():
        return training
    _, groups = Router.of(training.table, training.devices)
    found = training
    for rows in _both_kinds(groups, inside).values():
        alone = ~inside[rows]
        for _ in range(_ROUNDS):
            factor, variance = _with_rare_families(found, rows, *_effect(found, rows, seed))
            # the interval between pads of a kernel keeps its share of the latency
            latency, half_ms = found.latency_ms.copy(), found.padding_ms.copy()
            for column in (latency, half_ms):
                column[rows[alone]] *= np.exp(-factor[alone])
            found = replace(found, latency_ms=latency, padding_ms=half_ms)
        noise = found.noise.copy()
        noise[rows[alone]] += variance[alone]
        found = replace(found, noise=noise)
    return found


def _both_kinds(groups: Mapping[str, list[int]], inside: Flags) -> dict[str, Rows]:
    """Rows of each group that has enough kernels measured alone and inside networks."""
    found = {}
    for name, members in groups.items():
        rows = np.array(members, dtype=np.intp)
        count = int(inside[rows].sum())
        if min(count, len(rows) - count) >= LEAST_ROWS:
            found[name] = rows
    return found


def _with_rare_families(
    training: Training, rows: Rows, factor: Array, variance: Array
) -> tuple[Array, Array]:
    """The same effects, but for rare families: they take as many ms longer as others of their size.

    Args:
        training: all kernels.
        rows: the n kernels of a group.
        factor: logarithm of the factor of each for being measured alone, shape (n,).
        variance: variance of each, shape (n,).
    """
    table, inside = training.table.take(rows), training.in_network[rows]
    families = np.array(table.families)
    shows = np.zeros(len(rows), dtype=np.bool_)
    for family in set(table.families):
        own = families == family
        shows[own] = min((own & inside).sum(), (own & ~inside).sum()) >= LEAST_ROWS
    if shows.all() or not shows.any():
        return factor, variance
    factor, variance = factor.copy(), variance.copy()
    latency, moved = training.latency_ms[rows], np.log(np.maximum(table.total_bytes, 1.0))
    others = np.flatnonzero(shows)
    for row in np.flatnonzero(~shows):
        gap = np.abs(moved[others] - moved[row])
        near = others[np.argsort(gap, kind="stable")[:LEAST_ROWS]]
        share = min(1.0, float(np.median(latency[near]) / latency[row]))
        longer = np.expm1(-np.median(factor[near]))
        factor[row] = -np.log1p(share * longer)
        variance[row] = share**2 * np.median(variance[near])
    return factor, variance


def _effect(training: Training, rows: Rows, seed: int) -> tuple[Array, Array]:
    """Logarithm of the factor of each kernel for being measured alone, and its variance."""
    linalg = library("scipy.linalg")
    judged = _some(rows, training.in_network, seed)
    table = training.table.take(judged)
    noise = training.noise[judged]
    log_latency = np.log(training.latency_ms[judged])
    process = RooflineGP(steps=_STEPS, seed=seed, spills=False).fit(
        table, np.exp(log_latency), noise
    )
    log_roofline = np.log(process.roofline.latency_ms(table))
    residual = log_latency - log_roofline
    residual -= np.median(residual)
    places = process.places(table)
    covariance = process.signal * matern(distances(places, places))
    covariance[np.diag_indices(len(judged))] += process.variance_of(noise)
    alone = (~training.in_network[judged]).astype(np.float64)
    # the factor grows only within the range of kernels that were measured inside networks
    low, high = np.quantile(log_roofline[alone == 0.0], (0.05, 0.95))
    centre, spread = log_roofline.mean(), max(float(log_roofline.std()), 1e-9)
    design = np.column_stack([alone, alone * (np.clip(log_roofline, low, high) - centre) / spread])
    factor = linalg.cho_factor(covariance, lower=True, check_finite=False)
    weighted = linalg.cho_solve(factor, design, check_finite=False)
    precision = design.T @ weighted + _PRIOR
    effect = np.linalg.solve(precision, weighted.T @ residual)
    own = np.log(process.roofline.latency_ms(training.table.take(rows)))
    size = (np.clip(own, low, high) - centre) / spread
    columns = np.column_stack([np.ones(len(rows)), size])
    variance = np.einsum("ij,jk,ik->i", columns, np.linalg.inv(precision), columns)
    return columns @ effect, variance


def _some(rows: Rows, inside: Flags, seed: int) -> Rows:
    """At most `_MOST_ROWS` of the rows, half of them of either kind where there are as many."""
    if len(rows) <= _MOST_ROWS:
        return rows
    random = np.random.default_rng(seed)
    kinds = [rows[inside[rows]], rows[~inside[rows]]]
    kinds.sort(key=len)
    few = random.permutation(kinds[0])[: _MOST_ROWS // 2]
    many = random.permutation(kinds[1])[: _MOST_ROWS - len(few)]
    return np.sort(np.concatenate([few, many]))
