"""Which times of kernels a predictor is fitted to: those that predict measured networks best.

A campaign times kernels in one or several ways: alone, between pads, by a profiler, and inside
profiled networks. All of these ways are tried: quick regressors are fitted to each, and the
calibration networks judge them by their errors with each network left out of the correction
(`predict.trial`). The way that the campaign measured for is replaced only by a clearly better one,
so chance among twenty networks changes nothing. The bundle's provenance tells all errors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from latfarm_predictors.features.table import Array

from latfarm_controller.campaigns.profiles.insight import ORDER
from latfarm_controller.store.base import Store
from latfarm_controller.training.gather import ALL_ROWS, RowChoice, gather
from latfarm_controller.training.training_set import Basis, TrainingSet, recorded_basis

if TYPE_CHECKING:
    from latfarm_predictors.predict.fitting import PlatformSamples

_log = logging.getLogger(__name__)

LEAST_NETWORKS = 8
"""Fewer calibration networks than this judge nothing."""
LEAST_KERNELS = 30
"""A way in which fewer kernels than this were timed is not tried."""
WORTH = 0.95
"""Another way must lower the mean error to this share of the recorded one's."""
SURE = 1.0
"""Another way must lower the mean error by this many standard errors of the difference."""
_MOST_ERROR = 0.5
"""A network's log error counts as at most this."""


@dataclass(frozen=True)
class InsightTrial:
    """The outcome of a trial.

    Attributes:
        chosen: the basis that won.
        reason: why.
        networks: number of networks that judged.
        errors: mean absolute log error of each basis that was tried, by its name.
    """

    chosen: Basis
    reason: str
    networks: int = 0
    errors: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON types, for a bundle's provenance."""
        return {
            "chosen": self.chosen.kernels,
            "inside_networks": self.chosen.inside,
            "reason": self.reason,
            "networks": self.networks,
            "errors": {name: round(error, 5) for name, error in self.errors.items()},
        }


@dataclass(frozen=True)
class InsightWays:
    """The training sets of a campaign by all bases that are worth a trial.

    Attributes:
        own: the basis that the campaign measured for.
        tried: the training set by each basis; that of `own` is the first.
        settled: why no trial takes place; empty if one does.
    """

    own: Basis
    tried: Mapping[Basis, TrainingSet]
    settled: str = ""


def try_insights(
    store: Store, platform: str, campaign_id: str, *, seed: int = 0
) -> tuple[TrainingSet, InsightTrial]:
    """The training set of a campaign by the basis that wins a trial, and the trial.

    No trial takes place where somebody asked for an insight, or where there is nothing to choose.

    Raises:
        UsageError, StoreError: as `gather`.
    """
    return choose_way(gather_ways(store, platform, campaign_id), seed)


def gather_ways(
    store: Store,
    platform: str,
    campaign_id: str,
    rows: RowChoice = ALL_ROWS,
    kept: Basis | None = None,
) -> InsightWays:
    """Read the training sets of a campaign by all bases that are worth a trial.

    Args:
        store: holds the measurements.
        platform: the platform.
        campaign_id: the campaign.
        rows: which campaigns and networks are read.
        kept: the basis of the bundle that the campaign adds to: a few more kernels are no reason
            to choose again, and what was just measured may have no time by another basis.

    Raises:
        UsageError, StoreError: as `gather`.
    """
    if kept is not None:
        data = gather(store, platform, campaign_id, kept, rows)
        return InsightWays(kept, {kept: data}, "as the bundle that it adds to")
    usual = gather(store, platform, campaign_id, rows=rows)
    record = store.get_campaign(usual.campaigns[-1])
    outcome = {} if record is None else record.outcome
    own = recorded_basis(outcome)
    asked = outcome.get("insight", {}).get("asked", "auto")
    if asked != "auto":
        return InsightWays(own, {own: usual}, f"{asked} was asked for")
    if len(usual.networks) < LEAST_NETWORKS:
        few = f"{len(usual.networks)} networks are too few to judge"
        return InsightWays(own, {own: usual}, few)
    tried = {own: usual}
    for basis in _others(own, padded="padding" in outcome):
        found = gather(store, platform, campaign_id, basis, rows)
        if _offers(found, basis) and not any(_same(found, known) for known in tried.values()):
            tried[basis] = found
    settled = "kernels were timed in one way only" if len(tried) == 1 else ""
    return InsightWays(own, tried, settled)


def choose_way(ways: InsightWays, seed: int = 0) -> tuple[TrainingSet, InsightTrial]:
    """The training set by the basis that wins a trial, and the trial; nothing is read."""
    from latfarm_predictors.predict.trial import left_out_errors

    if ways.settled:
        return ways.tried[ways.own], InsightTrial(ways.own, ways.settled)
    errors = {
        basis: left_out_errors(samples_of(data, placed=False), seed)
        for basis, data in ways.tried.items()
    }
    known = {basis: found for basis, found in errors.items() if found is not None}
    trial = judge(ways.own, known)
    platform = ways.tried[ways.own].platform
    _log.info("%s: kernel times rest on %s (%s)", platform, trial.chosen, trial.reason)
    return ways.tried[trial.chosen], trial


def samples_of(data: TrainingSet, *, placed: bool = True) -> PlatformSamples:
    """What the predictor of latencies is fitted to.

    Args:
        data: all that a campaign gives to learn from.
        placed: whether the effect of a kernel's neighbours is learned, too.
    """
    from latfarm_predictors.predict.fitting import PlatformSamples

    return PlatformSamples(
        data.platform,
        data.rules,
        data.kernels,
        data.networks,
        call_overhead_ms=data.call_overhead_ms,
        transfer_ms_per_mb=data.transfer_ms_per_mb,
        places=data.places if placed else (),
    )


def told_basis(provenance: Mapping[str, Any], campaign_id: str) -> Basis | None:
    """The basis that a bundle of a campaign was fitted to; None where it does not tell one.

    Args:
        provenance: the bundle's provenance.
        campaign_id: the campaign; a bundle of another campaign tells nothing about it.
    """
    trial = provenance.get("insight", {}).get("trial")
    if not trial or provenance.get("campaign") != campaign_id:
        return None
    chosen = trial.get("chosen")
    return Basis(chosen, bool(trial.get("inside_networks"))) if chosen in ORDER else None


def judge(own: Basis, errors: Mapping[Basis, Array]) -> InsightTrial:
    """The basis whose errors win.

    Args:
        own: the basis that the campaign measured for; it stays unless another is clearly better.
        errors: absolute log error of each network by each basis, shape (n,); the same networks.
    """
    capped = {basis: np.minimum(found, _MOST_ERROR) for basis, found in errors.items()}
    means = {str(basis): float(found.mean()) for basis, found in capped.items()}
    if own not in capped or len(capped) == 1:
        return InsightTrial(own, "there is nothing to compare it with", errors=means)
    networks = len(capped[own])
    best = own
    for basis, found in capped.items():
        if _clearly_better(found, capped[own]) and found.mean() < capped[best].mean():
            best = basis
    reason = "no other way predicts networks clearly better"
    if best != own:
        reason = f"networks are predicted clearly better than by {own}"
    return InsightTrial(best, reason, networks, means)


def _clearly_better(new: Array, old: Array) -> bool:
    """Whether the mean of `new` is below that of `old` by enough, and surely."""
    gains = old - new
    standard_error = float(gains.std(ddof=1)) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(new.mean() < WORTH * old.mean() and gains.mean() > SURE * standard_error)


def _others(own: Basis, *, padded: bool) -> Sequence[Basis]:
    """All other bases, those with the best insight first.

    Args:
        own: the basis that the campaign measured for.
        padded: whether kernels were measured between pads.
    """
    insights = [name for name in ORDER if padded or name != "padded"]
    every = [Basis(kernels, inside) for inside in (True, False) for kernels in insights]
    return [basis for basis in every if basis != own]


def _offers(data: TrainingSet, basis: Basis) -> bool:
    """Whether enough kernels were timed in the way of this basis."""
    if basis.inside and not data.places:
        return False
    by_themselves = {
        s.kernel.kernel_id
        for s in data.kernels
        if not s.network and s.latency_ms > 0 and s.insight == basis.kernels
    }
    return len(by_themselves) >= LEAST_KERNELS


def _same(one: TrainingSet, other: TrainingSet) -> bool:
    """Whether two training sets have the same times."""
    return one.transfer_ms_per_mb == other.transfer_ms_per_mb and one.kernels == other.kernels
