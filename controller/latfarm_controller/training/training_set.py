"""What a predictor learns from: the kernels and networks that a campaign measured, as samples.

`collect` decides four things, each in a function of its own: which fusion rules hold, what time
each kernel takes when it is measured alone or between pads, what moving a megabyte costs, and which
kernels were seen inside networks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.samples import KernelSample, NetworkSample, mad_of
from latfarm_predictors.slow_core import SlowCore

from latfarm_controller.campaigns.call_overhead import PURPOSE as OVERHEAD
from latfarm_controller.campaigns.host_noise import HostNoise
from latfarm_controller.campaigns.kernels.padding import PURPOSE as PADDING
from latfarm_controller.campaigns.kernels.padding_profile import within_samples
from latfarm_controller.campaigns.kernels.padding_results import padded_samples, with_cold
from latfarm_controller.campaigns.networks import campaign as networks
from latfarm_controller.campaigns.networks.calibration import SCALED
from latfarm_controller.campaigns.profiles.fusion_in_networks import (
    Pair,
    Seen,
    overruled,
    put_right,
    seen_in_networks,
    wholes_in_networks,
)
from latfarm_controller.campaigns.profiles.insight import (
    Insight,
    chosen_insight,
    insight_story,
    layout_share,
    sample_of,
    transfer_beside_pads,
    transfer_ms_per_mb,
)
from latfarm_controller.campaigns.profiles.profiled_networks import (
    accounts_for,
    places_of,
)
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training.campaign_measurements import (
    CampaignMeasurements,
    read_campaign,
)
from latfarm_controller.training.energy import EnergySet, collect_energy

_log = logging.getLogger(__name__)

DOUBTFUL_TIMES = 3.0
"""How many times the noise of the host a doubtful measurement is assumed to have."""


@dataclass
class TrainingSet:
    """What a campaign gives to learn from.

    Attributes:
        platform: the platform that was measured.
        campaign_id: the campaign.
        rules: the fusion rules, as networks of the campaign show them.
        call_overhead_ms: latency of an empty model, in milliseconds.
        transfer_ms_per_mb: milliseconds that a megabyte of a model's inputs or outputs takes.
        kernels: all samples of kernels, those of `places` included.
        networks: the calibration networks.
        board_ids: the boards that measured.
        fingerprint: the platform's fingerprint under which all of this was measured.
        left_out: number of measurements that were not used, by the reason.
        insight: how kernels' own times were obtained, for the bundle's provenance.
        energy: the energies that were measured.
        places: the kernels that were seen inside a network, by network. The effect of a kernel's
            neighbours is learned from these.
        overruled: pairs of ops that networks fuse differently than single pairs did.
        slow_core: the correction for a slow core that all latencies here already contain.
        host_noise: what is usual on the host that measured.
        steadiness: how many measurements have each steadiness, see `campaigns.host_noise`.
        calibration_draw: how the calibration networks were drawn, see `networks.calibration`.
        campaigns: all campaigns that were learned from, the newest first.
    """

    platform: str
    campaign_id: str
    rules: FusionRules
    call_overhead_ms: float
    transfer_ms_per_mb: float = 0.0
    kernels: list[KernelSample] = field(default_factory=list)
    networks: list[NetworkSample] = field(default_factory=list)
    board_ids: tuple[str, ...] = ()
    fingerprint: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    insight: Mapping[str, Any] = field(default_factory=dict)
    energy: EnergySet = field(default_factory=EnergySet)
    places: list[list[KernelSample]] = field(default_factory=list)
    overruled: Mapping[Pair, Seen] = field(default_factory=dict)
    slow_core: SlowCore = field(default_factory=SlowCore)
    host_noise: HostNoise = field(default_factory=HostNoise)
    steadiness: Mapping[str, int] = field(default_factory=dict)
    calibration_draw: str = SCALED
    campaigns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Basis:
    """What the times of kernels rest on.

    Attributes:
        kernels: how the time of a kernel that was measured by itself is told.
        inside: whether the times of kernels inside profiled networks are learned from as well.
    """

    kernels: Insight
    inside: bool

    def __str__(self) -> str:
        return f"{self.kernels}, inside networks too" if self.inside else self.kernels


def recorded_basis(outcome: Mapping[str, Any]) -> Basis:
    """The basis that a campaign measured for: its own insight, and profiled networks."""
    return Basis(chosen_insight(outcome) or "profile", inside=True)


def collect(
    store: Store,
    platform: str,
    campaign_id: str,
    basis: Basis | None = None,
    slow_core: SlowCore | None = None,
    barred: frozenset[str] = frozenset(),
) -> TrainingSet:
    """The kernels and networks that one campaign measured, corrected for a slow core.

    Only the campaign's own measurements count (see `campaign_measurements`), and no network whose
    hash is `barred`: others judge the predictor. Times of kernels rest on `basis`, by default on
    what the campaign measured for. Without `slow_core`, that is learned from this campaign alone.

    Raises:
        UsageError: there is no such campaign, it is of another platform, or it has no fusion rules.
        StoreError: the measurements cannot be read.
    """
    record = _campaign_of(store, platform, campaign_id)
    rules, overhead_ms = _rules_of(record)
    found = read_campaign(store, record, slow_core, barred)
    overhead_ms *= found.outcome_factors.get(OVERHEAD, 1.0)
    rules, otherwise = _as_networks_show(record, rules, found)
    chosen = basis or recorded_basis(record.outcome)
    profiles = chosen.kernels == "profile"
    alone = _measured_alone(found, overhead_ms, profiles=profiles)
    between: list[KernelSample] = []
    if _uses_pads(chosen, record):
        between = _corrected(padded_samples(record.outcome, store.get_graph), found)
    inside_pads = within_samples(record.outcome, store.get_graph) if profiles else []
    padded = between + _corrected(inside_pads, found)
    transfer = _transfer_ms_per_mb(found, alone, between, overhead_ms, profiles=profiles)
    costs = (overhead_ms, transfer)
    places = _places(record, found, rules, costs, profiles=profiles) if chosen.inside else []
    kernels = _best_of(alone, padded) + [sample for network in places for sample in network]
    pooled = (networks.pooled_network(graph, answers) for graph, answers in found.networks)
    return TrainingSet(
        platform,
        record.campaign_id,
        rules,
        overhead_ms,
        transfer_ms_per_mb=transfer,
        kernels=kernels,
        networks=[sample for sample in pooled if sample is not None],
        board_ids=found.board_ids,
        fingerprint=found.fingerprint,
        left_out=found.left_out,
        insight=insight_story(record.outcome, kernels),
        energy=collect_energy(
            found.kernels, found.networks, record.outcome.get("call_overhead_mj")
        ),
        places=places,
        overruled=otherwise,
        slow_core=found.slow_core,
        host_noise=found.host_noise,
        steadiness=found.steadiness,
        calibration_draw=str(record.outcome.get("networks", {}).get("draw", SCALED)),
    )


def warn_of(data: TrainingSet) -> None:
    """Log what a person should know about the measurements that a predictor learns from."""
    if data.left_out.get("fingerprint"):
        _log.warning(
            "%s: %d measurements were taken under another fingerprint and are left out",
            data.platform,
            data.left_out["fingerprint"],
        )
    if data.host_noise.hopeless:
        _log.warning("%s: %s", data.platform, data.host_noise.sentence)


def _uses_pads(chosen: Basis, record: CampaignRecord) -> bool:
    """Whether times between pads count; those of a campaign that records no insight always do."""
    return chosen.kernels == "padded" or chosen_insight(record.outcome) is None


def _corrected(samples: Iterable[KernelSample], found: CampaignMeasurements) -> list[KernelSample]:
    """Samples from a campaign's outcome, corrected for a slow core like its measurements."""
    factor = found.outcome_factors.get(PADDING, 1.0)
    return [
        replace(
            sample,
            latency_ms=sample.latency_ms * factor,
            mad_ms=sample.mad_ms * factor,
            cold_ms=None if sample.cold_ms is None else sample.cold_ms * factor,
        )
        for sample in samples
    ]


def _campaign_of(store: Store, platform: str, campaign_id: str) -> CampaignRecord:
    record = store.get_campaign(campaign_id)
    if record is None:
        raise UsageError(
            f"there is no campaign {campaign_id!r}; `latfarm campaign list` names them all"
        )
    if record.platform != platform:
        raise UsageError(
            f"campaign {campaign_id!r} measured {record.platform}, not {platform}; "
            "name a campaign of this platform"
        )
    return record


def _rules_of(record: CampaignRecord) -> tuple[FusionRules, float]:
    """The fusion rules that a campaign found, and the latency of an empty model in milliseconds."""
    outcome = record.outcome
    if "rules" not in outcome:
        raise UsageError(
            f"campaign {record.name or record.campaign_id!r} ({record.kind}, {record.state}) has "
            "no fusion rules yet; train from a finished characterize, kernels or padding campaign"
        )
    try:
        rules = FusionRules.from_json(outcome["rules"])
    except PredictorsError as error:
        raise UsageError(
            f"the fusion rules of campaign {record.campaign_id!r} cannot be read: {error}"
        ) from error
    return rules, float(outcome.get("call_overhead_ms", 0.0))


def _as_networks_show(
    record: CampaignRecord, rules: FusionRules, found: CampaignMeasurements
) -> tuple[FusionRules, Mapping[Pair, Seen]]:
    """The rules corrected by profiles of networks, and the pairs that were corrected.

    Rules that a person gave to the campaign stay as they are.
    """
    if record.config.get("rules") is not None:
        return rules, {}
    seen = seen_in_networks(found.profiled_networks)
    wholes = wholes_in_networks(found.profiled_networks)
    return put_right(rules, seen, wholes), overruled(rules, seen)


def _measured_alone(
    found: CampaignMeasurements, overhead_ms: float, *, profiles: bool
) -> list[KernelSample]:
    """A sample of each usable measurement of a model that is one kernel.

    Repeats stay separate samples: the fit learns from their differences how noisy a kernel is.

    Args:
        found: the campaign's measurements.
        overhead_ms: latency of an empty model.
        profiles: whether profiles tell which share of the model's time is not the kernel's.
    """
    samples: list[KernelSample] = []
    for graph, answers in found.kernels:
        kernel = Kernel(graph)
        told = found.profiles.get(hash_of(graph), ())
        share = layout_share(told, overhead_ms) if profiles else None
        samples += [_weighted(sample_of(kernel, m, overhead_ms, share), m, found) for m in answers]
    return samples


def _weighted(
    sample: KernelSample, measurement: Measurement, found: CampaignMeasurements
) -> KernelSample:
    """A sample whose deviation is at least what is usual between measurements on its host.

    Runs that happen to agree do not make a measurement better than the host allows. A doubtful
    measurement that has no better one beside it counts as `DOUBTFUL_TIMES` as noisy.
    """
    noise = found.host_noise.noise
    if noise is None:
        return sample
    times = DOUBTFUL_TIMES if measurement.request_id in found.doubtful else 1.0
    return replace(sample, mad_ms=max(sample.mad_ms, mad_of(times * noise * sample.latency_ms)))


def _by_kernel(samples: Iterable[KernelSample]) -> dict[str, KernelSample]:
    return {sample.kernel.kernel_id: sample for sample in samples}


def _best_of(alone: Sequence[KernelSample], padded: Sequence[KernelSample]) -> list[KernelSample]:
    """The samples of kernels alone, replaced by those between pads where a kernel has both."""
    better = _by_kernel(padded)
    replaced = _by_kernel(s for s in alone if s.kernel.kernel_id in better)
    return [s for s in alone if s.kernel.kernel_id not in better] + [
        with_cold(s, replaced.get(s.kernel.kernel_id)) for s in padded
    ]


def _transfer_ms_per_mb(
    found: CampaignMeasurements,
    alone: Sequence[KernelSample],
    between: Sequence[KernelSample],
    overhead_ms: float,
    *,
    profiles: bool,
) -> float:
    """Milliseconds that a megabyte of a model's inputs or outputs takes.

    It is told by kernels that were measured both alone and between pads, else by what profiles of
    single kernels leave unexplained. A profile takes the call and the transfers off the times alone
    already, so that beside pads the times of whole models count.
    """
    if between:
        whole = _measured_alone(found, overhead_ms, profiles=False) if profiles else alone
        single = _by_kernel(whole)
        both = [(s, single[s.kernel.kernel_id]) for s in between if s.kernel.kernel_id in single]
        return transfer_beside_pads(
            [(s.kernel.graph, own.latency_ms, s.latency_ms) for s, own in both], overhead_ms
        )
    if profiles:
        return transfer_ms_per_mb(
            [
                *((graph, found.profiles.get(hash_of(graph), ())) for graph, _ in found.kernels),
                *found.probes,
            ],
            overhead_ms,
        )
    return 0.0


def _places(
    record: CampaignRecord,
    found: CampaignMeasurements,
    rules: FusionRules,
    costs: tuple[float, float],
    *,
    profiles: bool,
) -> list[list[KernelSample]]:
    """The kernels of each profiled network, without those that must not be trained on.

    Args:
        record: the campaign, whose configuration names the networks that are held out.
        found: its measurements.
        rules: how networks are cut into kernels.
        costs: milliseconds that a call takes, and that a megabyte of a network's inputs or outputs
            takes.
        profiles: whether profiles tell kernels' times on this platform. If not, only profiles that
            account for the latency measured without the profiler are used.
    """
    if not profiles and not found.drawn_profiles:
        return []
    told = [
        (graph, m)
        for graph, m in found.profiled_networks
        if m.fingerprint == found.fingerprint and (profiles or accounts_for(m))
    ]
    held_out = [Graph.from_json(data) for data in record.config.get("held_out", ())]
    barred = Excluded.of(held_out, rules, record.config.get("exclude_kernels", ()))
    told.sort(key=lambda run: run[1].request_id)
    return [
        [sample for sample in inside if sample.kernel not in barred]
        for inside in places_of(told, rules, *costs)
    ]
