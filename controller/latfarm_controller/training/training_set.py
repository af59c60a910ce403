"""What a predictor is fitted to: the good measurements of a campaign, as kernels and networks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.learned.network_correction import boundary_mb
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement
from latfarm_predictors.samples import KernelSample, NetworkSample

from latfarm_controller.campaigns.kernels import kernels
from latfarm_controller.campaigns.kernels.padding_profile import within_samples
from latfarm_controller.campaigns.kernels.padding_results import padded_samples, with_cold
from latfarm_controller.campaigns.networks import networks
from latfarm_controller.campaigns.profiles import profiled_draw
from latfarm_controller.campaigns.profiles.fusion_seen import (
    Pair,
    Seen,
    overruled,
    put_right,
    seen_in_networks,
)
from latfarm_controller.campaigns.profiles.insight import (
    chosen_insight,
    insight_story,
    layout_share,
    sample_of,
    transfer_beside_pads,
    transfer_ms_per_mb,
)
from latfarm_controller.campaigns.profiles.profiled_networks import accounts_for, in_context
from latfarm_controller.campaigns.sampling.samplers import Excluded
from latfarm_controller.campaigns.slow_core import SlowCore, felt
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training.energy import EnergySet, collect_energy

_log = logging.getLogger(__name__)


@dataclass
class TrainingSet:
    """What a campaign gives to learn from.

    `places` are those of the `kernels` that were seen inside a network, by network: what stands
    around them is learned from these. `left_out` counts measurements by the reason for which they
    were not used. `overruled`: the pairs that networks were seen to fuse otherwise than their own
    models; `rules` say what networks do. `slow_core`: what was taken out of all latencies beyond
    what they were told with.
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


def collect(store: Store, platform: str, campaign_id: str) -> TrainingSet:
    """The kernels and networks that one campaign measured.

    Only that campaign's own: networks measured elsewhere may be the ones that judge the predictor.
    Failures, measurements under another protocol, windows that the sentinel voided, and all but the
    most frequent fingerprint are left out; an unstable measurement only where its graph has a
    stable one.

    Raises:
        UsageError: no such campaign, or one of another platform or without rules.
    """
    record = store.get_campaign(campaign_id)
    if record is None:
        raise UsageError(f"no campaign {campaign_id!r}; `latfarm campaign list` names them")
    if record.platform != platform:
        raise UsageError(f"campaign {campaign_id!r} is of {record.platform}, not of {platform}")
    rules, overhead_ms = _rules_of(record)
    left_out: Counter[str] = Counter()
    measured = {
        purpose: list(store.measurements(campaign_id=record.campaign_id, purpose=purpose))
        for purpose in (kernels.PURPOSE, networks.PURPOSE, profiled_draw.PURPOSE)
    }
    slow_core = felt(m for found in measured.values() for m in found)
    measured = {p: [slow_core.settled(m) for m in found] for p, found in measured.items()}
    fingerprint = _most_frequent(
        m.fingerprint for found in measured.values() for m in found if m.ok
    )
    void = frozenset(record.outcome.get("void", ()))
    usable = {
        purpose: _usable(measured[purpose], fingerprint, void, left_out)
        for purpose in (kernels.PURPOSE, networks.PURPOSE)
    }
    profiled_runs = [
        run
        for p in (networks.PURPOSE, profiled_draw.PURPOSE)
        for run in _profiled(store, measured[p])
    ]
    if record.config.get("rules") is None:
        seen = seen_in_networks(profiled_runs)
        otherwise, rules = overruled(rules, seen), put_right(rules, seen)
    else:
        otherwise = {}  # whoever gives rules wants these
    result = TrainingSet(
        platform,
        record.campaign_id,
        rules,
        overhead_ms,
        fingerprint=fingerprint,
        overruled=otherwise,
        slow_core=slow_core,
    )
    singles = _with_graphs(store, usable[kernels.PURPOSE], left_out)
    profiled: dict[str, list[Measurement]] = {}
    for m in measured[kernels.PURPOSE]:
        if m.ok and m.fingerprint == fingerprint:
            profiled.setdefault(m.graph_hash, []).append(m)
    profiles = chosen_insight(record.outcome) in (None, "profile")
    for graph, answers in singles:
        kernel = Kernel(graph)
        # One sample a pass: what lies between passes tells the fit how noisy a kernel is. Shares
        # are no times: a profile tells them even where its pass was too unstable to be used.
        share = layout_share(profiled.get(hash_of(graph), ()), overhead_ms) if profiles else None
        result.kernels += [sample_of(kernel, m, overhead_ms, share) for m in answers]
    between = padded_samples(record.outcome, store.get_graph)
    padded = between + within_samples(record.outcome, store.get_graph)
    better = {sample.kernel.kernel_id for sample in padded}
    alone = {s.kernel.kernel_id: s for s in result.kernels if s.kernel.kernel_id in better}
    padded = [with_cold(s, alone.get(s.kernel.kernel_id)) for s in padded]
    result.kernels = [s for s in result.kernels if s.kernel.kernel_id not in better] + padded
    whole = _with_graphs(store, usable[networks.PURPOSE], left_out)
    for graph, answers in whole:
        sample = networks.pooled_network(graph, answers)
        if sample is not None:
            result.networks.append(sample)
    if between:
        both = [(s, alone[s.kernel.kernel_id]) for s in between if s.kernel.kernel_id in alone]
        result.transfer_ms_per_mb = transfer_beside_pads(
            [(s.kernel.graph, own.latency_ms, s.latency_ms) for s, own in both], overhead_ms
        )
    elif profiles:
        result.transfer_ms_per_mb = transfer_ms_per_mb(
            [(graph, profiled.get(hash_of(graph), ())) for graph, _ in singles], overhead_ms
        )
    if profiles or measured[profiled_draw.PURPOSE]:
        told = [
            (graph, m)
            for graph, m in profiled_runs
            if m.fingerprint == fingerprint and (profiles or accounts_for(m))
        ]
        result.places = _from_networks(record, result, told)
        result.kernels += [sample for network in result.places for sample in network]
    result.insight = insight_story(record.outcome, result.kernels)
    result.energy = collect_energy(singles, whole, record.outcome.get("call_overhead_mj"))
    used = [m for found in usable.values() for answers in found.values() for m in answers]
    result.board_ids = tuple(sorted({m.board_id for m in used}))
    result.left_out = dict(sorted(left_out.items()))
    if left_out["fingerprint"]:
        _log.warning(
            "%s: %d measurements were taken under another fingerprint and are left out",
            platform,
            left_out["fingerprint"],
        )
    return result


def _profiled(store: Store, found: Iterable[Measurement]) -> Iterator[tuple[Graph, Measurement]]:
    """What was measured, and its measurement, of good ones with layers."""
    for measurement in found:
        graph = store.get_graph(measurement.graph_hash) if measurement.ok else None
        if graph is not None and measurement.layers:
            yield graph, measurement


def _from_networks(
    record: CampaignRecord, data: TrainingSet, found: Iterable[tuple[Graph, Measurement]]
) -> list[list[KernelSample]]:
    """Kernels of each profiled network, but none that must not be trained on."""
    held_out = [Graph.from_json(data) for data in record.config.get("held_out", ())]
    barred = Excluded.of(held_out, data.rules, record.config.get("exclude_kernels", ()))
    groups: list[list[KernelSample]] = []
    for graph, measurement in sorted(found, key=lambda run: run[1].request_id):
        transfers_ms = data.transfer_ms_per_mb * boundary_mb(graph)
        inside = in_context(graph, data.rules, measurement, transfers_ms)
        groups.append([sample for sample in inside if sample.kernel not in barred])
    return groups


def _rules_of(record: CampaignRecord) -> tuple[FusionRules, float]:
    outcome = record.outcome
    if "rules" not in outcome:
        raise UsageError(
            f"campaign {record.name or record.campaign_id!r} ({record.kind}, {record.state}) has "
            "no fusion rules yet; train from a finished characterize, kernels or padding campaign"
        )
    try:
        rules = FusionRules.from_json(outcome["rules"])
    except PredictorsError as error:
        raise UsageError(f"campaign {record.campaign_id!r}: {error}") from error
    return rules, float(outcome.get("call_overhead_ms", 0.0))


def _most_frequent(names: Iterable[str]) -> str:
    counts = Counter(names)
    return max(sorted(counts), key=lambda name: counts[name]) if counts else ""


def _usable(
    found: Sequence[Measurement], fingerprint: str, void: frozenset[str], left_out: Counter[str]
) -> dict[str, list[Measurement]]:
    """Good measurements by graph, oldest first."""
    graphs: dict[str, list[Measurement]] = {}
    for m in sorted(found, key=lambda m: (m.measured_at_s, m.request_id)):
        if not m.ok:
            left_out["failed"] += 1
        elif m.protocol_version != PROTOCOL_VERSION:
            left_out["protocol"] += 1
        elif m.fingerprint != fingerprint:
            left_out["fingerprint"] += 1
        else:
            graphs.setdefault(m.graph_hash, []).append(m)
    for key, answers in graphs.items():
        kept = [m for m in answers if m.request_id not in void] or answers
        left_out["void"] += len(answers) - len(kept)
        stable = [m for m in kept if not m.unstable] or kept
        left_out["unstable"] += len(kept) - len(stable)
        graphs[key] = stable
    return graphs


def _with_graphs(
    store: Store, found: Mapping[str, list[Measurement]], left_out: Counter[str]
) -> list[tuple[Graph, list[Measurement]]]:
    rows = []
    for key, answers in found.items():
        graph = store.get_graph(key)
        if graph is None:
            left_out["graph lost"] += len(answers)
        else:
            rows.append((graph, answers))
    return rows
