"""From measured kernels and networks to the predictor of a platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.layers import Peaks
from latfarm_predictors.features.table import as_table
from latfarm_predictors.gnn.kernel_graph import KernelSum
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.context import marks_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.reuse import spills_of
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.learned.absent_kernels import AbsentKernels, without_absent
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.context_model import ContextModel, PlacedKernels
from latfarm_predictors.learned.isolation import corrected_for_isolation
from latfarm_predictors.learned.kernel_models import KernelModels, OnProgress, ignore_progress
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import NetworkFigures, boundary_mb
from latfarm_predictors.learned.reuse_cost import ReuseCost, ReusedKernels, in_caches
from latfarm_predictors.models.published.group_forests import GroupForests
from latfarm_predictors.models.sibling import Sibling
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.predict.answer import SUM
from latfarm_predictors.predict.earlier_fit import EarlierFit, KeptFit, kept_of
from latfarm_predictors.predict.kernel_estimates import placed, reused
from latfarm_predictors.predict.nnlp_trial import NNLPTrial, tried_nnlp
from latfarm_predictors.predict.predictor import LEAST_FLOOR_MS, PlatformPredictor
from latfarm_predictors.predict.sum_corrector import SummedNetworks, chosen_corrector
from latfarm_predictors.samples import KernelSample, Measured, NetworkSample, Training, prepare

_FLOOR_SHARE = 0.02
"""No kernel is predicted to take less than this share of the latency of an empty model."""

Unseen = Mapping[Workload, tuple[float, float]]
"""Latency in ms and log-sigma of training kernels by models that did not see them."""


@dataclass(frozen=True)
class PlatformSamples:
    """What the predictor of a platform is fitted to.

    Attributes:
        platform: name of the platform.
        rules: how the platform fuses ops.
        kernels: measured kernels; repeats of one kernel are pooled.
        networks: networks measured as a whole; 9 or more calibrate 90 % intervals.
        call_overhead_ms: latency of an empty model, which is taken off every kernel.
        transfer_ms_per_mb: cost of each megabyte of a network's inputs and outputs, in ms, where
            kernels do not include it.
        places: the kernels that were seen inside a network, those of one network together. What
            the neighbours of a kernel change in its latency is learned from them.
    """

    platform: str
    rules: FusionRules
    kernels: Sequence[KernelSample]
    networks: Sequence[NetworkSample]
    call_overhead_ms: float = 0.0
    transfer_ms_per_mb: float = 0.0
    places: Sequence[Sequence[KernelSample]] = ()


def fit_predictor(
    samples: PlatformSamples,
    *,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    sibling: PlatformPredictor | None = None,
    baselines: bool = True,
    earlier: EarlierFit | None = None,
    nnlp: NNLPTrial | None = None,
) -> PlatformPredictor:
    """Learn a platform from measured kernels and networks.

    Args:
        samples: what was measured; latencies that are not positive and finite are left out.
        seed: random seed; the same samples and the same seed give the same predictor.
        on_progress: called with a stage, how many of its steps are done, and how many there are.
        sibling: the predictor of a sibling platform, whose latencies are scaled and corrected.
        baselines: whether to fit the predictors of the literature too.
        earlier: a predictor of which groups of kernels without new samples are kept; None: none.
        nnlp: how graph networks are tried, which takes minutes and needs torch; None: they are not.

    Raises:
        NotEnoughDataError: fewer than 8 distinct kernels.
        GraphError: a kernel of a size that no board could run.
        ValueError: an overhead or a transfer cost that is no number.
    """
    report = on_progress or ignore_progress
    overhead_ms = max(samples.call_overhead_ms, 0.0)
    measured, training, reuse = _prepared(samples, overhead_ms, seed)
    kept = None if earlier is None else kept_of(earlier, training, forests=baselines)
    training = training if kept is None else kept.training
    models = KernelModels.fit(
        training,
        floor_ms=max(_FLOOR_SHARE * overhead_ms, LEAST_FLOOR_MS),
        seed=seed,
        on_progress=report,
        sibling=None if sibling is None else Sibling.of(sibling.models),
        forests=baselines,
        kept=None if kept is None else kept.groups,
    )
    if reuse is not None and baselines:
        _fit_forests(models, measured, seed)
    usable = [n for n in samples.networks if isfinite(n.latency_ms) and n.latency_ms > 0]
    predictor = PlatformPredictor(
        platform=samples.platform,
        rules=samples.rules,
        models=models,
        measured=_measured(training, kept),
        cold=_cold(training, kept),
        correction=NetworkCorrection(),
        baselines=_baselines(samples, measured, models, usable, seed) if baselines else Baselines(),
        call_overhead_ms=overhead_ms,
        peaks=Peaks.of(training.table, training.latency_ms),
        transfer_ms_per_mb=max(samples.transfer_ms_per_mb, 0.0),
        confidence=Evidence.of(training, models.unseen_ms, models.unseen_sigma),
        left_out=training.left_out + len(samples.networks) - len(usable),
        reuse=reuse,
    )
    _fit_networks(predictor, samples, usable, _unseen(training, models), report, seed, nnlp)
    return predictor


def _prepared(
    samples: PlatformSamples, overhead_ms: float, seed: int
) -> tuple[Training, Training, ReuseCost | None]:
    """The kernels as measured, the same as if caches held all data, and what evicted data cost.

    Without such a cost both are the same.

    Raises:
        ValueError: an overhead or a transfer cost that is no number.
    """
    if not isfinite(samples.transfer_ms_per_mb):
        raise ValueError(f"transfers of a megabyte cannot take {samples.transfer_ms_per_mb} ms")
    in_networks = ReusedKernels.of(samples.places, samples.rules)
    reuse = ReuseCost.fit(in_networks, seed=seed)
    measured = corrected_for_isolation(prepare(samples.kernels, overhead_ms), seed)
    if reuse is None:
        return measured, measured, None
    kernels = in_caches(reuse, in_networks, samples.kernels)
    return measured, corrected_for_isolation(prepare(kernels, overhead_ms), seed), reuse


def _measured(training: Training, kept: KeptFit | None) -> Measured:
    """The measured workloads; those of kept groups are as the earlier predictor knew them."""
    found = Measured.of(training)
    return found if kept is None else found.keeping(kept.predictor.measured, kept.families)


def _cold(training: Training, kept: KeptFit | None) -> ColdCost:
    """What flushed caches add; it is kept if no new kernel was measured with flushed caches."""
    if kept is not None and not np.isfinite(training.cold_extra_ms[kept.fresh]).any():
        return kept.predictor.cold
    return ColdCost().fit(training.table, training.latency_ms, training.cold_extra_ms)


def _fit_networks(
    predictor: PlatformPredictor,
    samples: PlatformSamples,
    networks: Sequence[NetworkSample],
    unseen: Unseen,
    on_progress: OnProgress,
    seed: int,
    nnlp: NNLPTrial | None,
) -> None:
    """Fit what a predictor knows beyond single kernels: their neighbours, and whole networks."""
    predictor.absent = AbsentKernels.of(samples.places, samples.rules)
    predictor.context = _fit_context(predictor, samples, unseen, seed)
    profiled = [] if predictor.context is None else _profiled_networks(predictor, samples, networks)
    summed = _calibrate(predictor, networks, profiled, unseen, on_progress)
    predictor.corrector, predictor.shipping = chosen_corrector(summed, seed)
    if nnlp is not None:
        _try_nnlp(predictor, summed, nnlp, on_progress)


def _try_nnlp(
    predictor: PlatformPredictor,
    networks: SummedNetworks,
    trial: NNLPTrial,
    on_progress: OnProgress,
) -> None:
    """Let a graph network answer if it beats what answers now, with a family left out."""
    incumbent = SUM if predictor.corrector is None else predictor.corrector.method
    winner, decision = tried_nnlp(networks, predictor.platform, incumbent, trial, on_progress)
    predictor.corrector = winner or predictor.corrector
    predictor.shipping = replace(decision, before=predictor.shipping)


def _fit_context(
    predictor: PlatformPredictor, samples: PlatformSamples, unseen: Unseen, seed: int
) -> ContextModel | None:
    """What neighbours change in a kernel's latency; None where evicted data explain it already."""
    if not samples.places or predictor.reuse is not None:
        return None
    neighbours = PlacedKernels.of(samples.places, samples.rules)
    return ContextModel.fit(neighbours, predictor.models, unseen, seed=seed)


def _baselines(
    samples: PlatformSamples,
    training: Training,
    models: KernelModels,
    networks: Sequence[NetworkSample],
    seed: int,
) -> Baselines:
    """The predictors of the literature, fitted to the same measurements."""
    forests = GroupForests(models.forests, models.router.joined) if models.forests else None
    return Baselines.fit(
        training,
        samples.rules,
        forests,
        networks,
        platform=samples.platform,
        seed=seed,
    )


def _fit_forests(models: KernelModels, measured: Training, seed: int) -> None:
    """Fit the baseline's forests to the times as measured, which no published method corrects."""
    _, groups = Router.of(measured.table, measured.devices)
    for name in models.forests:
        rows = np.array(groups[name] if name else range(len(measured.table)), dtype=np.intp)
        forest = Forest(seed=seed).fit(measured.table.take(rows), measured.latency_ms[rows])
        models.forests[name] = forest


def _unseen(training: Training, models: KernelModels) -> Unseen:
    """What each training kernel was predicted to take by models that did not see it."""
    return {
        work: (float(latency), float(sigma))
        for work, latency, sigma in zip(
            training.workloads, models.unseen_ms, models.unseen_sigma, strict=True
        )
    }


def _profiled_networks(
    predictor: PlatformPredictor, samples: PlatformSamples, networks: Sequence[NetworkSample]
) -> list[NetworkSample]:
    """The profiled networks whose times tell their whole latency, to calibrate intervals with.

    A kernel in one of them is predicted by trees and regressors that have not seen this network, so
    it is as unknown as a calibration network. A graph with fewer kernels than every calibration
    network is a part of a network, and is left out.
    """
    least = min((len(find_parts(n.graph, samples.rules)) for n in networks), default=0)
    found: list[NetworkSample] = []
    for kernels in samples.places:
        origin = kernels[0].kernel.origin if kernels else None
        if origin is None or len(kernels) < least or not networks:
            continue
        graph, _ = origin
        inside_ms = sum(kernel.latency_ms for kernel in kernels)
        if len(kernels) == len(find_parts(graph, samples.rules)) and inside_ms > 0:
            found.append(NetworkSample(graph, inside_ms + predictor.fixed_ms(boundary_mb(graph))))
    return found


def _calibrate(
    predictor: PlatformPredictor,
    networks: Sequence[NetworkSample],
    profiled: Sequence[NetworkSample],
    unseen: Unseen,
    on_progress: OnProgress,
) -> SummedNetworks:
    """Fit the network correction; returns the sums of the networks that were not profiled.

    A kernel that is in the training set enters with its out-of-fold estimate: otherwise networks
    made of training kernels would look easier than those that will be asked about.
    """
    sums: list[NetworkFigures] = []
    kernel_sums: list[KernelSum] = []
    both = [*networks, *profiled]
    for done, network in enumerate(both):
        on_progress("networks", done, len(both))
        graph = network.graph
        parts = find_parts(graph, predictor.rules)
        rows = workloads_of(graph, parts)
        estimates = predictor.models.predict(as_table(rows))
        for index, row in enumerate(rows):
            known = unseen.get(row)
            if known is not None:
                estimates.latency_ms[index], estimates.sigma[index] = known
        if predictor.reuse is not None:
            estimates = reused(estimates, predictor.reuse, spills_of(graph, parts))
        elif predictor.context is not None:
            marks = marks_of(graph, parts)
            estimates = placed(estimates, predictor.context, marks, hash_of(graph))
        absent = predictor.absent.among(parts)
        estimates = without_absent(estimates, absent, predictor.models.floor_ms)
        moved_mb = boundary_mb(graph)
        sums.append(predictor.sums(estimates, moved_mb))
        fixed_ms = predictor.fixed_ms(moved_mb)
        kernel_sums.append(KernelSum(graph, parts, estimates.latency_ms, fixed_ms))
    latency = np.array([network.latency_ms for network in both], dtype=np.float64)
    predictor.correction.fit(sums, latency, profiled=len(profiled))
    on_progress("networks", len(both), len(both))
    own = len(networks)
    families = [network.family for network in networks]
    return SummedNetworks(kernel_sums[:own], sums[:own], latency[:own], families)
