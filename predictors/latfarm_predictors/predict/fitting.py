"""From measured kernels and networks to a platform's predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.features.layers import Peaks
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.context import marks_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.context_model import ContextModel, Placed
from latfarm_predictors.learned.isolation import settled
from latfarm_predictors.learned.kernel_models import KernelModels, Report
from latfarm_predictors.learned.network_correction import (
    NetworkCorrection,
    NetworkFigures,
    boundary_mb,
)
from latfarm_predictors.predict.kernel_estimates import placed
from latfarm_predictors.predict.predictor import LEAST_FLOOR_MS, PlatformPredictor
from latfarm_predictors.samples import KernelSample, Measured, NetworkSample, prepare

_FLOOR_SHARE = 0.02

Unseen = Mapping[Workload, tuple[float, float]]
"""Latency in ms and log-sigma of training kernels by models that did not see them."""


def fit_predictor(
    platform: str,
    rules: FusionRules,
    kernels: Sequence[KernelSample],
    networks: Sequence[NetworkSample],
    *,
    call_overhead_ms: float,
    transfer_ms_per_mb: float,
    seed: int,
    report: Report,
    sibling: KernelModels | None = None,
    baselines: bool = True,
    places: Sequence[Sequence[KernelSample]] = (),
) -> PlatformPredictor:
    """See `PlatformPredictor.fit`."""
    if not isfinite(transfer_ms_per_mb):
        raise ValueError(f"transfers of {transfer_ms_per_mb} ms a megabyte are no cost")
    overhead_ms = max(call_overhead_ms, 0.0)
    training = settled(prepare(kernels, overhead_ms), seed)
    floor_ms = max(_FLOOR_SHARE * overhead_ms, LEAST_FLOOR_MS)
    models = KernelModels.fit(
        training, floor_ms=floor_ms, seed=seed, report=report, sibling=sibling, forests=baselines
    )
    usable = [each for each in networks if isfinite(each.latency_ms) and each.latency_ms > 0]
    predictor = PlatformPredictor(
        platform=platform,
        rules=rules,
        models=models,
        measured=Measured.of(training),
        cold=ColdCost().fit(training.table, training.latency_ms, training.cold_extra_ms),
        correction=NetworkCorrection(),
        baselines=Baselines()
        if not baselines
        else Baselines.fit(
            training,
            rules,
            models.forests,
            models.router.joined,
            usable,
            platform=platform,
            seed=seed,
        ),
        call_overhead_ms=overhead_ms,
        peaks=Peaks.of(training.table, training.latency_ms),
        transfer_ms_per_mb=max(transfer_ms_per_mb, 0.0),
        confidence=Evidence.of(training, models.unseen_ms, models.unseen_sigma),
        left_out=training.left_out + len(networks) - len(usable),
    )
    unseen = {
        work: (float(latency), float(sigma))
        for work, latency, sigma in zip(
            training.workloads, models.unseen_ms, models.unseen_sigma, strict=True
        )
    }
    if places:
        predictor.context = ContextModel.fit(Placed.of(places, rules), models, unseen, seed=seed)
    _calibrate(predictor, usable, unseen, report)
    return predictor


def _calibrate(
    predictor: PlatformPredictor,
    networks: Sequence[NetworkSample],
    unseen: Unseen,
    report: Report,
) -> None:
    """Fit the network correction.

    A kernel that is in the training set enters with its out-of-fold estimate: otherwise networks
    made of training kernels would look easier than those that will be asked about.
    """
    sums: list[NetworkFigures] = []
    for done, network in enumerate(networks):
        report("networks", done, len(networks))
        graph = network.graph
        parts = find_parts(graph, predictor.rules)
        rows = workloads_of(graph, parts)
        estimates = predictor.models.predict(as_table(rows))
        for index, row in enumerate(rows):
            known = unseen.get(row)
            if known is not None:
                estimates.latency_ms[index], estimates.sigma[index] = known
        if predictor.context is not None:
            marks = marks_of(graph, parts)
            estimates = placed(estimates, predictor.context, marks, hash_of(graph))
        sums.append(predictor.sums(estimates, boundary_mb(graph)))
    latency = np.array([network.latency_ms for network in networks], dtype=np.float64)
    predictor.correction.fit(sums, latency)
    report("networks", len(networks), len(networks))
