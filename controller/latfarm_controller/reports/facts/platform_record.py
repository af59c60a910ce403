"""The data that a platform's report is made from: measurements of the store, and a predictor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement, Outcome
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample, NetworkSample
from latfarm_predictors.slow_core import timed_ms_of

from latfarm_controller.campaigns.networks.campaign import pooled_network
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training.bundle_notes import BundleNotes

PURPOSES = ("fusion", "kernel", "padding", "sentinel", "context", "network")
"""Purposes of the measurements of a characterisation."""
LEARNED = ("network", "context")
"""Purposes of networks that predictors learn from: calibration networks and profiled ones."""
_NO_NOTES = BundleNotes()
"""The notes of no bundle: latencies stay as they are told, and unstable ones are doubtful."""


@dataclass(frozen=True)
class SeenNetwork:
    """A network and all good measurements of it, oldest first, corrected for a slow core."""

    graph: Graph
    measurements: tuple[Measurement, ...]

    @property
    def sample(self) -> NetworkSample | None:
        """All passes pooled to one sample; None if no pass is good."""
        return pooled_network(self.graph, list(self.measurements))

    @property
    def passes_ms(self) -> list[float]:
        """Corrected latencies of the passes in milliseconds."""
        return [m.latency_ms for m in self.measurements if m.latency_ms is not None]

    @property
    def timed_ms(self) -> float:
        """The latency as timed, in milliseconds: the median of the passes."""
        return median(timed for m in self.measurements if (timed := timed_ms_of(m)) is not None)


@dataclass(frozen=True)
class RefusedNetwork:
    """A network that the platform cannot run: another try gives the same error.

    Attributes:
        graph: the network.
        reason: the message of the first error.
    """

    graph: Graph
    reason: str


@dataclass(frozen=True)
class PlatformRecord:
    """Everything that is known about a platform.

    Attributes:
        platform: its name.
        campaign: the characterisation; None if there is none.
        predictor: the predictor of the bundle in use; None if there is none.
        provenance: what the bundle says it was made from.
        rules: the fusion rules; None if they are not known.
        fusion_run: the newest campaign of `latfarm fusion`; None if there is none.
        kernels: the samples that the predictor was trained on, one for each pass.
        calibration: the networks of the campaign.
        unseen: networks of other campaigns and of queries, which the bundle was not made from.
        refused: networks of any campaign or query that the platform cannot run.
        measured: the campaign's measurements by purpose, failures included, oldest first.
        call_overhead_ms: latency of an empty model, in milliseconds.
        transfer_ms_per_mb: milliseconds for each megabyte of a network's inputs and outputs.
        left_out: number of measurements that training did not use, by reason.
        told: sentences that say why something is missing.
    """

    platform: str
    campaign: CampaignRecord | None = None
    predictor: PlatformPredictor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    rules: FusionRules | None = None
    fusion_run: CampaignRecord | None = None
    kernels: Sequence[KernelSample] = ()
    calibration: Sequence[SeenNetwork] = ()
    unseen: Sequence[SeenNetwork] = ()
    refused: Sequence[RefusedNetwork] = ()
    measured: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)
    call_overhead_ms: float = 0.0
    transfer_ms_per_mb: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)
    told: Sequence[str] = ()

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The outcome of the campaign; empty if there is no campaign."""
        return {} if self.campaign is None else self.campaign.outcome

    @property
    def all_measured(self) -> list[Measurement]:
        """The campaign's measurements of all purposes, oldest first."""
        found = [m for answers in self.measured.values() for m in answers]
        return sorted(found, key=lambda m: (m.told_at_s, m.request_id))


def newest_campaign(store: Store, platform: str, name: str = "") -> CampaignRecord | None:
    """A campaign by its id or name; without a name, the newest characterisation.

    A characterisation that is finished goes before one that is not.

    Returns:
        None if the platform has no such campaign.
    """
    if name:
        found = store.get_campaign(name)
        return found if found is not None and found.platform == platform else None
    known = [
        c
        for c in store.campaigns(brief=True)
        if c.kind == "characterize" and c.platform == platform and c.state != "removed"
    ]
    chosen = next((c for c in known if c.state == "done"), known[0] if known else None)
    return None if chosen is None else store.get_campaign(chosen.campaign_id)


def newest_fusion_run(store: Store, platform: str) -> CampaignRecord | None:
    """The newest finished campaign of `latfarm fusion` on a platform; None if there is none."""
    for run in store.campaigns(brief=True):
        if (run.kind, run.platform, run.state) == ("fusion", platform, "done"):
            return store.get_campaign(run.campaign_id)
    return None


def by_purpose(store: Store, campaign_id: str) -> dict[str, list[Measurement]]:
    """The measurements of a campaign by their purpose, oldest first."""
    found: dict[str, list[Measurement]] = {}
    for measurement in store.measurements(campaign_id=campaign_id):
        found.setdefault(measurement.purpose, []).append(measurement)
    for answers in found.values():
        answers.sort(key=lambda m: (m.told_at_s, m.request_id))
    order = {name: place for place, name in enumerate(PURPOSES)}
    return dict(sorted(found.items(), key=lambda item: (order.get(item[0], 99), item[0])))


def networks_of(store: Store, measurements: Iterable[Measurement]) -> list[SeenNetwork]:
    """The networks of some measurements; a network whose graph is lost is left out."""
    answers: dict[str, list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: (m.told_at_s, m.request_id)):
        if m.ok and m.latency_ms and m.protocol_version == PROTOCOL_VERSION:
            answers.setdefault(m.graph_hash, []).append(m)
    found = []
    for key, good in answers.items():
        graph = store.get_graph(key)
        if graph is not None:
            found.append(SeenNetwork(graph, tuple(good)))
    return found


def seen_hashes(
    store: Store, campaigns: Iterable[str], provenance: Mapping[str, Any]
) -> frozenset[str]:
    """Hashes of all networks that some campaigns and a bundle have learned from.

    These are calibration networks and profiled ones. Other exports of the same network have the
    same hash.

    Args:
        store: holds the measurements.
        campaigns: ids of campaigns, those on show beside those that the bundle was made from.
        provenance: what the bundle says it was made from; empty without a bundle.
    """
    graphs = {
        m.graph_hash
        for campaign_id in campaigns
        for purpose in LEARNED
        for m in store.measurements(campaign_id=campaign_id, purpose=purpose)
    }
    known = (store.get_graph(graph_hash) for graph_hash in sorted(graphs))
    here = (network_hash_of(graph) for graph in known if graph is not None)
    return frozenset(here) | frozenset(map(str, provenance.get("network_hashes", ())))


def unseen_networks(
    store: Store,
    platform: str,
    seen: Collection[str],
    fingerprint: str = "",
    notes: BundleNotes = _NO_NOTES,
) -> list[SeenNetwork]:
    """Networks of a platform that were measured, but that the predictor was not made from.

    Unstable answers to questions (`latfarm query`) are left out unless they are as scattered as is
    usual on their host. People ask at any time, also while the host is busy, and nobody repeats
    such a measurement; it would judge the host. Discarded measurements are left out, too.

    Args:
        store: holds the measurements.
        platform: the platform.
        seen: hashes of the networks that the predictor was made from (`seen_hashes`).
        fingerprint: fingerprint of the platform when the predictor was made; empty: any.
        notes: the correction for a slow core that the predictor was made with, and what is usual on
            the host that it was made on; unknown if there are none.
    """
    found: list[Measurement] = []
    for purpose in ("network", "query"):
        settled = (
            notes.slow_core.settled(m)
            for m in store.measurements(platform=platform, purpose=purpose, discarded=False)
            if not fingerprint or m.fingerprint == fingerprint
        )
        found += [
            m
            for m in settled
            if purpose == "network" or notes.host_noise.steadiness(m) != "doubtful"
        ]
    return [n for n in networks_of(store, found) if network_hash_of(n.graph) not in seen]


def refused_networks(store: Store, platform: str) -> list[RefusedNetwork]:
    """The networks that failed by their own fault on a platform, and never ran there.

    A network whose graph is lost is left out.
    """
    reasons: dict[str, str] = {}
    ran: set[str] = set()
    for purpose in ("network", "query"):
        for m in store.measurements(platform=platform, purpose=purpose):
            if m.ok:
                ran.add(m.graph_hash)
            elif m.outcome is Outcome.MODEL_ERROR:
                reasons.setdefault(m.graph_hash, m.error_message or m.error_code)
    found = []
    for key, reason in reasons.items():
        graph = None if key in ran else store.get_graph(key)
        if graph is not None:
            found.append(RefusedNetwork(graph, reason))
    return found
