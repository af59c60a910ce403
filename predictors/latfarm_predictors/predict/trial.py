"""A quick trial of training data: how well sums of its kernels predict measured networks.

The same kernels may have been timed in several ways: alone, between pads, by a profiler, inside
other networks. Which way tells what networks take differs between runtimes, and no threshold tells
it beforehand. So regressors are fitted to each, and the networks that were measured as a whole
judge them. No kernel that one of these networks has is learned from, wherever it was timed: neither
inside that network, nor by itself, nor inside another one.

The regressors of a trial are Gaussian processes without trees, on at most a few hundred rows of
each group. They rank ways of timing; the predictor itself is fitted afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from latfarm_predictors.features.groups import LEAST_ROWS, Router
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import Workload, workload, workloads_of
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.isolation import corrected_for_isolation
from latfarm_predictors.learned.kernel_models import KernelModels
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.predict.fitting import PlatformSamples
from latfarm_predictors.predict.predictor import LEAST_FLOOR_MS, PlatformPredictor
from latfarm_predictors.samples import KernelSample, Measured, NetworkSample, Training, prepare

_STEPS = 15
"""Largest number of gradient steps on the hyperparameters of a process, as in folds."""
_MOST_ROWS = 400
"""Each process sees at most this many rows, because its cost is cubic."""


def left_out_errors(samples: PlatformSamples, seed: int = 0) -> Array | None:
    """Absolute log errors of the measured networks, by corrections that left each out, shape (n,).

    Args:
        samples: kernels in one way of timing, and the networks that judge it.
        seed: random seed of the fits.

    Returns:
        The errors; None where there are too few kernels or fewer than two networks.
    """
    networks = [n for n in samples.networks if isfinite(n.latency_ms) and n.latency_ms > 0]
    rows = [workloads_of(n.graph, find_parts(n.graph, samples.rules)) for n in networks]
    kernels = _without(samples.kernels, networks, rows)
    overhead_ms = max(samples.call_overhead_ms, 0.0)
    training = prepare(kernels, overhead_ms)
    if len(training.table) < LEAST_ROWS or len(networks) < 2:
        return None
    training = corrected_for_isolation(training, seed)
    predictor = PlatformPredictor(
        platform=samples.platform,
        rules=samples.rules,
        models=_quick_models(training, seed),
        measured=Measured(),
        cold=ColdCost().fit(training.table, training.latency_ms, training.cold_extra_ms),
        correction=NetworkCorrection(),
        call_overhead_ms=overhead_ms,
        transfer_ms_per_mb=max(samples.transfer_ms_per_mb, 0.0),
    )
    sums = []
    for network, works in zip(networks, rows, strict=True):
        estimates = predictor.models.predict(as_table(works))
        sums.append(predictor.sums(estimates, boundary_mb(network.graph)))
    latency = np.array([network.latency_ms for network in networks], dtype=np.float64)
    return np.abs(NetworkCorrection().fit(sums, latency).residuals)


def _without(
    kernels: Sequence[KernelSample],
    networks: Sequence[NetworkSample],
    rows: Sequence[Sequence[Workload]],
) -> list[KernelSample]:
    """The samples of kernels that none of these networks has, by hash or by workload.

    Args:
        kernels: the samples.
        networks: the networks.
        rows: the workloads of each network.
    """
    judges = {hash_of(network.graph) for network in networks}
    judged = {work for works in rows for work in works}
    return [
        sample
        for sample in kernels
        if sample.network not in judges and workload(sample.kernel) not in judged
    ]


def _quick_models(training: Training, seed: int) -> KernelModels:
    """A process for each group with enough kernels, and a roofline for all others."""
    table = training.table
    router, groups = Router.of(table, training.devices)
    models = KernelModels(
        router=replace(router, free=training.free),
        overall=Roofline(search=False).fit(table, training.latency_ms, training.noise),
        floor_ms=LEAST_FLOOR_MS,
    )
    for name, members in sorted(groups.items()):
        rows = np.array(members, dtype=np.intp)
        models.middle_ms[name] = float(np.median(training.latency_ms[rows]))
        if len(rows) < LEAST_ROWS:
            continue
        process = RooflineGP(steps=_STEPS, most_rows=_MOST_ROWS, seed=seed, spills=False)
        process.fit(table.take(rows), training.latency_ms[rows], training.noise[rows])
        models.stacks[name] = Stack(seed=seed)
        models.stacks[name].gp = process
    return models
